"""Going on with an attempt that an earlier coordinator began: wait, collect, or begin anew.

A container is never run a second time silently: where its agent may have run before and the slot
is run again, the reason is noted before anything is cleared away.
"""

from __future__ import annotations

import time
from datetime import timedelta

from labledger import clock
from labledger.trial import traces
from labledger.trial.collect import Ended, read_phases
from labledger.trial.container import ContainerFailed, ContainerState, Engine, NoSuchContainer
from labledger.trial.contract import ExitStatus, TrialSpec
from labledger.trial.gate import thread_gate

_FOLDER_DELETED = "its trial folder was deleted, with what its agent had done"
_BOTH_GONE = "its container and its trial folder are gone; its agent may have run before"

_SLACK_S = 60.0
"""How much longer than its phases a trial may take before the engine's clock is not believed."""


def adopt(engine: Engine, spec: TrialSpec) -> Ended | None:
    """Wait for a container that an earlier coordinator began; None where the slot is to be run."""
    if not spec.may_exist:
        return None
    state = engine.inspect(spec.container)
    if state is None:
        return _without_container(spec)
    if state.has_started and has_output(spec):
        return _await(engine, spec, state)
    if state.has_started:
        traces.note(spec, _FOLDER_DELETED)
    engine.remove(state.container_id)
    return None


def has_output(spec: TrialSpec) -> bool:
    """True while the folder is there in which a trial's container leaves its results."""
    return (spec.folder / "out").is_dir()


def _without_container(spec: TrialSpec) -> Ended | None:
    """What is left of an attempt whose container is not there, if it ever was."""
    if traces.is_unstarted(spec.folder):
        return None
    if has_output(spec):
        return Ended(None, *_until_now(time.monotonic()), was_removed=True)
    traces.note(spec, _BOTH_GONE)
    return None


def _await(engine: Engine, spec: TrialSpec, state: ContainerState) -> Ended:
    if state.has_ended:
        return _as_the_engine_says(spec, state, state.exit_status)
    begun = time.monotonic()
    try:
        with thread_gate().place():
            exit_status = thread_gate().wait(engine, spec)
    except NoSuchContainer:
        return Ended(None, *_until_now(begun), was_removed=True)
    found = engine.inspect(spec.container)
    if found is not None and found.has_ended:
        return _as_the_engine_says(spec, found, found.exit_status)
    if exit_status is not None:
        # It was removed as soon as it had ended, or is being removed.
        return Ended(exit_status, *_until_now(begun))
    end(engine, spec)
    return _as_the_engine_says(spec, engine.inspect(spec.container) or state, None)


def end(engine: Engine, spec: TrialSpec) -> None:
    """End a container that outlived its deadline. One that cannot be ended is left behind."""
    try:
        engine.kill(spec.container)
    except ContainerFailed:
        return  # Its result says that it outlived its deadline; its removal will tell the rest.


def _until_now(begun: float) -> tuple[str, str, int]:
    """Start, end and duration of what was watched since the monotonic time `begun`."""
    lasted = timedelta(seconds=time.monotonic() - begun)
    now = clock.parse(clock.utc_now())
    return clock.iso(now - lasted), clock.iso(now), round(lasted.total_seconds() * 1000)


def _as_the_engine_says(spec: TrialSpec, state: ContainerState, exit_status: int | None) -> Ended:
    """The end of a container by the engine's word, but for times that its phases contradict."""
    started = clock.parse(state.started_at)
    lasted = max(timedelta(0), clock.parse(state.finished_at) - started)
    if exit_status in ExitStatus.KNOWN:
        # The engine's times are those of a clock that may have been set meanwhile; the phases' are
        # counted from the machine's start.
        phases = sum(phase.duration_ms for phase in read_phases(spec).values())
        shortest = timedelta(milliseconds=phases)
        if not shortest <= lasted <= shortest + timedelta(seconds=_SLACK_S):
            lasted = shortest
    duration_ms = round(lasted.total_seconds() * 1000)
    ended_at = clock.iso(started + lasted)
    return Ended(exit_status, clock.iso(started), ended_at, duration_ms, state.out_of_memory)
