"""The HumanEval data as an experiment that labledger runs."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
VARIANTS = ("reference", "empty", "wavering")
REPLICATIONS = 3
GRADER = "{command: [python3, grader.py], files: [grader.py],"
STRICT = "{command: [python3, strict.py], files: [grader.py, strict.py],"
"""The grader of the experiment, and the one of `strict.yaml` beside it."""

Problem = dict[str, Any]
Outcomes = dict[tuple[str, str], int]
"""How many trials of a variant get a verdict."""


def data_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the data should be: $HUMANEVAL_JSONL, or ../shared/data beside the project."""
    beside = PROJECT.parent / "shared" / "data" / "HumanEval.jsonl.gz"
    return Path(environ.get("HUMANEVAL_JSONL", beside))


def read_problems(path: Path, limit: int | None = None) -> list[Problem]:
    """The first `limit` problems of the file, or all. Reads it gzipped or plain, by its name."""
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines()[:limit]]


def expected(problems: list[Problem], *, strict: bool = False) -> Outcomes:
    """What each variant must get, worked out without running anything."""
    found: Counter[tuple[str, str]] = Counter()
    for variant, problem, repl_idx in product(VARIANTS, problems, range(REPLICATIONS)):
        trial = f"{problem['task_id']} {repl_idx}"
        knows = variant == "reference" or (
            variant == "wavering" and zlib.crc32(trial.encode()) % 10 < 6
        )
        short = len(problem["canonical_solution"].splitlines()) <= 8
        found[variant, "pass" if knows and (short or not strict) else "fail"] += 1
    return dict(found)


def build(problems: list[Problem], directory: Path) -> Path:
    """Write the experiment into `directory`, over an earlier one; returns its experiment.yaml."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("experiment.yaml", "agent.py", "grader.py", "strict.py"):
        shutil.copyfile(HERE / name, directory / name)
    authored = (HERE / "experiment.yaml").read_text("utf-8")
    (directory / "strict.yaml").write_text(authored.replace(GRADER, STRICT), "utf-8")
    keys = ("prompt", "entry_point", "canonical_solution", "test")
    rows = ({"id": p["task_id"], "task": {key: p[key] for key in keys}} for p in problems)
    tasks = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / "tasks.jsonl").write_text(tasks, "utf-8")
    return directory / "experiment.yaml"
