"""From an ended container to a validated result: statuses, rows, metrics, evidence."""

from __future__ import annotations

from functools import cache

from labledger import canonical, clock, faults, schema
from labledger.records import GradeReason, JsonObject, Phase, SlotStatus, TrialResult
from labledger.trial import metrics, trust
from labledger.trial.contract import ExitStatus, TrialSpec
from labledger.trial.ended import Ended
from labledger.trial.evidence import EVIDENCE_SCHEMA, RESULT_SCHEMA, Evidence
from labledger.trial.grading import (
    DISK_FULL,
    PREDICTION_SCHEMA,
    SCORE_SCHEMA,
    SCRIPT_FAILED,
    Judgement,
    judge,
)
from labledger.trial.phases import before_grading, has_begun, parse_phases, read_phases
from labledger.trial.recalled import RecalledEvidence
from labledger.trial.redact import Redactor

CONTAINER_KILLED = "container_killed"
"""The reason of a trial whose container was ended from outside."""
CONTAINER_PAUSED = "container_paused"
"""The reason of a trial that did not go well and whose container was paused from outside."""
CONTAINER_REMOVED = "container_removed"
"""The reason of a trial whose container was removed from outside before its end was known."""


DISK_WAS_FULL = (
    "the disk was full between this trial's start and its end; what its processes could not write "
    "then is missing, whatever they made of that"
)
"""What the evidence of such a trial says."""

WAS_PAUSED = (
    "the container was paused from outside (`docker pause`) while it ran: its time limits, and "
    "what it waited for, went on meanwhile"
)
"""What the evidence of such a trial says."""

STATUS_FORGED = "status_forged"
"""The reason of a trial whose container ended as `trial.sh` cannot have ended it."""


def collect(spec: TrialSpec, ended: Ended, isolation: JsonObject) -> TrialResult:
    """Read what the container produced. Nothing in here needs the container any more.

    `isolation` are the facts of `trust.facts`; the score and the evidence say them.
    """
    redactor = redactor_of(spec)
    evidence = evidence_of(spec, redactor)
    judgement = _judge(spec, ended, redactor)
    phases = _phases(spec, ended)
    evidence.collect_inputs()
    faults.reached("reading_outputs", spec.slot.schedule_idx)
    evidence.collect_logs(_logged_phases(spec, ended, phases))
    evidence.collect_rejected(judgement)
    result = evidence.collect_result()
    events, dropped = evidence.collect_events()
    hooks = evidence.collect_workspace()
    if ended.disk_was_full:
        evidence.note("disk", DISK_WAS_FULL)
    if ended.was_paused:
        evidence.note("container", WAS_PAUSED)
    evidence.stamp(isolation | {"workspace_hooks": hooks}, judgement.score)
    sources = metrics.Sources(result, judgement.score, events, phases, ended.duration_ms)
    message = judgement.message and redactor.message(judgement.message)
    return TrialResult(
        ids=spec.ids,
        schedule_idx=spec.slot.schedule_idx,
        slot_commit_id=spec.slot_commit_id,
        attempt=spec.attempt,
        status=judgement.status,
        reason=judgement.reason,
        message=message,
        started_at=ended.started_at,
        ended_at=ended.ended_at,
        duration_ms=ended.duration_ms,
        container=spec.container,
        image_ref=spec.image_ref,
        image_id=spec.image_id,
        exit_status=ended.exit_status,
        outcome=result["outcome"] if result else None,
        phases=phases,
        predictions=(judgement.prediction,) if judgement.prediction else (),
        scores=(judgement.score,) if judgement.score else (),
        evidence=(evidence.record(ended.ended_at, ended.exit_status, ended.duration_ms),),
        metrics=metrics.collect(spec.plan.metrics, sources),
        events=events,
        events_dropped=dropped,
        artifacts=tuple(evidence.artifacts.values()),
    )


