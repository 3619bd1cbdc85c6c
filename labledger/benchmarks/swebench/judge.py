"""Derive a trial's prediction and score from the patch and the logs of a SWE-bench grader.

The prediction is the agent's patch as it was taken from its container, before any of its code ran
in the grader's. The logs are as hostile as any output. The `swebench` package's own report, made on
the host, decides what is resolved, and becomes evidence. It counts a log that says nothing about
the answer, such as one without marks or of a broken environment, as not resolved; here that is a
`grade_error`, so that it does not count against the agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from labledger.benchmarks.swebench.harness import HarnessFailed, eval_report, harness_version
from labledger.experiment.grading_settings import ResultReader
from labledger.files.tars import PieceStream, content_of, each_member, open_stream
from labledger.files.untrusted_files import MIB, PREDICTION_CAP, UnsafeFile, UntrustedFile
from labledger.records import JsonObject, canonical_json
from labledger.records.outcomes import Reason, SlotStatus, Verdict
from labledger.trial.evidence.grading import (
    PREDICTION_SCHEMA,
    SCORE_SCHEMA,
    GradedTrial,
    GradingOutcome,
    stamped_row,
)

PATCH_FAILED = b">>>>> Patch Apply Failed"
"""What the grader and the package write about a patch that no command could apply."""


class ReportList(StrEnum):
    """The list of the package's report of a run in which an instance would be."""

    RESOLVED = "resolved_ids"
    UNRESOLVED = "unresolved_ids"
    EMPTY_PATCH = "empty_patch_ids"
    ERROR = "error_ids"
    INCOMPLETE = "incomplete_ids"
    """There is no prediction."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known about an answer: a verdict, or why there is none."""

    listed: ReportList
    report: JsonObject
    """The package's report of the instance, with the tests' statuses."""
    verdict: Verdict | None = None
    reason: Reason | None = None
    """Why there is no verdict."""
    message: str | None = None
    metrics: JsonObject = field(default_factory=dict)


def judge(
    instance: JsonObject, model_patch: str | None, test_output: bytes | None, apply_log: bytes
) -> Judgement:
    """Return what the `swebench` package makes of an answer.

    `instance` is that of the settings. `model_patch` is None if there is no prediction.
    `test_output` is the log of the tests, None if they did not run, and `apply_log` says how the
    patch was applied.
    """
    if model_patch == "":
        # The package does not run such an instance, and has no report of it.
        report = dict.fromkeys(
            ("patch_is_None", "patch_exists", "patch_successfully_applied", "resolved"), False
        )
        metrics = _metrics(instance, report)
        return Judgement(ReportList.EMPTY_PATCH, report, Verdict.FAIL, metrics=metrics)
    log = apply_log if test_output is None else test_output
    try:
        answer = eval_report(instance, model_patch, log)
    except HarnessFailed as error:
        return Judgement(ReportList.ERROR, {}, reason=Reason.LOG_NOT_JUDGED, message=error.message)
    report, metrics = answer.report, _metrics(instance, answer.report)
    if model_patch is None:
        return Judgement(ReportList.INCOMPLETE, report, Verdict.MISSING, metrics=metrics)
    if test_output is None and PATCH_FAILED in apply_log:
        return Judgement(ReportList.ERROR, report, Verdict.FAIL, metrics=metrics)
    if report["resolved"]:
        return Judgement(ReportList.RESOLVED, report, Verdict.PASS, metrics=metrics)
    listed = ReportList.ERROR if test_output is None else ReportList.UNRESOLVED
    if not answer.has_test_output:
        message = "the grader's log does not have both marks of test output"
        return Judgement(listed, report, None, Reason.LOG_NOT_JUDGED, message, metrics)
    if report.get("infra_failure"):
        cause = report.get("infra_failure_reason")
        message = (
            f"no test ran, and the swebench package found a failure of the environment: {cause}"
        )
        return Judgement(listed, report, None, Reason.GRADER_BOOTSTRAP_FAILED, message, metrics)
    return Judgement(listed, report, Verdict.FAIL, metrics=metrics)


