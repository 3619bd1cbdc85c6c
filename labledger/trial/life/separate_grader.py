"""Grade a trial in a second container, which gets only artifacts of the agent's container.

When the agent's container has stopped, the declared artifacts are taken, stored, and named in
`first_part.json`. From then on, the trial does not need that container. The grader's container
(`grader_spec`) can be replaced, because its inputs are durable.
"""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from labledger import clock, fault_points
from labledger.engine.engine import Engine
from labledger.engine.engine_errors import ContainerNameTaken, NoSuchContainer
from labledger.engine.engine_facts import ContainerState
from labledger.trial import attempt_notes
from labledger.trial.collect import redactor_for
from labledger.trial.container_spec import ContainerSpec
from labledger.trial.contract import ExitStatus
from labledger.trial.evidence.container_exit import ContainerExit
from labledger.trial.evidence.declared_artifacts import take_artifacts
from labledger.trial.life import container_start, inputs, model_access, trial_networks
from labledger.trial.life.container_start import find_container, name_taken_error
from labledger.trial.life.trial_context import TrialContext
from labledger.trial.life.two_part_trials import (
    AgentPart,
    combined_exit,
    inspect_agent_part,
    wait_for_grader,
)
from labledger.trial.output_folders import artifact_source
from labledger.trial.trial_kinds import GraderPart

_MAX_CONTAINERS = 3
"""How many grader's containers of a trial may disappear while one coordinator waits for them."""

_GRADER_GONE = "its grader's container was removed; the grader runs again on the same artifacts"


def grader_spec(spec: ContainerSpec, agent_part: AgentPart | None = None) -> ContainerSpec:
    """Return the description of the grader's container of an attempt.

    Without `agent_part`, it only identifies the container.
    """
    kind = GraderPart()
    if agent_part is not None:
        kind = GraderPart(agent_part.phases, agent_part.artifacts)
    return replace(spec, kind=kind, part="grader")


def is_due(spec: ContainerSpec) -> bool:
    """Return whether an earlier coordinator has stored the agent part of a separate trial.

    The agent's container is not needed afterwards.
    """
    if not spec.has_grader_container or attempt_notes.is_marked_not_started(spec.folder):
        return False
    return AgentPart.read(spec.folder) is not None


def grade_if_due(
    spec: ContainerSpec, context: TrialContext, state: ContainerState, part_start: float
) -> ContainerExit:
    """Take the artifacts, run the grader's container, and return how the trial ended.

    If the trial is not graded, return how the agent's container ended. `state` describes that
    container, which has stopped. `part_start` is the monotonic time of its start.

    Raises `OSError` or `ContainerFailed` if this host cannot take the artifacts or run the grader.
    The call can be repeated. Raises `NoSuchContainer` if the agent's container is gone,
    `WaitAbandoned`, and `EngineUnavailable`.
    """
    agent_part = AgentPart.read(spec.folder)
    if agent_part is None:
        ended, agent_part = inspect_agent_part(spec, context, state, part_start)
        if agent_part is None:
            return ended
        model_access.close(spec, context.gateway)
        fault_points.fault_point("before_artifacts", spec.slot.schedule_idx)
        artifacts = take_artifacts(context.engine, artifact_source(spec), state, redactor_for(spec))
        if artifacts.refused is not None:
            return replace(ended, artifacts=artifacts)
        fault_points.fault_point("after_artifacts", spec.slot.schedule_idx)
        agent_part = replace(agent_part, artifacts=artifacts)
        agent_part.write(spec.folder)
    return grade(spec, context, agent_part)