def _judge(spec: TrialSpec, ended: Ended, redactor: Redactor) -> Judgement:
    if ended.refused is not None:
        reason: str = GradeReason.GRADER_EXIT_NONZERO
        return Judgement(SlotStatus.GRADE_ERROR, reason, ended.refused)
    if ended.forged:
        message = f"the agent ended the container, with status {ended.exit_status}"
        return Judgement(SlotStatus.AGENT_ERROR, STATUS_FORGED, message)
    if ended.exit_status in ExitStatus.KNOWN:
        judgement = judge(spec, ended.exit_status, ended.ended_at, redactor)
        if ended.disk_was_full and judgement.reason not in {None, DISK_FULL}:
            where = " or ".join(map(str, spec.plan.disks))
            message = f"the disk was full while it ran ({where}); without that: {judgement.reason}"
            return Judgement(SlotStatus.INFRA_ERROR, DISK_FULL, message)
        if ended.was_paused and judgement.reason is not None:
            message = f"{WAS_PAUSED}; without that: {judgement.reason}"
            return Judgement(SlotStatus.INFRA_ERROR, CONTAINER_PAUSED, message)
        if ended.out_of_memory and judgement.status is not SlotStatus.COMPLETED:
            limit = spec.plan.runtime["resources"]["memory_bytes"]
            judgement.message = f"{judgement.message}; the memory limit of {limit:,} bytes was hit"
        return judgement
    if ended.was_removed:
        message = "the container was removed from outside; how it ended is not known"
        return Judgement(SlotStatus.INFRA_ERROR, CONTAINER_REMOVED, message)
    if ended.exit_status is None:
        message = f"the container outlived its outer deadline of {spec.deadline_s:g} s"
        if ended.was_paused:
            return Judgement(SlotStatus.INFRA_ERROR, CONTAINER_PAUSED, f"{message}; {WAS_PAUSED}")
        return Judgement(SlotStatus.INFRA_ERROR, "deadline", message)
    if ended.out_of_memory and ended.exit_status in ExitStatus.OF_ENGINE:
        message = "the memory limit killed the container's first process"
        return Judgement(SlotStatus.INFRA_ERROR, "out_of_memory", message)
    if ended.exit_status in ExitStatus.OF_ENGINE:
        message = f"the container was ended from outside (status {ended.exit_status})"
        return Judgement(SlotStatus.INFRA_ERROR, CONTAINER_KILLED, message)
    return _ended_from_within(spec, ended.exit_status)


def _ended_from_within(spec: TrialSpec, exit_status: int) -> Judgement:
    """Judge a trial whose first process ended neither as `trial.sh` does nor from outside."""
    what = f"the container ended with status {exit_status}"
    if not has_begun(spec):
        message = f"{what} before trial.sh began; does the engine see the files in {spec.folder}?"
        return Judgement(SlotStatus.INFRA_ERROR, SCRIPT_FAILED, message)
    message = f"{what}, which only a process in it can have brought about"
    if spec.earlier is not None:
        return Judgement(SlotStatus.GRADE_ERROR, GradeReason.GRADER_EXIT_NONZERO, message)
    return Judgement(SlotStatus.AGENT_ERROR, STATUS_FORGED, message)


def evidence_of(spec: TrialSpec, redactor: Redactor) -> Evidence:
    """Collects the evidence of a trial, or refers to what is stored of one judged again."""
    if spec.earlier is None:
        return Evidence(spec, redactor)
    return RecalledEvidence(spec, redactor, spec.earlier)


def _phases(spec: TrialSpec, ended: Ended) -> dict[str, Phase]:
    """The phases that ran. Where `trial.sh` did not end the trial, its own note is not trusted.

    What the host noted between the two starts of a container is: no container can change it.
    """
    noted = read_phases(spec) if _is_trial_shs(ended) else parse_phases(ended.first_phases or "")
    if spec.earlier is None:
        return noted
    grader = {"grader": noted["grader"]} if "grader" in noted else {}
    return before_grading(spec.earlier) | grader


def _logged_phases(spec: TrialSpec, ended: Ended, phases: dict[str, Phase]) -> list[str]:
    """The phases that may have logs: all of them, unless it is known which ones ran."""
    is_known = spec.earlier is not None or _is_trial_shs(ended)
    return list(phases if phases and is_known else spec.plan.phases)


def _is_trial_shs(ended: Ended) -> bool:
    """True where `trial.sh` itself ended the trial."""
    return ended.exit_status in ExitStatus.KNOWN and not ended.forged


def redactor_of(spec: TrialSpec) -> Redactor:
    """Takes out the values from outside, but for those that a valid record says anyway."""
    names = canonical.dumps([spec.ids.as_json(), spec.plan.benchmark])
    return Redactor(spec.plan.environment, (names, _record_words()))


@cache
def _record_words() -> str:
    names = (PREDICTION_SCHEMA, SCORE_SCHEMA, EVIDENCE_SCHEMA, RESULT_SCHEMA)
    return canonical.dumps([schema.load(name) for name in names])


def infra_error(spec: TrialSpec, begun: str, reason: str, message: str) -> TrialResult:
    redactor = redactor_of(spec)
    evidence = Evidence(spec, redactor)
    evidence.collect_inputs()
    evidence.stamp(trust.no_facts(spec, message), None)
    # The machine's clock may have been set back meanwhile.
    now = max(begun, clock.utc_now())
    return TrialResult(
        ids=spec.ids,
        schedule_idx=spec.slot.schedule_idx,
        slot_commit_id=spec.slot_commit_id,
        attempt=spec.attempt,
        status=SlotStatus.INFRA_ERROR,
        reason=reason,
        message=redactor.message(message),
        started_at=begun,
        ended_at=now,
        duration_ms=0,
        container=spec.container,
        image_ref=spec.image_ref,
        image_id=spec.image_id,
        evidence=(evidence.record(now, None, 0),),
        artifacts=tuple(evidence.artifacts.values()),
    )
