"""Deliver the grader's files to a running container when its agent has ended.

`trial.sh` reports the end of the agent in `state/agent_ended` and waits. The host stores the agent
part, delivers the files and writes `in/go`, where containers cannot write. A new coordinator finds
the next step in these files, and can repeat every step.
"""

from __future__ import annotations

import os
from dataclasses import replace

from labledger import clock, fault_points
from labledger.engine.engine_errors import ContainerFailed, NoSuchContainer, ProcessEnded
from labledger.engine.engine_facts import ContainerState
from labledger.errors import EngineUnavailable
from labledger.files.durable_files import write_file
from labledger.files.untrusted_files import PHASES_CAP, read_ascii
from labledger.trial import contract
from labledger.trial.attempt_notes import parse_report, phase_fields, phase_lines
from labledger.trial.collect import redactor_for
from labledger.trial.container_spec import ContainerSpec
from labledger.trial.contract import ExitStatus
from labledger.trial.evidence.container_exit import ContainerExit
from labledger.trial.evidence.declared_artifacts import TakenArtifacts, take_artifacts
from labledger.trial.evidence.tampering import inspect_changes
from labledger.trial.free_disk_space import trial_stays
from labledger.trial.life import inputs, model_access, trial_networks
from labledger.trial.life.container_start import monotonic_start
from labledger.trial.life.trial_context import TrialContext
from labledger.trial.life.two_part_trials import AgentPart, combined_exit
from labledger.trial.output_folders import artifact_source, isolation_of

_CHECK_AGAIN_S = 1.0
"""Seconds until an unchanged report that was not believed is checked again."""

_LOOKS_FOR_PROCESSES = 12
_BETWEEN_LOOKS_S = 0.05

_WAITING_PROCESSES = 2
"""The most processes of a waiting container: `trial.sh` and its `sleep`."""


def deliver_and_wait(spec: ContainerSpec, context: TrialContext, container: str) -> int | None:
    """Deliver the grader's files to a trial's container when they are due, and wait for its end.

    `container` is its id. Return its exit status, or None after the deadline of the running part.
    Raises `OutputUnreadable` or `DiskFull` if this host cannot deliver the files. The container
    then keeps waiting, and the call can be repeated. Also raises `WaitAbandoned`,
    `EngineUnavailable` and `NoSuchContainer`.
    """
    engine, limiter = context.engine, context.limiter
    agent_part = AgentPart.read(spec.folder)
    if agent_part is None:
        report = _Report(spec, context, container)
        has_ended, status = limiter.wait_for(
            engine,
            spec,
            container,
            happened=report.is_believed,
            stops_soon=lambda: os.path.lexists(spec.folder / "state" / contract.PHASES_FILE),
            deadline_s=spec.deadline_of("setup", "agent"),
        )
        if not has_ended:
            return status
    with trial_stays(spec, context.full_disks, waits_for_grader=True):
        if agent_part is None:
            _store_agent_part(spec, context, container, report)
        if delivered_at(spec) is None:
            _deliver(spec, context, container)
    fault_points.fault_point("grader_running", spec.slot.schedule_idx)
    return limiter.wait(engine, spec, container, deadline_s=spec.deadline_of("grader"))


class _Report:
    """A report that a trial's agent has ended. The agent may have written it.

    The host believes it only if no other process runs, unless processes are kept. If a report was
    believed before the agent had ended, `trial.sh` ends the trial.
    """

    def __init__(self, spec: ContainerSpec, context: TrialContext, container: str) -> None:
        self._spec, self._context, self._container = spec, context, container
        self._seen: tuple[int, ...] = ()
        self._check_at = 0.0
        self.phases = ""
        """The phases in a believed report, in the format of `trial.sh`."""
        self.written_at = 0.0
        """When a believed report was written, in seconds since 1970."""
        self.unchecked: str | None = None
        """Why the engine could not list the container's processes; None if it could."""

    def is_believed(self) -> bool:
        """Return whether the report and the engine agree that the agent has ended."""
        folder = self._spec.folder / "state"
        seen = self._identity()
        if not seen or (seen == self._seen and clock.monotonic() < self._check_at):
            return False
        self._seen, self._check_at = seen, clock.monotonic() + _CHECK_AGAIN_S
        phases = parse_report(read_ascii(folder, contract.AGENT_ENDED_FILE, PHASES_CAP))
        if phases is None or not self._is_alone():
            return False
        # No process can set the ctime of a file.
        self.phases, self.written_at = phases, seen[1] / 1e9
        return True

    def _identity(self) -> tuple[int, ...]:
        """Return an identity that changes when the report is written again; () without a report."""
        try:
            status = os.lstat(self._spec.folder / "state" / contract.AGENT_ENDED_FILE)
        except OSError:
            return ()
        return (status.st_ino, status.st_ctime_ns, status.st_size)

    def _is_alone(self) -> bool:
        """Return whether no process of the agent runs. Kept processes may run."""
        if self._spec.keeps_processes:
            return True
        engine = self._context.engine
        try:
            is_alone = len(engine.processes(self._container)) <= _WAITING_PROCESSES
            # Since the report was read, the agent may have ended, and `trial.sh` may have replaced
            # it.
            return is_alone and self._identity() == self._seen
        except NoSuchContainer:
            raise
        except ProcessEnded:
            # It probably belongs to the agent: a waiting `trial.sh` starts only one `sleep` at a
            # time.
            return False
        except ContainerFailed as error:
            # An engine without `ps` must not keep the trial waiting. `trial.sh` checks as well.
            self.unchecked = error.message
            return engine.inspect_existing(self._container).status == "running"


