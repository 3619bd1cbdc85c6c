"""What the host does with an agent's container between the agent part and the grader part.

The agent part has been stored by then, and the grader has not started. Each step may be interrupted
and repeated, also by another coordinator, so it must be safe to repeat. Called by `two_part_trials`
and `delivery`.
"""

from __future__ import annotations

from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.life import network_changes
from labledger.trial.life.context import TrialContext


def prepare_for_grader(spec: AttemptSpec, context: TrialContext, container: str) -> None:
    """Change the container with the id `container` to what its grader needs.

    That is its network. Raises `ContainerFailed` or `EngineUnavailable`.
    """
    network_changes.change_network(spec, context, container)
