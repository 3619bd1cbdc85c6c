"""How a container ended, and how far its isolation lets the trial's score be trusted.

Isolation facts state the agent's user, how the grader was sealed, suspected tampering, and the
programs of the image that the agent removed or replaced (`ext.isolation`). They never change a
status or a verdict; but a trial without a verdict counts as not passed if its agent changed
programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from labledger import clock
from labledger.engine.engine import Engine
from labledger.engine.engine_facts import ContainerState
from labledger.experiment.grading_settings import GradingMode, Sealing
from labledger.records import JsonObject
from labledger.trial.contract import ExitStatus
from labledger.trial.evidence.declared_artifacts import TakenArtifacts
from labledger.trial.evidence.tampering import (
    Checked,
    FilesystemChanges,
    Isolation,
    inspect_changes,
)

_ROOT_USERS = frozenset({"", "0", "0:0", "root", "root:root", "0:root", "root:0"})

_GRADER_HAD_NOT_BEGUN = (ExitStatus.NOT_GRADED | {ExitStatus.AGENT_ENDED}) - {
    ExitStatus.SCRIPT_FAILED,
    ExitStatus.DISK_FULL,
}


def facts_of_trial(
    engine: Engine, isolation: Isolation, container_exit: ContainerExit
) -> JsonObject:
    """Return the isolation facts of a trial whose container has stopped.

    Its file system is inspected now unless that was done before grading.
    Raises `EngineUnavailable`.
    """
    is_before = container_exit.exit_status in _GRADER_HAD_NOT_BEGUN
    when: Checked = "before_grading" if is_before else "after_grading"
    changes = container_exit.changes
    if changes is None:
        container = container_exit.container_id
        if container is None:
            changes = FilesystemChanges(None, unchecked="its container is gone")
        else:
            changes = inspect_changes(engine, isolation, container, when)
    facts = _facts(isolation, _agent_user(isolation, engine), changes)
    if container_exit.unchecked_processes is not None:
        facts["unchecked_processes"] = container_exit.unchecked_processes
    if container_exit.processes_left is not None:
        facts["processes_left"] = container_exit.processes_left
    return facts


def facts_of_separate_grader(
    engine: Engine, isolation: Isolation, container_exit: ContainerExit
) -> JsonObject:
    """Return the isolation facts of a trial whose grader had a container of its own.

    What the agent changed in its container is recorded apart from what is suspected: the grader's
    container got only the artifacts. Raises `EngineUnavailable`.
    """
    user = _agent_user(isolation, engine)
    agents = container_exit.changes or FilesystemChanges(None, unchecked="it is gone")
    own = _facts(isolation, user, agents)
    return _facts(isolation, user, FilesystemChanges("before_grading")) | {
        "agent_container": _of_changes(own),
        "grader_image": isolation.grader_image,
        "processes": "gone",
    }


def facts_without_agent(engine: Engine, isolation: Isolation, recorded: JsonObject) -> JsonObject:
    """Return the isolation facts of a trial whose agent ran in another container.

    Before its grader, the new container holds nothing but the image, and with a workspace in the
    image what the agent changed there. `recorded` are the facts of the agent's container, {} if
    they are not known. Raises `EngineUnavailable`.
    """
    user = recorded.get("agent_user", _agent_user(isolation, engine))
    is_separate = isolation.mode is GradingMode.SEPARATE
    sealed = Sealing.SEPARATE if is_separate else Sealing.AFTER_AGENT
    facts = _facts(isolation, user, FilesystemChanges("before_grading"))
    if not (isolation.has_mounted_workspace or is_separate):
        facts |= _of_changes(recorded)
    facts |= {"sealed": sealed.value, "processes": "gone"}
    if is_separate:
        facts["grader_image"] = isolation.grader_image
        if "agent_container" in recorded:
            facts["agent_container"] = recorded["agent_container"]
    # How the stored trial was graded first; trials of earlier versions do not say it.
    facts.pop("mode")
    return facts | {key: recorded[key] for key in ("mode",) if key in recorded}


def unknown_isolation_facts(isolation: Isolation, why: str) -> JsonObject:
    """Return the isolation facts of a trial that has no container to inspect."""
    return _facts(isolation, _agent_user(isolation, None), FilesystemChanges(None, unchecked=why))


def _of_changes(facts: JsonObject) -> JsonObject:
    """Return those facts that say what was changed in a container."""
    keys = ("checked", "unchecked", "tampering_suspected", "tampering_total", "tampering_by")
    return {key: facts[key] for key in keys if key in facts}


def _facts(isolation: Isolation, agent_user: str | None, changes: FilesystemChanges) -> JsonObject:
    mode = isolation.mode
    is_kept = isolation.keeps_processes and mode in {GradingMode.SAME, GradingMode.DELIVERED}
    facts: JsonObject = {
        "agent_user": agent_user,
        "mode": mode.value,
        "sealed": isolation.sealing.value,
        "processes": "kept" if is_kept else "killed",
        "agent_network": isolation.agent_network,
        "grader_network": isolation.grader_network,
        "rights": isolation.rights.value,
        "root_read_only": isolation.root_read_only,
        "setup": isolation.has_setup,
        "checked": changes.checked,
        "tampering_suspected": list(changes.suspected),
        "tampering_total": changes.total,
    }
    if changes.by:
        facts["tampering_by"] = dict(changes.by)
    if changes.programs:
        facts["programs_changed"] = list(changes.programs)
    if changes.unchecked is not None:
        facts["unchecked"] = changes.unchecked
    return facts


def _agent_user(isolation: Isolation, engine: Engine | None) -> str | None:
    """Return the user that the agent ran as; None if only an image that is gone defines it.

    Without an engine, nobody is asked what the image says.
    """
    user = isolation.agent_user
    if not user and engine is not None:
        user = engine.image_user(isolation.image_id)
    return "root" if user in _ROOT_USERS else user


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container ended, as the engine reports it, and what the host observed while it ran."""

    exit_status: int | None
    """None if the host killed it at its deadline, or if it could not be started again."""
    started_at: str
    ended_at: str
    duration_ms: int
    """Without the time between the two parts of a two-part trial."""
    container_id: str | None = None
    """None if the container is gone."""
    out_of_memory: bool = False
    container_removed: bool = False
    """True if the container was removed before its exit status was read."""
    exit_status_forged: bool = False
    """True if `trial.sh` cannot have ended with this exit status."""
    start_refused: str | None = None
    """Why it could not be started again for the grader part, if so."""
    disk_was_full: bool = False
    """True if a disk that it wrote to was full at some time since it began."""
    was_paused: bool = False
    """True if it is known to have been paused from outside."""
    agent_part_phases: str | None = None
    """The `phases` file as the host stored it between two starts; None if there was one start."""
    artifacts: TakenArtifacts | None = None
    """The artifacts that were taken for a separate grader, or are only kept."""
    deadline_s: float | None = None
    """The deadline that it had, in seconds, if it is not that of the trial."""
    other_container_id: str | None = None
    """The agent's container of a trial whose grader had another one; None if it is gone."""
    changes: FilesystemChanges | None = None
    """The changes of its file system before grading, if they were inspected then."""
    unchecked_processes: str | None = None
    """Why it is not known whether a process of the agent was left before grading, if so."""
    touched: tuple[str, ...] = ()
    """The programs that were touched on the host while it ran."""
    processes_left: bool | None = None
    """Whether kept processes of a delivered trial ran on; None if it is not known."""

    @property
    def is_by_script(self) -> bool:
        """Whether `trial.sh` itself ended the trial."""
        return self.exit_status in ExitStatus.ALL and not self.exit_status_forged

    @classmethod
    def of(cls, state: ContainerState, exit_status: int | None, expected: frozenset[int]) -> Self:
        """Return how a container ended.

        `expected` are the exit statuses with which `trial.sh` can have ended it; another one of
        `ExitStatus.ALL` was forged by a process in the container.
        """
        started, finished = clock.parse(state.started_at), clock.parse(state.finished_at)
        return cls(
            exit_status,
            clock.iso(started),
            clock.iso(finished),
            max(0, round((finished - started).total_seconds() * 1000)),
            state.container_id,
            state.out_of_memory,
            exit_status_forged=exit_status in ExitStatus.ALL - expected,
        )
