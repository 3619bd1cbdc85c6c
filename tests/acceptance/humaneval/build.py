"""The HumanEval data as an experiment that labledger runs."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
VARIANTS = {"reference": "pass", "empty": "fail"}
"""Each variant and the verdict that all its trials must get."""


def data_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the data should be: $HUMANEVAL_JSONL, or ../shared/data beside the project."""
    beside = PROJECT.parent / "shared" / "data" / "HumanEval.jsonl.gz"
    return Path(environ.get("HUMANEVAL_JSONL", beside))


def read_problems(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    """The first `limit` problems of the file, or all. Reads it gzipped or plain, by its name."""
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines()[:limit]]


def build(problems: list[dict[str, Any]], directory: Path) -> Path:
    """Write the experiment into `directory`, over an earlier one; returns its experiment.yaml."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("experiment.yaml", "agent.py", "grader.py"):
        shutil.copyfile(HERE / name, directory / name)
    keys = ("prompt", "entry_point", "canonical_solution", "test")
    rows = ({"id": p["task_id"], "task": {key: p[key] for key in keys}} for p in problems)
    tasks = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / "tasks.jsonl").write_text(tasks, "utf-8")
    return directory / "experiment.yaml"
