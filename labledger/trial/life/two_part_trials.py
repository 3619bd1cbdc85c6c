"""Two-part trials: a container that is started a second time for its grader.

With a grader that is sealed until the agent has ended (`after_agent`), the container stops after
the agent part, so that the engine guarantees that no process of the agent is left. The grader's
files are then put in place, and the container is started again for the grader part. The outcome of
the agent part is stored first, in `first_part.json` on the host, where no container can change it.
A later coordinator finds there that the grader part is due.
"""

from __future__ import annotations

from dataclasses import replace

from labledger import fault_points
from labledger.engine.engine_errors import ContainerFailed, ProgramMissing, retry_engine_errors
from labledger.engine.engine_facts import ContainerState
from labledger.experiment.grading import Sealing
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.contract import ExitStatus
from labledger.trial.evidence.container_exit import (
    AgentPart,
    ContainerExit,
    combined_exit,
    inspect_agent_part,
)
from labledger.trial.life import delivery, inputs, trial_networks
from labledger.trial.life.container_start import kill_overdue
from labledger.trial.life.trial_context import TrialContext

_START_FAILED_STATUSES = frozenset({126, 127})
"""Exit statuses that the engine sets if the container's command is missing or cannot be run."""
_KILLED_STATUSES = ExitStatus.OF_ENGINE - {125, 126, 127}
"""Exit statuses of a running container that was killed from outside."""


def grading_is_due(spec: AttemptSpec, state: ContainerState) -> bool:
    """Return True if a stopped container is to be started again for its grader.

    The agent can forge the exit status on which this depends; `run_grader_part_if_due` checks it.
    """
    if spec.sealing is not Sealing.AFTER_AGENT:
        return False
    agent_part = AgentPart.read(spec)
    if agent_part is None:
        return state.exit_status == ExitStatus.AGENT_ENDED
    return state.started_at == agent_part.engines_start


def run_grader_part_if_due(
    spec: AttemptSpec, context: TrialContext, state: ContainerState, part_start: float
) -> ContainerExit:
    """Run the grader part if it is due, and return how the trial ended.

    The container must have stopped. `part_start` is the monotonic time at which the part that has
    ended began.

    Raises `OSError` or `ContainerFailed` if this host cannot start the grader part; the container
    stays, and the call can be repeated. Raises `WaitAbandoned` and `EngineUnavailable` while it
    waits for the grader part.
    """
    if spec.sealing is Sealing.DELIVERED:
        return delivery.exit_of(spec, state)
    if spec.sealing is not Sealing.AFTER_AGENT:
        return ContainerExit.of(state, state.exit_status, spec.kind.exit_statuses)
    agent_part = AgentPart.read(spec)
    if agent_part is None:
        ended, agent_part = inspect_agent_part(context.engine, spec, state)
        if agent_part is None:
            return ended
        fault_points.fault_point("before_unseal", spec.slot.schedule_idx)
        was_full = context.full_disks.were_full_since(spec.plan.disks, part_start)
        agent_part = replace(agent_part, disk_was_full=was_full)
        agent_part.write(spec)
        fault_points.fault_point("agent_part_stored", spec.slot.schedule_idx)
    if state.started_at == agent_part.engines_start:
        return _run_grader_part(spec, context, state.container_id, agent_part)
    return _combine_parts(
        agent_part, ContainerExit.of(state, state.exit_status, ExitStatus.GRADER_PART)
    )


def _run_grader_part(
    spec: AttemptSpec, context: TrialContext, container: str, agent_part: AgentPart
) -> ContainerExit:
    """Put the grader's files in place, start the container again and wait for its end."""
    engine = context.engine
    trial_networks.change_network(spec, context, container)
    inputs.unseal(spec, agent_part.phases)
    fault_points.fault_point("after_unseal", spec.slot.schedule_idx)

    def start() -> None:
        if engine.inspect_existing(container).started_at == agent_part.engines_start:
            engine.start(container)

    try:
        retry_engine_errors(start)
    except ContainerFailed as error:
        noted = engine.inspect_existing(container).exit_status
        if not (isinstance(error, ProgramMissing) or noted in _START_FAILED_STATUSES):
            raise
        refusal = f"the container could not be started again for its grader: {error.message}"
        grader_part = ContainerExit(
            None, agent_part.ended_at, agent_part.ended_at, 0, container, start_refused=refusal
        )
        return _combine_parts(agent_part, grader_part)
    fault_points.fault_point("grader_running", spec.slot.schedule_idx)
    status = context.limiter.wait(engine, spec, container, spec.deadline_of("grader"))
    if status is None:
        kill_overdue(engine, container)
    state = engine.inspect_existing(container)
    return _combine_parts(agent_part, ContainerExit.of(state, status, ExitStatus.GRADER_PART))


def _combine_parts(agent_part: AgentPart, grader_part: ContainerExit) -> ContainerExit:
    """Return both parts as one exit; say so if the second start could not run the grader."""
    refusal, status = grader_part.start_refused, grader_part.exit_status
    if status is not None and status not in ExitStatus.ALL | _KILLED_STATUSES:
        # `trial.sh` did not run to its end: the agent may have destroyed files that it needs.
        refusal = f"the container could not run its grader: its second start ended with {status}"
    return replace(combined_exit(agent_part, grader_part), start_refused=refusal)
