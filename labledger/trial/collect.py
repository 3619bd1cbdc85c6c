"""From an ended container to a validated result: statuses, rows, metrics, evidence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from labledger import canonical, clock, faults, schema
from labledger.records import Phase, SlotStatus, TrialResult
from labledger.trial import contract, metrics, outputs
from labledger.trial.contract import ExitStatus, TrialSpec
from labledger.trial.evidence import EVIDENCE_SCHEMA, RESULT_SCHEMA, Evidence
from labledger.trial.grading import PREDICTION_SCHEMA, SCORE_SCHEMA, Judgement, judge
from labledger.trial.redact import Redactor

CONTAINER_KILLED = "container_killed"
"""The reason of a trial whose container was ended from outside."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended."""

    exit_status: int | None
    """None when the host's outer deadline ended it."""
    started_at: str
    ended_at: str
    duration_ms: int
    out_of_memory: bool = False


def collect(spec: TrialSpec, ended: Ended) -> TrialResult:
    """Read what the container produced. Nothing in here needs the container any more."""
    redactor = redactor_of(spec)
    evidence = Evidence(spec, redactor)
    judgement = _judge(spec, ended, redactor)
    phases = read_phases(spec) if ended.exit_status in ExitStatus.KNOWN else {}
    evidence.collect_inputs()
    faults.reached("reading_outputs", spec.slot.schedule_idx)
    evidence.collect_logs(list(phases) or list(spec.plan.phases))
    evidence.collect_rejected(judgement)
    result = evidence.collect_result()
    events, dropped = evidence.collect_events()
    evidence.collect_workspace()
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
    if ended.exit_status in ExitStatus.KNOWN:
        judgement = judge(spec, ended.exit_status, ended.ended_at, redactor)
        if ended.out_of_memory and judgement.status is not SlotStatus.COMPLETED:
            limit = spec.plan.runtime["resources"]["memory_bytes"]
            judgement.message = f"{judgement.message}; the memory limit of {limit:,} bytes was hit"
        return judgement
    if ended.exit_status is None:
        message = f"the container outlived its outer deadline of {spec.deadline_s:g} s"
        return Judgement(SlotStatus.INFRA_ERROR, "deadline", message)
    if ended.out_of_memory:
        message = "the memory limit killed the container's first process"
        return Judgement(SlotStatus.INFRA_ERROR, "out_of_memory", message)
    message = f"the container was ended from outside (status {ended.exit_status})"
    return Judgement(SlotStatus.INFRA_ERROR, CONTAINER_KILLED, message)


def redactor_of(spec: TrialSpec) -> Redactor:
    """Takes out the values from outside, but for those that a valid record says anyway."""
    names = canonical.dumps([spec.ids.as_json(), spec.plan.benchmark])
    return Redactor(spec.plan.environment, (names, _record_words()))


@cache
def _record_words() -> str:
    names = (PREDICTION_SCHEMA, SCORE_SCHEMA, EVIDENCE_SCHEMA, RESULT_SCHEMA)
    return canonical.dumps([schema.load(name) for name in names])


def read_phases(spec: TrialSpec) -> dict[str, Phase]:
    """What `trial.sh` noted of its phases; empty where it could not write its note.

    To be trusted only where `trial.sh` ended the trial: before, the agent can write there too.
    """
    content, _ = outputs.read_leniently(
        spec.folder / "state", contract.PHASES_FILE, outputs.PHASES_CAP
    )
    found: dict[str, Phase] = {}
    for line in (content or b"").decode("ascii", "replace").splitlines():
        fields = line.split()
        if len(fields) == 5 and fields[0] in contract.PHASE_NAMES:
            try:
                status, start, end, timed_out = (int(text) for text in fields[1:])
            except ValueError:
                continue
            found[fields[0]] = Phase(status, max(0, end - start) * 10, timed_out == 1)
    return found


def infra_error(spec: TrialSpec, begun: str, reason: str, message: str) -> TrialResult:
    redactor = redactor_of(spec)
    evidence = Evidence(spec, redactor)
    evidence.collect_inputs()
    now = clock.utc_now()
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
