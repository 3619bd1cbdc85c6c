"""Adopt an attempt that an earlier coordinator started: wait for it, collect it, or start again.

An agent is never run a second time silently: if it may have run before and the attempt is started
again, the reason is recorded durably before anything is removed. Used by `worker` before it runs
a new container.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

from labledger import clock
from labledger.docker.engine import ContainerFailed, ContainerState, NoSuchContainer
from labledger.trial import attempt_notes
from labledger.trial.contract import AttemptSpec, ExitStatus
from labledger.trial.evidence.container_exit import ContainerExit
from labledger.trial.life import container_start, two_part_trials
from labledger.trial.life.container_identity import find_container
from labledger.trial.life.context import TrialContext
from labledger.trial.life.uncollected import output_unreadable_error
from labledger.trial.phase_notes import read_phases

_FOLDER_DELETED = "its trial folder was deleted, with what its agent had done"
_BOTH_GONE = "its container and its trial folder are gone; its agent may have run before"

_NOTED_WITHIN_S = 1.0
"""Seconds that the engine may take to record that a container has started."""

_SLACK_MS = 60_000
"""How many ms longer than its phases a trial may take before the engine's times are rejected."""


def adopt(spec: AttemptSpec, context: TrialContext) -> ContainerExit | None:
    """Wait for a container that an earlier coordinator created, and return how it ended.

    Return None if the attempt is to be run in a new container.
    """
    if not spec.container_may_exist:
        return None
    state = find_container(context.engine, spec)
    if state is None:
        return _without_container(spec, context)
    if state.has_started and folder_exists(spec):
        return _wait_for_container(spec, context, state)
    if state.has_started and spec.runs_agent:
        context.record_restart(spec, _FOLDER_DELETED)
    container_start.remove_container(spec, context, state.container_id)
    return None


def folder_exists(spec: AttemptSpec) -> bool:
    """Return True if the folder with the outputs of an attempt exists."""
    return (spec.folder / "out").is_dir()


def _without_container(spec: AttemptSpec, context: TrialContext) -> ContainerExit | None:
    """Return the exit of an attempt whose container is gone, None if it is to be run again."""
    if attempt_notes.is_marked_not_started(spec.folder) or not spec.runs_agent:
        # Nothing is lost without an agent: the grader's inputs are prepared once more.
        return None
    if folder_exists(spec):
        return ContainerExit(None, *_until_now(time.monotonic()), container_removed=True)
    context.record_restart(spec, _BOTH_GONE)
    return None


def _wait_for_container(
    spec: AttemptSpec, context: TrialContext, state: ContainerState
) -> ContainerExit:
    begun, container = time.monotonic(), state.container_id
    engine, limiter = context.engine, context.limiter
    if state.has_ended:
        if two_part_trials.grading_is_due(spec, state):
            with limiter.running(spec.slot.schedule_idx):
                return finish_adopted(spec, context, container, begun)
        return finish_adopted(spec, context, container, begun)
    try:
        with limiter.reservation():
            exit_status = limiter.wait(engine, spec, container)
            current = engine.inspect(container)
            if current is not None and current.has_ended:
                return finish_adopted(spec, context, container, begun)
    except NoSuchContainer:
        return ContainerExit(None, *_until_now(begun), container_removed=True)
    if exit_status is not None:
        # It was removed as soon as it had ended, or somebody is removing it now.
        was_full = context.full_disks.were_full_since(spec.plan.disks, begun)
        return ContainerExit(exit_status, *_until_now(begun), disk_was_full=was_full)
    container_start.kill_overdue(engine, container)
    return ContainerExit.of(engine.inspect(container) or state, None, ExitStatus.ALL)


def finish_adopted(
    spec: AttemptSpec, context: TrialContext, container: str, begun: float
) -> ContainerExit:
    """Return how a trial ended whose container has stopped, after its grader part if that is due.

    `container` is its id, `begun` the monotonic time at which this coordinator began to wait.
    Raises `OutputUnreadable` or `DiskFull` if this host cannot start the grader part.
    """
    try:
        state = context.engine.inspect_existing(container)
        since = min(begun, _start_of(state))
        ended = two_part_trials.run_grader_part_if_due(spec, context, state, since)
    except NoSuchContainer:
        return ContainerExit(None, *_until_now(begun), container_removed=True)
    except (OSError, ContainerFailed) as error:
        context.full_disks.record_write_error(spec.plan.run_dir, error)
        raise output_unreadable_error(spec, error) from error
    was_full = ended.disk_was_full or context.full_disks.were_full_since(spec.plan.disks, since)
    return _by_its_phases(spec, replace(ended, disk_was_full=was_full))


def _start_of(state: ContainerState) -> float:
    """Return when a container was last started, as a monotonic time.

    It errs on the early side, because the engine records a start only after it has happened. It is
    wrong if the clock was set meanwhile.
    """
    age = clock.parse(clock.utc_now()) - clock.parse(state.started_at)
    return time.monotonic() - age.total_seconds() - _NOTED_WITHIN_S


def _until_now(begun: float) -> tuple[str, str, int]:
    """Return start, end and duration (ms) of the time since the monotonic time `begun`."""
    lasted = timedelta(seconds=time.monotonic() - begun)
    now = clock.parse(clock.utc_now())
    return clock.iso(now - lasted), clock.iso(now), round(lasted.total_seconds() * 1000)


def _by_its_phases(spec: AttemptSpec, ended: ContainerExit) -> ContainerExit:
    """Return the exit with its times corrected if the phases contradict them.

    The engine's times come from a clock that may have been set meanwhile; the phases' times are
    counted from the boot of the machine.
    """
    if ended.exit_status not in ExitStatus.ALL or ended.exit_status_forged:
        return ended
    phases = read_phases(spec).items()
    shortest = sum(phase.duration_ms for name, phase in phases if name in spec.kind.phases)
    if shortest <= ended.duration_ms <= shortest + _SLACK_MS:
        return ended
    ended_at = clock.parse(ended.started_at) + timedelta(milliseconds=shortest)
    return replace(ended, duration_ms=shortest, ended_at=clock.iso(ended_at))
