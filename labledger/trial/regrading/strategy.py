"""Results of regraded trials that need no container, and rules about which trials need one.

A trial that never reached its grading is carried over unchanged. A trial whose evidence cannot be
restored exactly becomes a `grade_error`. Used by `worker`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from labledger import clock
from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult, Phase
from labledger.records.events import Event, EventFile
from labledger.records.outcomes import Reason, SlotStatus
from labledger.trial import phase_notes as phases
from labledger.trial.contract import AttemptSpec, StoredTrial
from labledger.trial.evidence import metrics
from labledger.trial.evidence.collect import redactor_for
from labledger.trial.evidence.container_exit import ContainerExit
from labledger.trial.evidence.regraded_evidence import RegradedEvidence
from labledger.trial.evidence.stored_artifacts import EvidenceIncomplete

_GRADED = frozenset({SlotStatus.COMPLETED, SlotStatus.GRADE_ERROR})
_UNGRADABLE = frozenset({Reason.STATUS_FORGED, Reason.SCRIPT_HINDERED})
"""Reasons of agent failures after which a trial is never graded."""
_FAILED = frozenset({SlotStatus.AGENT_ERROR, SlotStatus.AGENT_TIMEOUT})


def is_gradable(spec: AttemptSpec, earlier: StoredTrial) -> bool:
    """Return True if a stored trial was graded, or would have been under this run's policy."""
    if earlier.record["status"] in _GRADED:
        return True
    failed = earlier.record["status"] in _FAILED and earlier.record["reason"] not in _UNGRADABLE
    return failed and spec.plan.benchmark.policy.grade_failed_agents


def is_carried_over(spec: AttemptSpec) -> bool:
    """Return True if a regraded trial has nothing to grade, so that it stays as it was."""
    return spec.regraded_trial is not None and not is_gradable(spec, spec.regraded_trial)


def combined_with_stored_phases(earlier: StoredTrial, ended: ContainerExit) -> ContainerExit:
    """Return a container's exit with start and duration of the stored trial's phases included."""
    duration_ms = _until_graded(earlier) + ended.duration_ms
    return replace(ended, started_at=earlier.record["started_at"], duration_ms=duration_ms)


def _until_graded(earlier: StoredTrial) -> int:
    """Return how long a stored trial took without its grader, in milliseconds."""
    grader = phases.phases_of_record(earlier).get("grader")
    duration_ms: int = earlier.record["duration_ms"]
    return max(0, duration_ms - (grader.duration_ms if grader else 0))


def carried_over(spec: AttemptSpec, earlier: StoredTrial) -> AttemptResult:
    """Return the result of a trial that has nothing to grade: that of the stored trial."""
    record = earlier.record
    evidence = RegradedEvidence(spec, redactor_for(spec), earlier)
    evidence.recall()
    outcome = _Outcome(
        SlotStatus(record["status"]),
        record["reason"],
        record["message"],
        record["exit_status"],
        record["ended_at"],
        record["duration_ms"],
        phases.phases_of_record(earlier),
    )
    return _result(spec, earlier, evidence, outcome)


def incomplete(spec: AttemptSpec, earlier: StoredTrial, why: str) -> AttemptResult:
    """Return the result of a trial that cannot be restored. `why` becomes its message."""
    redactor = redactor_for(spec)
    evidence = RegradedEvidence(spec, redactor, earlier)
    evidence.collect_inputs()
    evidence.collect_logs([])
    evidence.collect_workspace()
    duration_ms = _until_graded(earlier)
    ended_at = clock.parse(earlier.record["started_at"]) + timedelta(milliseconds=duration_ms)
    outcome = _Outcome(
        SlotStatus.GRADE_ERROR,
        Reason.EVIDENCE_INCOMPLETE,
        redactor.message(why),
        None,
        clock.iso(ended_at),
        duration_ms,
        phases.phases_before_grading(earlier),
    )
    return _result(spec, earlier, evidence, outcome)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The fields of a result that differ between carried-over and incomplete trials."""

    status: SlotStatus
    reason: str | None
    message: str | None
    exit_status: int | None
    ended_at: str
    duration_ms: int
    phases: dict[str, Phase]


def _result(
    spec: AttemptSpec, earlier: StoredTrial, evidence: RegradedEvidence, outcome: _Outcome
) -> AttemptResult:
    result: JsonObject | None = None
    events: tuple[Event, ...] | EventFile = ()
    dropped: int = earlier.record["events_dropped"]
    with suppress(EvidenceIncomplete):
        result = evidence.collect_result()
    with suppress(EvidenceIncomplete):
        events, dropped = evidence.collect_events()
    evidence.add_identity(evidence.isolation, None)
    sources = metrics.Sources(result, None, events, outcome.phases, outcome.duration_ms)
    record, ended_at, duration_ms = earlier.record, outcome.ended_at, outcome.duration_ms
    return AttemptResult(
        ids=spec.ids,
        schedule_idx=spec.slot.schedule_idx,
        slot_commit_id=spec.slot_commit_id,
        attempt=spec.attempt,
        status=outcome.status,
        reason=outcome.reason,
        message=outcome.message,
        started_at=record["started_at"],
        ended_at=ended_at,
        duration_ms=duration_ms,
        container=spec.container_name,
        image_ref=record["image"]["ref"],
        image_id=record["image"]["id"],
        exit_status=outcome.exit_status,
        outcome=record["outcome"],
        phases=outcome.phases,
        evidence=(evidence.record(ended_at, outcome.exit_status, duration_ms),),
        metrics=metrics.collect(spec.plan.metrics, sources),
        events=events,
        events_dropped=dropped,
        artifacts=tuple(evidence.artifacts.values()),
    )
