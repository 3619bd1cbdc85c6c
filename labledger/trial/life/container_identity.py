"""Find the container of an attempt by its labels, whatever its name is now.

Anybody can give a name to another container at any time; an id never changes. So this module finds
a container by its labels, and callers start, await, kill and remove it by its id. A container
without the labels of the attempt is never touched, even if it has the attempt's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from labledger.docker.engine import ContainerState, Engine
from labledger.docker.engine_errors import ContainerNameTaken
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.contract import Labels
from labledger.trial.life.uncollected import OutputUnreadable


def find_container(engine: Engine, spec: AttemptSpec) -> ContainerState | None:
    """Return the state of an attempt's container, or None if there is none.

    Raises `OutputUnreadable` if several containers carry its labels and none has its name.
    """
    state = engine.inspect(spec.container_name)
    if state is not None and _is_of_attempt(state.labels, spec):
        return state
    candidates = [
        container
        for container in engine.containers_with_labels(spec.labels())
        if _is_of_attempt(container.labels, spec)
    ]
    if len(candidates) > 1:
        names = ", ".join(sorted(container.name for container in candidates))
        raise OutputUnreadable(
            f"slot {spec.slot.schedule_idx}, attempt {spec.attempt}: none of the containers with "
            f"its labels is called {spec.container_name}, so it is not known which one ran it: "
            f"{names}",
            hint=f"rename the one that ran it: `docker rename NAME {spec.container_name}`, "
            "and resume",
        )
    return engine.inspect(candidates[0].container_id) if candidates else None


def kill_container(engine: Engine, spec: AttemptSpec) -> None:
    """Kill an attempt's container, if there is one, and that of its separate grader."""
    parts = ("", "grader") if spec.has_grader_container else ("",)
    for part in parts:
        if (state := find_container(engine, replace(spec, part=part))) is not None:
            engine.kill(state.container_id)


def name_taken_error(spec: AttemptSpec) -> ContainerNameTaken:
    """Return the error to raise if a container without an attempt's labels has its name."""
    return ContainerNameTaken(
        f"a container of something else is called {spec.container_name}: it lacks the labels of "
        "the trial's ledger, run, slot and attempt, and is not changed. Rename it "
        f"(`docker rename {spec.container_name} OTHER`) or remove it"
    )


def attempt_of(labels: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the slot and the attempt that a container's labels name, or None."""
    slot, attempt = labels.get(Labels.SLOT, ""), labels.get(Labels.ATTEMPT, "")
    if not (slot.isdecimal() and attempt.isdecimal() and Labels.RUN in labels):
        return None
    return int(slot), int(attempt)


def _is_of_attempt(labels: Mapping[str, str], spec: AttemptSpec) -> bool:
    is_other = Labels.HELPER in labels or labels.get(Labels.PART, "") != spec.part
    return spec.labels().items() <= labels.items() and not is_other
