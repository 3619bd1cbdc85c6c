"""From a container that has stopped to how its trial ended, by way of a second start if need be.

With a grader that is sealed until the agent has ended, a trial has two parts: its container stops
when the agent has, so that the engine vouches for the death of all that the agent started, and is
started again when the grader's files are in place. What the first part came to is noted on the
host, where no container can change it; the note also says that there is a second part.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from labledger import canonical, faults
from labledger.store import write_atomically
from labledger.trial import disks, sealing
from labledger.trial.container import ContainerFailed, ContainerState, Engine
from labledger.trial.contract import ExitStatus, Sealing, TrialSpec
from labledger.trial.ended import Ended
from labledger.trial.gate import thread_gate
from labledger.trial.phases import phase_fields, phase_lines
from labledger.trial.starting import end, patiently
from labledger.trial.tampering import Seen, look

_NOT_STARTED = frozenset({126, 127})
"""What the engine notes of a container whose first command is not there or no program."""
_FROM_OUTSIDE = ExitStatus.OF_ENGINE - {125, 126, 127}
"""Statuses that say that somebody ended a container that ran."""


@dataclass(frozen=True, slots=True)
class _FirstPart:
    """What the agent's part of a trial came to."""

    engines_start: str
    """When the engine says that it began, which tells the two parts apart."""
    started_at: str
    ended_at: str
    duration_ms: int
    out_of_memory: bool
    phases: str
    """The phases so far, as `trial.sh` notes them."""
    seen: Seen
    disk_was_full: bool

    @classmethod
    def read(cls, spec: TrialSpec) -> Self | None:
        """The note of an earlier coordinator, or None where there is none."""
        try:
            found = json.loads(_note(spec).read_bytes())
        except FileNotFoundError:
            return None
        suspected = tuple(found["seen"].pop("suspected"))
        return cls(**found | {"seen": Seen(**found["seen"], suspected=suspected)})

    def write(self, spec: TrialSpec) -> None:
        write_atomically(_note(spec), canonical.dump_bytes(asdict(self)))


def _note(spec: TrialSpec) -> Path:
    return spec.folder / "first_part.json"


def is_outstanding(spec: TrialSpec, state: ContainerState) -> bool:
    """True when a stopped container is to be started again, unless the agent forged its status."""
    if spec.plan.sealing is not Sealing.AFTER_AGENT:
        return False
    first = _FirstPart.read(spec)
    if first is None:
        return state.exit_status == ExitStatus.AGENT_ENDED
    return state.started_at == first.engines_start


def go_on(engine: Engine, spec: TrialSpec, state: ContainerState, since: float) -> Ended:
    """How a trial ended whose container has stopped. Grades it first, where that is outstanding.

    `since` is when its part began, by the monotonic clock.

    Raises `OSError` and `ContainerFailed` where the host cannot do its part: the container is
    kept, and this can be asked again. Raises `Abandoned` and `EngineUnavailable` as waiting does.
    """
    if spec.plan.sealing is not Sealing.AFTER_AGENT:
        return Ended.of(state, state.exit_status, spec.exit_statuses)
    first = _FirstPart.read(spec)
    if first is None:
        seen = look(engine, spec, state.container_id, "before_grading")
        ended = replace(Ended.of(state, state.exit_status, ExitStatus.BEFORE_GRADING), seen=seen)
        if state.exit_status != ExitStatus.AGENT_ENDED:
            return ended
        if "agent" not in phase_fields(spec):
            return replace(ended, forged=True)
        faults.reached("before_unseal", spec.slot.schedule_idx)
        was_full = disks.were_full(spec.plan.disks, since)
        first = _noted(spec, state, replace(ended, disk_was_full=was_full), seen)
    if state.started_at == first.engines_start:
        return _graded(engine, spec, state.container_id, first)
    return _both(first, Ended.of(state, state.exit_status, ExitStatus.OF_GRADING))


def _noted(spec: TrialSpec, state: ContainerState, ended: Ended, seen: Seen) -> _FirstPart:
    """Note durably what the agent's part came to, before the grader's can change any of it."""
    first = _FirstPart(
        state.started_at,
        ended.started_at,
        ended.ended_at,
        ended.duration_ms,
        ended.out_of_memory,
        phase_lines(phase_fields(spec)),
        seen,
        ended.disk_was_full,
    )
    first.write(spec)
    return first


def _graded(engine: Engine, spec: TrialSpec, container: str, first: _FirstPart) -> Ended:
    """Put the grader's files in place, start the second part and wait for its end."""
    sealing.unseal(spec, first.phases)
    faults.reached("after_unseal", spec.slot.schedule_idx)

    def start() -> None:
        if engine.inspect_one(container).started_at == first.engines_start:
            engine.start(container)

    try:
        patiently(start)
    except ContainerFailed as error:
        if engine.inspect_one(container).exit_status not in _NOT_STARTED:
            raise
        refused = f"the container could not be started again for its grader: {error.message}"
        last = Ended(None, first.ended_at, first.ended_at, 0, container, refused=refused)
        return _both(first, last)
    faults.reached("grader_running", spec.slot.schedule_idx)
    status = thread_gate().wait(engine, spec, container)
    if status is None:
        end(engine, container)
    state = engine.inspect_one(container)
    return _both(first, Ended.of(state, status, ExitStatus.OF_GRADING))


def _both(first: _FirstPart, last: Ended) -> Ended:
    """The two parts as one trial. Its duration is theirs, without what it waited in between."""
    refused, status = last.refused, last.exit_status
    if status is not None and status not in ExitStatus.KNOWN | _FROM_OUTSIDE:
        # No `trial.sh` ran, or not to its end: the agent may have destroyed what it needs for that.
        refused = f"the container could not run its grader: its second start ended with {status}"
    return replace(
        last,
        started_at=first.started_at,
        duration_ms=first.duration_ms + last.duration_ms,
        out_of_memory=first.out_of_memory or last.out_of_memory,
        refused=refused,
        disk_was_full=first.disk_was_full,
        first_phases=first.phases,
        seen=first.seen,
    )
