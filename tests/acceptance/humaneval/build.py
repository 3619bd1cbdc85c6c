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
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from labledger import create_experiment

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
VARIANTS = ("reference", "empty", "wavering")
REPLICATIONS = 3

Problem = dict[str, Any]
Outcomes = dict[tuple[str, str], int]
"""The number of trials by variant and verdict."""


def data_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the data: $HUMANEVAL_JSONL, or ../shared/data beside the project."""
    beside = PROJECT.parent / "shared" / "data" / "HumanEval.jsonl.gz"
    return Path(environ.get("HUMANEVAL_JSONL", beside))


def read_problems(path: Path, limit: int | None = None) -> list[Problem]:
    """Return the first `limit` problems of the file, or all. The file may be gzipped."""
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines()[:limit]]


def expected(
    problems: list[Problem], *, strict: bool = False, replications: int = REPLICATIONS
) -> Outcomes:
    """Return the verdicts that each variant must get, without running anything."""
    counts: Counter[tuple[str, str]] = Counter()
    for variant, problem, repl_idx in product(VARIANTS, problems, range(replications)):
        trial = f"{problem['task_id']} {repl_idx}"
        knows = variant == "reference" or (
            variant == "wavering" and zlib.crc32(trial.encode()) % 10 < 6
        )
        short = len(problem["canonical_solution"].splitlines()) <= 8
        counts[variant, "pass" if knows and (short or not strict) else "fail"] += 1
    return dict(counts)


def build(problems: list[Problem], directory: Path, replications: int = REPLICATIONS) -> Path:
    """Write the experiment into `directory`, over an earlier one; returns its experiment.yaml.

    It is the experiment of `labledger init --from humaneval:FILE` with our own agent. One variant
    gives the reference solution, one leaves the function empty, and one does either, depending on
    problem and replication. So the verdict of each trial is known.
    """
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "problems.jsonl"
    data.write_text("".join(json.dumps(problem) + "\n" for problem in problems), "utf-8")
    with TemporaryDirectory() as folder:
        create_experiment(folder, benchmark=f"humaneval:{data}", agents=["gold"])
        shutil.copytree(folder, directory, dirs_exist_ok=True)
    give_solutions(directory / "tasks.jsonl")
    for name in ("own_agent.py", "strict.py"):
        shutil.copyfile(HERE / name, directory / name)
    experiment = directory / "experiment.yaml"
    document = yaml.safe_load(experiment.read_text("utf-8"))
    adapt(document)
    document["design"]["replications"] = replications
    experiment.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    grader = document["benchmark"]["grader"]
    grader["command"][1] = "strict.py"
    grader["files"].append("strict.py")
    strict = yaml.safe_dump(document, sort_keys=False)
    (directory / "strict.yaml").write_text(strict, "utf-8")
    return experiment


def give_solutions(tasks: Path) -> None:
    """Give the reference solutions to the variants that know them."""
    rows = [json.loads(line) for line in tasks.read_text("utf-8").splitlines()]
    for row in rows:
        row["files"][0]["variants"] = [name for name in VARIANTS if name != "empty"]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def adapt(document: dict[str, Any]) -> None:
    """Give the translated experiment our variants, agent, metrics and replications."""
    document["experiment"] = {"id": "humaneval", "tags": ["humaneval", "acceptance"]}
    baseline, *others = ({"variant_id": name, "bindings": {"mode": name}} for name in VARIANTS)
    document |= {"baseline": baseline, "variant_plan": others}
    agent = document["runtime"]["agent"]
    agent["command"] = ["python3", "own_agent.py", "--mode", "$mode"]
    agent["files"].append("own_agent.py")
    tokens = {"event": "model_call_end", "field": "usage.tokens_out", "aggregate": "sum"}
    document["metrics"] += [
        {"id": "answer_chars", "from": "result", "pointer": "/metrics/answer_chars"},
        {"id": "tokens_out", "from": "events", **tokens},
        {"id": "agent_ms", "from": "runner", "field": "agent_ms"},
    ]
