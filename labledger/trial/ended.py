"""How the container of a trial ended, as the engine tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from labledger import clock
from labledger.trial.container import ContainerState
from labledger.trial.contract import ExitStatus
from labledger.trial.tampering import FilesystemChanges


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container ended."""

    exit_status: int | None
    """None when the host's outer deadline ended it, or where it could not be started again."""
    started_at: str
    ended_at: str
    duration_ms: int
    """Without what it waited stopped between two parts."""
    container_id: str | None = None
    """None where the container is gone."""
    out_of_memory: bool = False
    container_removed: bool = False
    """True when the container is gone, and with it how it ended."""
    exit_status_forged: bool = False
    """True where `trial.sh` cannot have said what the exit status says."""
    start_refused: str | None = None
    """Why it could not be started again for its grader."""
    disk_was_full: bool = False
    """True where a disk that it wrote on was seen full since it began."""
    was_paused: bool = False
    """True where somebody is known to have paused it from outside."""
    first_phases: str | None = None
    """The phases before the second start, as the host noted them; None where there was none."""
    changes: FilesystemChanges | None = None
    """What a look at its file system before the grading came to, where there was one."""

    @classmethod
    def of(cls, state: ContainerState, exit_status: int | None, said: frozenset[int]) -> Self:
        """How a container ended that `trial.sh` can have ended with one of the statuses `said`."""
        started, finished = clock.parse(state.started_at), clock.parse(state.finished_at)
        return cls(
            exit_status,
            clock.iso(started),
            clock.iso(finished),
            max(0, round((finished - started).total_seconds() * 1000)),
            state.container_id,
            state.out_of_memory,
            exit_status_forged=exit_status in ExitStatus.ALL - said,
        )