def _metrics(instance: JsonObject, report: JsonObject) -> JsonObject:
    """Return the numbers of a report: what was reached, and of how many tests."""
    statuses = report.get("tests_status", {})

    def successes(name: str) -> int:
        return len(statuses.get(name, {}).get("success", ()))

    return {
        "resolved": int(report["resolved"]),
        "patch_applied": int(report["patch_successfully_applied"]),
        "fail_to_pass": successes("FAIL_TO_PASS"),
        "fail_to_pass_total": len(instance["FAIL_TO_PASS"]),
        "pass_to_pass": successes("PASS_TO_PASS"),
        "pass_to_pass_total": len(instance["PASS_TO_PASS"]),
    }


TEST_OUTPUT: Final = "test_output.txt"
APPLY_LOG: Final = "run_instance.log"
REPORT: Final = "swebench_report"
"""The name of the package's report in the evidence."""

_TEST_OUTPUT_CAP = 64 * MIB
_APPLY_LOG_CAP = 16 * MIB
_PATCH_NAME = "model.patch"


def grade(trial: GradedTrial, outcome: GradingOutcome) -> None:
    """Complete the outcome of a trial whose grader left the logs of SWE-bench."""
    source, redactor = trial.source, trial.redactor
    try:
        patch = _patch(trial.artifacts())
        outcome.prediction = _prediction(trial, patch)
        folder = trial.outputs.of_grader(source.folder or "")
        failed = outcome.status is SlotStatus.GRADE_ERROR
        if failed or folder is None or source.instance is None:
            return
        test_output = UntrustedFile(folder, TEST_OUTPUT).read(_TEST_OUTPUT_CAP)
        apply_log = UntrustedFile(folder, APPLY_LOG).read(_APPLY_LOG_CAP)
    except UnsafeFile as error:
        outcome.as_grade_error(error.reason, error.message)
        return
    judgement = judge(source.instance, patch, test_output, apply_log or b"")
    if judgement.report:
        content = canonical_json.dump_bytes(redactor.redact_json(judgement.report))
        outcome.reports[REPORT] = content
    if judgement.verdict is None:
        outcome.as_grade_error(
            judgement.reason or Reason.LOG_NOT_JUDGED, judgement.message or "there is no verdict"
        )
    else:
        outcome.score = _score(trial, judgement, judgement.verdict)


def _patch(artifacts: Iterable[bytes] | None) -> str | None:
    """Return the patch in a tar of artifacts, None if there is none. Raises `UnsafeFile`."""
    if artifacts is None:
        return None
    with open_stream(PieceStream(iter(artifacts))) as tar:
        for member in each_member(tar):
            if member.isreg() and PurePosixPath(member.name).name == _PATCH_NAME:
                if member.size > PREDICTION_CAP:
                    message = f"the patch has more than {PREDICTION_CAP:,} bytes"
                    raise UnsafeFile(Reason.OUTPUT_TOO_LARGE, message)
                return b"".join(content_of(tar, member)).decode("utf-8", "replace")
    return None


def _prediction(trial: GradedTrial, patch: str | None) -> JsonObject:
    """Return the row with the patch; its value is null if the agent left no prediction."""
    ids = trial.stamp.ids
    model = trial.bindings.get("model_name_or_path", ids.variant_id)
    prediction = {
        "kind": "json" if patch is None else "patch",
        "value": patch,
        "metadata": {"instance_id": ids.task_id, "model_name_or_path": str(model)},
    }
    members = {"prediction": trial.redactor.redact_json(prediction)}
    return stamped_row(trial.stamp, trial.benchmark, PREDICTION_SCHEMA, members)


def _score(trial: GradedTrial, judgement: Judgement, verdict: Verdict) -> JsonObject:
    benchmark = trial.benchmark
    report = {key: value for key, value in judgement.report.items() if key != "tests_status"}
    members = {
        "verdict": verdict.value,
        "primary_metric_name": "resolved",
        "primary_metric_value": judgement.metrics["resolved"],
        "metrics": judgement.metrics,
        "evaluator": benchmark.evaluator | {"version": harness_version()},
        "ext": {
            "swebench": {
                "listed": judgement.listed.value,
                "report": trial.redactor.redact_json(report),
            }
        },
    }
    return stamped_row(trial.stamp, benchmark, SCORE_SCHEMA, members)


SWEBENCH_LOGS = ResultReader(
    required={
        "instance": "the row to judge by",
        "folder": "where the grader leaves its results",
    },
    judge=grade,
)
"""`from: swebench`."""
