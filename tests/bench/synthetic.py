"""Made-up experiments, runs and trial results for measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from labledger.ledger.database.run_info import NewRun, Variant
from labledger.records import JsonObject
from labledger.records.attempt_result import Artifact, AttemptResult, Event, MetricValue, Phase
from labledger.records.identity import Slot, TrialIds, slot_commit_id
from labledger.records.outcomes import SlotStatus

IMAGE = "labledger/python:3"
VARIANTS = ("base", "treat")
BENCHMARK = {"adapter_id": "bench", "name": "bench", "split": "test"}
METRICS, EVENTS = 5, 10
_IMAGE_ID = "sha256:" + "1" * 64
_TIMES = ("2026-01-31T12:00:00.000Z", "2026-01-31T12:00:01.500Z")
_OWN_ARTIFACTS = (
    "trial_input",
    "trial_output",
    "events",
    "agent_stdout",
    "workspace_after",
    "workspace_patch",
)
_COMMON_ARTIFACTS = {
    "agent_stderr": Artifact.inline(b""),
    "workspace_before": Artifact.inline(b'{"files":{}}'),
}
"""Content that is the same in every trial, such as an empty log."""

AGENT = """\
import json, os
with open("answer.txt", "w") as file:
    file.write("42")
with open(os.environ["AGENTLAB_RESULT_PATH"], "w") as file:
    json.dump({"outcome": "success", "answer": "42"}, file)
"""
GRADER = """\
import json, os
with open("answer.txt") as file:
    answer = file.read()
with open(os.environ["AGENTLAB_BENCHMARK_PREDICTION_PATH"], "w") as file:
    json.dump({"prediction": {"kind": "text", "value": answer}}, file)
score = {"verdict": "pass", "primary_metric_name": "resolved", "primary_metric_value": 1.0}
with open(os.environ["AGENTLAB_BENCHMARK_SCORE_PATH"], "w") as file:
    json.dump(score, file)
