"""The format `swebench`: rows of a SWE-bench data set for version 5 of the `swebench` package.

The agent works in the image's repository. A fresh container of the same image gets only its patch
and the row's script. The host judges the log with the package. Only the necessary containers have
the patches, tests and scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from labledger.benchmarks.formats import BenchmarkAgent, TranslatedBenchmark, unused_id
from labledger.benchmarks.swebench.dataset_rows import (
    Predictions,
    SwebenchRow,
    SweBenchRows,
    read_dataset,
    read_predictions,
)
from labledger.benchmarks.swebench.harness import PreparedRow, harness_version
from labledger.experiment.phase_commands import DEPS
from labledger.records import JsonObject
from labledger.text.words import counted_of

AGENTS = ("gold", "empty")
REPOSITORY = "/testbed"
TESTS_LIMIT_S = 1800
"""The time limit of a task's script in seconds, as in the package."""

_LOGS = "/swebench/logs"
_PATCH, _NOTES = "/swebench/model.patch", "/swebench/patch_notes"
_PATCH_PROGRAM = "patch.sh"
_METRICS = (
    *("resolved", "patch_applied", "fail_to_pass", "fail_to_pass_total"),
    *("pass_to_pass", "pass_to_pass_total"),
)
_DESCRIPTION = (
    "The agent gets task.problem_statement and changes the repository in /testbed. The patch of\n"
    "its changes is graded in a fresh container, and the log is judged by the swebench package.\n"
    "No container of an agent has the reference patch, the tests or the script of a task."
)
_SCRIPTS = Path(__file__).parent
_PROGRAMS = ("agent.sh", _PATCH_PROGRAM, "grade.sh")


def swebench_benchmark(dataset: SweBenchRows) -> TranslatedBenchmark:
    """Return the benchmark of a data set, with the agents `gold` and `empty`."""
    files = {name: (_SCRIPTS / name).read_bytes() for name in _PROGRAMS}
    for row, prepared in dataset.rows:
        files[f"{_grader_folder(row.instance_id)}/eval.sh"] = prepared.eval_script.encode()
    benchmark = TranslatedBenchmark(
        name="swebench",
        version=f"sha256:{dataset.digest[:16]}",
        split=dataset.split,
        tasks=tuple(_task(row, prepared) for row, prepared in dataset.rows),
        files=files,
        agents=(BenchmarkAgent("empty", "Changes nothing: must fail", expects="fail"),),
        defaults=_defaults(),
        description=_DESCRIPTION,
        refused=dataset.refused,
        notes=dataset.notes,
        cluster="task.repo",
    )
    gold = BenchmarkAgent(
        "gold", "Leaves the reference patch: must pass", expects="pass", needs_files=True
    )
    patches = {row.instance_id: row.text("patch") for row, _ in dataset.rows if row.has("patch")}
    with_gold = with_patches(benchmark, gold, patches)
    return replace(with_gold, agents=(with_gold.agents[-1], *benchmark.agents))


def with_predictions(
    benchmark: TranslatedBenchmark, predictions: Predictions
) -> TranslatedBenchmark:
    """Return a benchmark with the predictions of a model as another agent at the end."""
    predicted = sum(task["id"] in predictions.patches for task in benchmark.tasks)
    description = (
        f"The predictions of {predictions.model}: of "
        f"{counted_of(predicted, len(benchmark.tasks), 'task')}"
    )
    name = unused_id(predictions.variant_id, [agent.name for agent in benchmark.agents])
    agent = BenchmarkAgent(name, description, {"model_name_or_path": predictions.model})
    return with_patches(benchmark, agent, predictions.patches)


