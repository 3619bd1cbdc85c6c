"""Labs with a run of twenty slots, made once by the product and copied for each world."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.ledger.database import migrations
from labledger.ledger.writer import LedgerWriter
from labledger.runner import run_start
from labledger.runner.run_options import Placement, RunLimits, RunOptions
from simulation import engine, seam

RUN = "sim"
TASKS, VARIANTS, REPLICATIONS = 5, ("base", "treat"), 2
SLOTS = TASKS * len(VARIANTS) * REPLICATIONS

DESIGNS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "retries": {"retry": {"max_attempts": 3, "retry_on": ["infra_error", "agent_error"]}},
    "pruned": {"prune": {"max_consecutive_failures": 2}},
    "budget": {},
    "sealed": {"retry": {"max_attempts": 3, "retry_on": ["infra_error", "agent_error"]}},
    "cluster": {"retry": {"max_attempts": 3, "retry_on": ["infra_error"]}},
}
RETRY = {"max_attempts": 2, "retry_on": ["infra_error"]}
"""The default retries of an experiment."""
BUDGET_USD = 2.0
"""The first budget of the design `budget`."""


def write_experiment(folder: Path, design: str, *, replications: int = REPLICATIONS) -> Path:
    """Write an experiment of a design, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("agent.py", "grader.py"):
        (folder / name).write_text("pass\n", "utf-8")
    (folder / "other").mkdir(exist_ok=True)
    (folder / "other" / "grader.py").write_text("pass  # better\n", "utf-8")
    rows = [{"id": f"task-{number}", "task": {"prompt": "?"}} for number in range(TASKS)]
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    step = {"command": ["python3", "agent.py"], "files": ["agent.py"], "timeout_s": 30}
    document = {
        "experiment": {"id": "sim"},
        "dataset": {"path": "tasks.jsonl", "suite_id": "sim", "split_id": "test"},
        "baseline": {"variant_id": VARIANTS[0]},
        "variant_plan": [{"variant_id": name} for name in VARIANTS[1:]],
        "runtime": {"image": seam.IMAGE, "agent": step, "network": "none"},
        "benchmark": {
            "adapter_id": "sim",
            "name": "sim",
            "split": "test",
            "grader": {
                **step,
                "command": ["python3", "grader.py"],
                "files": ["grader.py"],
                "mode": "after_agent" if design == "sealed" else "same",
            },
            "evaluator": {"name": "sim", "mode": "custom"},
        },
        "metrics": [{"id": "cost_usd", "from": "result", "pointer": "/cost_usd"}],
        "design": {
            "max_concurrency": 4,
            "replications": replications,
            "schedule": "paired_interleaved",
            **DESIGNS[design],
        },
    }
    path = folder / "experiment.yaml"
    path.write_text(json.dumps(document, indent=2), "utf-8")
    return path


def make_template(folder: Path, design: str) -> None:
    """Make a lab with a run that has not begun, below `folder`."""
    experiment_path = write_experiment(folder / "experiment", design)
    write_experiment(folder / "more", design, replications=REPLICATIONS + 1)
    lab = LabFolder(folder / "lab")
    lab.create()
    migrations.upgrade(lab.ledger)
    options = RunOptions(
        lab_dir=lab.root,
        run_id=RUN,
        limits=RunLimits(budget_usd=BUDGET_USD if design == "budget" else None),
        placement=Placement(on="tcp://127.0.0.1:8786" if design == "cluster" else None),
    )
    experiment = run_start.resolve_experiment(experiment_path, options)
    store = ArtifactStore(lab.artifacts)
    with LedgerWriter.open(lab.ledger, store) as writer:
        experiment.freeze(store)
        writer.create_run(
            run_start.new_run(RUN, experiment, {seam.IMAGE: engine.IMAGE_ID}, options),
            ((task.task_id, task.digest, row) for task, row in experiment.frozen_tasks()),
            experiment.slots(),
        )


def copy(template: Path, folder: Path) -> LabFolder:
    """Copy the lab of a template into an empty folder."""
    shutil.copytree(template / "lab", folder / "lab")
    return LabFolder(folder / "lab")