"""


def write_experiment(
    folder: Path,
    *,
    tasks: int,
    variants: int = 1,
    replications: int = 1,
    concurrency: int = 8,
    mode: str | None = None,
) -> Path:
    """Write an experiment of `tasks` × `variants` × `replications` with minimal trials.

    `mode` is the grading mode; None leaves it out.
    """
    folder.mkdir(parents=True)
    (folder / "agent.py").write_text(AGENT, "utf-8")
    (folder / "grader.py").write_text(GRADER, "utf-8")
    with (folder / "tasks.jsonl").open("w", encoding="utf-8") as file:
        for number in range(tasks):
            file.write(json.dumps(task_row(number)) + "\n")
    agent = {"command": ["python3", "agent.py"], "files": ["agent.py"], "timeout_s": 60}
    grader = {"command": ["python3", "grader.py"], "files": ["grader.py"], "timeout_s": 60}
    if mode is not None:
        grader["mode"] = mode
    if mode == "separate":
        grader["artifacts"] = [{"path": "/agentlab/workspace"}]
    document = {
        "experiment": {"id": "bench"},
        "dataset": {"path": "tasks.jsonl", "suite_id": "bench", "split_id": "test"},
        "baseline": {"variant_id": VARIANTS[0]},
        "variant_plan": [{"variant_id": name} for name in VARIANTS[1:variants]],
        "runtime": {"image": IMAGE, "agent": agent, "network": "none"},
        "benchmark": {
            **BENCHMARK,
            "grader": grader,
            "evaluator": {"name": "bench-check", "mode": "custom"},
        },
        "design": {
            "max_concurrency": concurrency,
            "replications": replications,
            "schedule": "paired_interleaved",
        },
    }
    path = folder / "experiment.yaml"
    path.write_text(json.dumps(document, indent=2), "utf-8")  # JSON is YAML.
    return path


def task_row(number: int) -> JsonObject:
    return {"id": f"task-{number:06d}", "task": {"prompt": f"What is {number} + 1? " * 8}}


def new_run(run_id: str) -> NewRun:
    return NewRun(
        run_id=run_id,
        experiment_id="bench",
        name="bench",
        resolved={"benchmark": BENCHMARK},
        authored="",
        digest="d" * 64,
        source_path="",
        images={IMAGE: _IMAGE_ID},
        variants=tuple(
            Variant(name, "treatment" if number else "baseline", {})
            for number, name in enumerate(VARIANTS)
        ),
        labledger_version="0",
    )


def task_rows(slot_count: int) -> Iterator[tuple[str, str, JsonObject]]:
    for number in range((slot_count + 1) // len(VARIANTS)):
        row = task_row(number)
        yield row["id"], "d" * 64, row


def slot(idx: int) -> Slot:
    """Return slot `idx` of a schedule with the variants of each task side by side."""
    task, variant = divmod(idx, len(VARIANTS))
    return Slot(idx, VARIANTS[variant], f"task-{task:06d}", 0)


def result(run_id: str, slot: Slot, attempt: int = 1) -> AttemptResult:
    """Return a passed trial with `METRICS`, `EVENTS` and eight artifacts, six of them unique."""
    ids = TrialIds.of(run_id, slot)
    artifacts = _COMMON_ARTIFACTS | {
        name: Artifact.inline(f"{name} of {ids.trial_id}\n".encode() * 8) for name in _OWN_ARTIFACTS
    }
    stamp: JsonObject = {
        "schedule_idx": slot.schedule_idx,
        "slot_commit_id": slot_commit_id(run_id, slot.schedule_idx),
        "attempt": attempt,
        "row_seq": 0,
        "ts": _TIMES[1],
        "ids": ids.as_json(),
    }
    container = f"labledger-bench-{run_id}-{slot.schedule_idx}-{attempt}"
    return AttemptResult(
        ids=ids,
        schedule_idx=slot.schedule_idx,
        slot_commit_id=stamp["slot_commit_id"],
        attempt=attempt,
        status=SlotStatus.COMPLETED,
        started_at=_TIMES[0],
        ended_at=_TIMES[1],
        duration_ms=1500,
        container=container,
        image_ref=IMAGE,
        image_id=_IMAGE_ID,
        exit_status=0,
        outcome="success",
        phases={"agent": Phase(0, 900), "grader": Phase(0, 200)},
        predictions=(_prediction(stamp),),
        scores=(_score(stamp),),
        evidence=(_evidence(stamp, artifacts, container),),
        metrics=tuple(
            MetricValue(f"metric_{number}", "events", slot.schedule_idx + number / 10)
            for number in range(METRICS)
        ),
        events=tuple(_event(number) for number in range(EVENTS)),
        artifacts=tuple(artifacts.values()),
    )


def _prediction(stamp: JsonObject) -> JsonObject:
    return {
        "schema_version": "benchmark_prediction_record_v1",
        **stamp,
        "benchmark": BENCHMARK,
        "prediction": {"kind": "text", "value": f"the answer of slot {stamp['schedule_idx']}"},
    }


def _score(stamp: JsonObject) -> JsonObject:
    passed = stamp["schedule_idx"] % 2 == 0
    return {
        "schema_version": "benchmark_score_record_v1",
        **stamp,
        "benchmark": BENCHMARK,
        "verdict": "pass" if passed else "fail",
        "primary_metric_name": "resolved",
        "primary_metric_value": float(passed),
        "evaluator": {"name": "bench-check", "mode": "custom"},
    }


def _evidence(stamp: JsonObject, artifacts: dict[str, Artifact], container: str) -> JsonObject:
    return {
        "schema_version": "evidence_record_v1",
        **stamp,
        "runtime": {
            "executor": "docker",
            "exit_status": 0,
            "duration_ms": 1500,
            "image_ref": IMAGE,
            "image_id": _IMAGE_ID,
            "container": container,
        },
        "evidence": {name: artifact.reference for name, artifact in artifacts.items()},
    }


def _event(number: int) -> Event:
    body = {
        "type": "model_call_end",
        "model": "a/b",
        "usage": {"tokens_in": 100 + number, "tokens_out": 10 + number},
    }
    return Event(number, "model_call_end", body)
