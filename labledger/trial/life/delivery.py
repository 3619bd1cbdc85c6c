"""Delivered trials: the running container gets its grader's files when its agent has ended.

`trial.sh` reports the end of the agent in `state/agent_ended` and waits. The host stores the agent
part with the declared artifacts, puts the grader's files in place and writes `in/go`, which
containers cannot write. A coordinator that takes over finds in these files which step is next, and
every step can be repeated.
The agent can write the report too. So the host believes a report only when no other process runs,
unless processes are kept, and `trial.sh` ends a trial whose report was believed before its agent
had ended.
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
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.collect import redactor_for
from labledger.trial.contract import ExitStatus
from labledger.trial.evidence.container_exit import ContainerExit
from labledger.trial.evidence.declared_artifacts import TakenArtifacts, take_artifacts
from labledger.trial.evidence.tampering import inspect_changes
from labledger.trial.free_disk_space import trial_stays
from labledger.trial.life import inputs, model_access, trial_networks
from labledger.trial.life.container_start import monotonic_start
from labledger.trial.life.start_limiter import TrialContext
from labledger.trial.life.two_part_trials import AgentPart, combined_exit
from labledger.trial.output_folders import artifact_source, isolation_of

_CHECK_AGAIN_S = 1.0
"""Seconds until a report is checked again that was not believed and has not changed."""

_LOOKS_FOR_PROCESSES = 12
_BETWEEN_LOOKS_S = 0.05

_WAITING_PROCESSES = 2
"""How many processes a waiting container has at most: `trial.sh` and its `sleep`."""


def deliver_and_wait(spec: AttemptSpec, context: TrialContext, container: str) -> int | None:
    """Deliver the grader's files to a trial's container when they are due, and wait for its end.

    `container` is its id. Return its exit status, or None after the deadline of the part that runs.
    Raises `OutputUnreadable` or `DiskFull` if this host cannot deliver the files; the container
    waits on, and the call can be repeated. Raises `WaitAbandoned`, `EngineUnavailable` and
    `NoSuchContainer` as well.
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
    """The report of a trial that its agent has ended, which the agent could have written too."""

    def __init__(self, spec: AttemptSpec, context: TrialContext, container: str) -> None:
        self._spec, self._context, self._container = spec, context, container
        self._seen: tuple[int, ...] = ()
        self._check_at = 0.0
        self.phases = ""
        """The phases in a report that is believed, in the format of `trial.sh`."""
        self.written_at = 0.0
        """When a report that is believed was written, in seconds since 1970."""
        self.unchecked: str | None = None
        """Why the engine could not list the container's processes, if so."""

    def is_believed(self) -> bool:
        """Return True if the agent has ended according to the report, and to the engine."""
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
        """Return what changes when the report is written again; () without a report."""
        try:
            status = os.lstat(self._spec.folder / "state" / contract.AGENT_ENDED_FILE)
        except OSError:
            return ()
        return (status.st_ino, status.st_ctime_ns, status.st_size)

    def _is_alone(self) -> bool:
        """Return True if no process of the agent runs, or if they are to go on."""
        if self._spec.keeps_processes:
            return True
        engine = self._context.engine
        try:
            is_alone = len(engine.processes(self._container)) <= _WAITING_PROCESSES
            # Since the report was read, the agent may have ended, and `trial.sh` replaced it.
            return is_alone and self._identity() == self._seen
        except NoSuchContainer:
            raise
        except ProcessEnded:
            # Hardly one of a waiting `trial.sh`, which starts no more than a `sleep` at a time.
            return False
        except ContainerFailed as error:
            # An engine without `ps` must not keep the trial waiting: `trial.sh` checks as well.
            self.unchecked = error.message
            return engine.inspect_existing(self._container).status == "running"


def _store_agent_part(
    spec: AttemptSpec, context: TrialContext, container: str, report: _Report
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
    spec: AttemptSpec, context: TrialContext, state: ContainerState
) -> TakenArtifacts | None:
    """Take the declared artifacts of a running container, as evidence; None if none are declared.

    The trial is graded without them as well: a process that the agent left may change a file while
    it is read, and the engine then breaks off.
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


def _has_processes_left(spec: AttemptSpec, context: TrialContext, container: str) -> bool | None:
    """Return whether processes of an ended agent run on; None if it is not known.

    Those that stored its output end shortly after it, and a waiting `trial.sh` starts a new `sleep`
    at least twice a second: only other processes are there at every look.
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


def _deliver(spec: AttemptSpec, context: TrialContext, container: str) -> None:
    """Put the grader's files in place and let `trial.sh` continue.

    An agent that still runs cannot see a file of the grader before `trial.sh` can know of it: an
    agent that ends after the host has believed that it had ended gets no score.
    """
    (spec.folder / "in" / contract.AGENT_ENDED_FILE).touch()
    model_access.close(spec, context.gateway)
    trial_networks.change_network(spec, context, container)
    inputs.deliver(spec, context.engine)
    fault_points.fault_point("after_unseal", spec.slot.schedule_idx)
    context.limiter.require_starting_allowed()
    write_file(spec.folder / "in" / contract.GO_FILE, clock.utc_now().encode())


def delivered_at(spec: AttemptSpec) -> str | None:
    """Return when a trial's grader was told to go, or None if it was not."""
    try:
        return (spec.folder / "in" / contract.GO_FILE).read_text("utf-8")
    except FileNotFoundError:
        return None


def exit_of(spec: AttemptSpec, state: ContainerState) -> ContainerExit:
    """Return how a delivered trial ended. Its duration excludes the time of waiting.

    Its container must have stopped. The agent forged the end if the grader was said to have run
    and was not told to go, or if the agent was reported to have ended otherwise than it did.
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


def _confirms(spec: AttemptSpec, state: ContainerState, agent_part: AgentPart) -> bool:
    """Return True unless `trial.sh` recorded other phases at its end than were reported before."""
    fields = phase_fields(spec.folder)
    fields.pop("grader", None)
    if state.exit_status not in ExitStatus.ALL or not fields:
        return True
    return phase_lines(fields) == agent_part.phases