def _store_agent_part(
    spec: ContainerSpec, context: TrialContext, container: str, report: _Report
) -> None:
    """Store the outcome of the agent part durably, before the grader's files arrive."""
    fault_points.fault_point("before_unseal", spec.slot.schedule_idx)
    engine = context.engine
    state = engine.inspect_existing(container)
    changes = inspect_changes(
        engine, isolation_of(spec), container, "before_grading", state, report.phases
    )
    started = clock.parse(state.started_at)
    ended = max(started, clock.of_timestamp(min(report.written_at, clock.unix_time())))
    was_full = context.full_disks.were_full_since(spec.plan.disks, monotonic_start(state))
    context.limiter.require_starting_allowed()
    AgentPart(
        engines_start=state.started_at,
        started_at=clock.iso(started),
        ended_at=clock.iso(ended),
        duration_ms=round((ended - started).total_seconds() * 1000),
        out_of_memory=state.out_of_memory,
        phases=report.phases,
        seen=changes,
        disk_was_full=was_full,
        unchecked_processes=report.unchecked,
        processes_left=_has_processes_left(spec, context, container),
        artifacts=_kept_artifacts(spec, context, state),
    ).write(spec.folder)
    fault_points.fault_point("agent_part_stored", spec.slot.schedule_idx)


def _kept_artifacts(
    spec: ContainerSpec, context: TrialContext, state: ContainerState
) -> TakenArtifacts | None:
    """Take the declared artifacts of a running container as evidence; None if none are declared.

    The trial is graded even without them. A process that the agent left may change a file during
    the reading, and the engine then stops.
    """
    source = artifact_source(spec)
    if not source.declared:
        return None
    try:
        return take_artifacts(context.engine, source, state, redactor_for(spec))
    except NoSuchContainer:
        raise
    except (ContainerFailed, EngineUnavailable) as error:
        context.engine.inspect_existing(state.container_id)  # Raises if the engine is gone.
        return TakenArtifacts((), refused=error.message)


def _has_processes_left(spec: ContainerSpec, context: TrialContext, container: str) -> bool | None:
    """Return whether processes of an ended agent are still running, or None if unknown.

    Processes that stored its output end soon, and a waiting `trial.sh` starts a new `sleep` at
    least twice a second. Only other processes are present at every look.
    """
    if not spec.keeps_processes:
        return None
    try:
        lasting = context.engine.processes(container)
        for _ in range(_LOOKS_FOR_PROCESSES):
            if len(lasting) <= 1:
                return False
            clock.sleep(_BETWEEN_LOOKS_S)
            lasting &= context.engine.processes(container)
    except NoSuchContainer:
        raise
    except ContainerFailed:
        return None
    return len(lasting) > 1


def _deliver(spec: ContainerSpec, context: TrialContext, container: str) -> None:
    """Put the grader's files in place and let `trial.sh` continue.

    A note comes first. If the agent still runs then, `trial.sh` finds the note at the agent's end,
    and the trial gets no score.
    """
    (spec.folder / "in" / contract.AGENT_ENDED_FILE).touch()
    model_access.close(spec, context.gateway)
    trial_networks.change_network(spec, context, container)
    inputs.deliver(spec, context.engine)
    fault_points.fault_point("after_unseal", spec.slot.schedule_idx)
    context.limiter.require_starting_allowed()
    write_file(spec.folder / "in" / contract.GO_FILE, clock.utc_now().encode())


def delivered_at(spec: ContainerSpec) -> str | None:
    """Return when a trial's grader was allowed to begin, or None if it was not."""
    try:
        return (spec.folder / "in" / contract.GO_FILE).read_text("utf-8")
    except FileNotFoundError:
        return None


def exit_of(spec: ContainerSpec, state: ContainerState) -> ContainerExit:
    """Return how a delivered trial ended. Its duration excludes the time of waiting.

    Its container must have stopped. The agent forged the end if the report of the agent's end
    differs from what happened, or if the grader ran without permission.
    """
    agent_part = AgentPart.read(spec.folder)
    if agent_part is None:
        return ContainerExit.of(state, state.exit_status, ExitStatus.NOT_GRADED)
    go = delivered_at(spec)
    expected = ExitStatus.NOT_GRADED if go is None else ExitStatus.AFTER_DELIVERY
    ended = ContainerExit.of(state, state.exit_status, expected)
    elapsed = clock.parse(ended.ended_at) - clock.parse(go or ended.ended_at)
    grader_ms = max(0, round(elapsed.total_seconds() * 1000))
    combined = combined_exit(agent_part, replace(ended, duration_ms=grader_ms))
    if ended.exit_status_forged or not _confirms(spec, state, agent_part):
        return replace(combined, exit_status_forged=True, agent_part_phases=None)
    return combined


def _confirms(spec: ContainerSpec, state: ContainerState, agent_part: AgentPart) -> bool:
    """Return whether the phases that `trial.sh` recorded at its end agree with the report."""
    fields = phase_fields(spec.folder)
    fields.pop("grader", None)
    if state.exit_status not in ExitStatus.ALL or not fields:
        return True
    return phase_lines(fields) == agent_part.phases
