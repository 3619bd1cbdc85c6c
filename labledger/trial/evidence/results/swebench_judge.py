"""Judge the log of a SWE-bench grader on the host, with the `swebench` package's own report.

The package decides what is resolved. It counts a log that says nothing about the answer, such as
one without marks or of a broken environment, as not resolved; here that is a `grade_error`, so that
it does not count against the agent. Everything else is as in its report, which becomes evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from labledger.records import JsonObject
from labledger.records.outcomes import Reason, Verdict
from labledger.swebench_package.harness import HarnessFailed, eval_report

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