def with_patches(
    benchmark: TranslatedBenchmark, agent: BenchmarkAgent, patches: Mapping[str, str]
) -> TranslatedBenchmark:
    """Return a benchmark with one more agent at the end, whose answers are patches.

    `patches` has them by task id. They are files of the tasks that only this agent gets. A task
    without a patch has no prediction.
    """
    files, tasks = dict(benchmark.files), []
    for task in benchmark.tasks:
        task_id = task["id"]
        folder = f"tasks/{task_id}/agents/{agent.name}"
        if task_id in patches:
            files[f"{folder}/model.patch"] = patches[task_id].encode()
        else:
            files[f"{folder}/no_prediction"] = b""
        patch_files = {
            "path": "/swebench/agent",
            "directory": folder,
            "for": "agent",
            "variants": [agent.name],
        }
        tasks.append(task | {"files": [*task["files"], patch_files]})
    agents = (*benchmark.agents, agent)
    return replace(benchmark, agents=agents, files=files, tasks=tuple(tasks))


def _grader_folder(instance_id: str) -> str:
    return f"tasks/{instance_id}/grader"


def _task(row: SwebenchRow, prepared: PreparedRow) -> JsonObject:
    seen = ("instance_id", "repo", "base_commit", "problem_statement")
    judged = ("instance_id", "repo", "version", "image", "log_parser", "eval_type")
    instance: JsonObject = {column: row.text(column) for column in judged}
    instance["FAIL_TO_PASS"] = list(prepared.fail_to_pass)
    instance["PASS_TO_PASS"] = list(prepared.pass_to_pass)
    folder = _grader_folder(row.instance_id)
    return {
        "id": row.instance_id,
        "task": {column: row.text(column) for column in seen},
        "image": row.text("image"),
        "runtime": {
            "grader": {"results": {"from": "swebench", "folder": _LOGS, "instance": instance}}
        },
        "files": [{"path": "/swebench/grader", "directory": folder, "for": "grader"}],
    }


def _defaults() -> JsonObject:
    # Setup's files stay in the container, where the agent cannot change them.
    collect = ["bash", f"{DEPS}/setup/{_PATCH_PROGRAM}", "collect"]
    return {
        "runtime": {
            "user": "root",
            "rights": "docker",
            "workspace": REPOSITORY,
            "setup": {
                "command": ["bash", _PATCH_PROGRAM, "begin"],
                "files": [_PATCH_PROGRAM],
                "timeout_s": 300,
            },
            "agent": {"command": ["sh", "agent.sh"], "files": ["agent.sh"], "timeout_s": 3600},
            "network": "none",
            "outputs": [{"path": _LOGS, "phase": "grader"}],
            "resources": {"cpus": 1, "memory": "4g", "pids": 4096},
        },
        "benchmark": {
            "grader": {
                "command": ["bash", "grade.sh"],
                "files": ["grade.sh"],
                "timeout_s": TESTS_LIMIT_S,
                "mode": "separate",
                # Scripts of tasks may install the repository, which may download build tools.
                "network": "full",
                "collect": [{"command": collect, "timeout_s": 300}],
                "artifacts": [{"path": path, "optional": True} for path in (_PATCH, _NOTES)],
            },
            "evaluator": {"name": "swebench", "version": harness_version(), "mode": "official"},
        },
        "metrics": [
            {"id": name, "from": "score", "pointer": f"/metrics/{name}"} for name in _METRICS
        ],
        "design": {
            "max_concurrency": 4,
            "schedule": "paired_interleaved",
            "retry": {
                "max_attempts": 2,
                "retry_on": ["infra_error"],
            },
        },
    }


@dataclass(frozen=True, slots=True)
class SwebenchFormat:
    """Reads `swebench:FILE`."""

    name: str = "swebench"
    agents: tuple[str, ...] = AGENTS
    agent_kinds: tuple[str, ...] = ("predictions",)

    def read(self, location: str) -> TranslatedBenchmark:
        """Return the benchmark in a file.

        Raises `InvalidInput` with every problem, and `ExtraMissing`.
        """
        return swebench_benchmark(read_dataset(location))

    def add_agent(
        self,
        benchmark: TranslatedBenchmark,
        kind: str,  # noqa: ARG002
        argument: str,
    ) -> TranslatedBenchmark:
        """Return a benchmark with the agent of a file of predictions at the end.

        Raises `InvalidInput`.
        """
        known = [task["id"] for task in benchmark.tasks]
        known += [task.task_id for task in benchmark.refused]
        return with_predictions(benchmark, read_predictions(argument, known))


SWEBENCH = SwebenchFormat()
