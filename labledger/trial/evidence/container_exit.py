"""How a container ended, and what is known of its isolation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from labledger import clock
from labledger.engine.engine import ContainerState
from labledger.trial.contract import ExitStatus
from labledger.trial.evidence.declared_artifacts import TakenArtifacts
from labledger.trial.evidence.tampering import FilesystemChanges


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
    """The artifacts that were taken for a separate grader."""
    deadline_s: float | None = None
    """The deadline that it had, in seconds, if it is not that of the trial."""
    other_container_id: str | None = None
    """The agent's container of a trial whose grader had another one; None if it is gone."""
    changes: FilesystemChanges | None = None
    """The changes of its file system before grading, if they were inspected then."""
    unchecked_processes: str | None = None
    """Why it is not known whether a process of the agent was left before grading, if so."""
    processes_left: bool | None = None
    """Whether kept processes of a delivered trial ran on; None if it is not known."""

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