def adopt(spec: ContainerSpec, context: TrialContext) -> tuple[ContainerExit, float]:
    """Continue with the grader of an attempt for which `is_due` is true.

    Return how the trial ended, and the monotonic time at which the wait began.
    """
    wait_start = clock.monotonic()
    agent_part = AgentPart.read(spec.folder)
    assert agent_part is not None
    state = find_container(context.engine, grader_spec(spec))
    runs = state is not None and state.has_started
    limiter = context.limiter
    permit: AbstractContextManager[Any] = nullcontext()
    if not runs:
        permit = limiter.running(spec.slot.schedule_idx, has_begun=True)
    elif state is not None and not state.has_ended:
        permit = limiter.reservation(spec.slot.schedule_idx)
    with permit:
        return grade(spec, context, agent_part), wait_start


def grade(spec: ContainerSpec, context: TrialContext, agent_part: AgentPart) -> ContainerExit:
    """Run the grader's container, or wait for it, and return how the trial ended."""
    part = grader_spec(spec, agent_part)
    part = replace(part, plan=container_start.plan_with_image_facts(part, context))
    grader_part = ContainerExit(
        None, agent_part.ended_at, agent_part.ended_at, 0, container_removed=True
    )
    for _ in range(_MAX_CONTAINERS):
        try:
            container = _started_container(spec, part, context)
            grader_part = _wait(part, context, container)
            break
        except NoSuchContainer:
            continue
    agents = find_container(context.engine, spec)
    return replace(
        combined_exit(agent_part, grader_part),
        deadline_s=part.deadline_s,
        other_container_id=None if agents is None else agents.container_id,
    )


def _started_container(spec: ContainerSpec, part: ContainerSpec, context: TrialContext) -> str:
    """Return the id of the started grader's container. Create it if necessary."""
    state = None
    # A coordinator creates the folder before the container.
    if spec.may_exist or part.folder.exists():
        state = find_container(context.engine, part)
    if state is not None and state.has_started:
        if (part.folder / "out").is_dir():
            return state.container_id
        context.record_restart(spec, "its grader's folder was deleted; the grader runs again")
    elif state is None and _started_marker(part).exists():
        context.record_restart(spec, _GRADER_GONE)
    context.limiter.require_starting_allowed()
    if state is not None:
        container_start.remove_container(part, context, state.container_id)
    shutil.rmtree(part.folder, ignore_errors=True)
    inputs.prepare_trial_folder(part, context)
    trial_networks.provide_first_network(part, context)
    fault_points.fault_point("before_grader_create", spec.slot.schedule_idx)
    context.limiter.require_starting_allowed()
    try:
        container, created = container_start.create_container(part, context)
    except ContainerNameTaken:
        if find_container(context.engine, part) is None:
            raise name_taken_error(part) from None
        raise
    container_start.fill_container(part, context, container)
    fault_points.fault_point("after_grader_create", spec.slot.schedule_idx)
    context.limiter.require_starting_allowed()
    _started_marker(part).touch()
    container_start.start_container(context, container, created)
    fault_points.fault_point("grader_running", spec.slot.schedule_idx)
    return container


def _started_marker(part: ContainerSpec) -> Path:
    """Return the file that says that a grader may have run. No container can see its folder.

    If its container exists and was never started, the grader has not run: some engines abandon a
    start when the client disconnects.
    """
    return part.folder / "started"


def _wait(part: ContainerSpec, context: TrialContext, container: str) -> ContainerExit:
    """Wait for the grader's container, and return how it ended. Raises `NoSuchContainer`."""
    ended = wait_for_grader(part, context, container)
    status = ended.exit_status
    if ended.exit_status_forged or status not in {None, *ExitStatus.ALL, *ExitStatus.OF_ENGINE}:
        # No agent runs in this container, so the grader or its image ended it.
        refusal = f"the grader's container ended with status {status}, which trial.sh did not set"
        return replace(ended, exit_status_forged=False, start_refused=refusal)
    return ended


def remove_grader_container(engine: Engine, spec: ContainerSpec) -> None:
    """Remove the grader's container of an attempt, if it exists. Raises `ContainerFailed`."""
    state = find_container(engine, grader_spec(spec))
    if state is not None:
        engine.remove(state.container_id)
