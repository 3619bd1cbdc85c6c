"""The installed agents of a run: before it, each is put into a folder that its trials mount."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING

from labledger.agents.agent_trees import InstalledAgent
from labledger.execution.run_events import Listener, run_event
from labledger.experiment.plan import ExperimentPlan

if TYPE_CHECKING:
    from labledger.agents.installation import AgentTarget


def targets_of(experiment: ExperimentPlan) -> dict[str, AgentTarget]:
    """Return what is installed for each variant whose agent has a profile.

    Raises `InvalidInput` for a profile that is not there.
    """
    profiled = [variant for variant in experiment.variants if variant.profile is not None]
    if experiment.regrades is not None or not profiled:
        return {}
    # Imported late: most runs have no profile, and what installs one takes long to import.
    from labledger.agents.installation import AgentTarget
    from labledger.agents.profiles import load_profile

    return {
        variant.variant_id: AgentTarget(
            load_profile(variant.profile.profile), variant.profile.version
        )
        for variant in profiled
        if variant.profile is not None
    }


def install_agents(experiment: ExperimentPlan, emit: Listener) -> Mapping[str, InstalledAgent]:
    """Install the agents that an experiment's variants have, unless they are there, and check them.

    `emit` gets an event whenever an installation begins or ends, in this thread. Return them by
    variant. Raises `InvalidInput` with every agent that could not be installed.
    """
    targets = targets_of(experiment)
    if not targets:
        return {}
    from labledger.agents.installation import install

    lines: SimpleQueue[str | None] = SimpleQueue()
    with ThreadPoolExecutor(1, "agents") as pool:
        installing = pool.submit(install, list(targets.values()), report=lines.put)
        installing.add_done_callback(lambda _: lines.put(None))
        while (line := lines.get()) is not None:
            emit(run_event("agent_installation", message=line))
    return dict(zip(targets, installing.result(), strict=True))
