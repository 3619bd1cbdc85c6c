"""The agent part of a trial whose grader comes later, as the host stores it before the grader runs.

It is stored in `first_part.json` in the trial folder, where no container can change it, before the
grader's files are put in place. So a later coordinator finds that the agent has ended and that the
grader is due. `combined_exit` makes one exit of both parts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from labledger.engine.engine import ContainerState
from labledger.files.durable_files import write_file
from labledger.records import JsonObject, canonical_json
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.evidence.container_exit import ContainerExit
from labledger.trial.evidence.tampering import FilesystemChanges


@dataclass(frozen=True, slots=True)
class AgentPart:
    """The stored outcome of a trial's agent part. Field names are those of `first_part.json`."""

    engines_start: str
    """The engine's start time of this part; a second start of the container has another."""
    started_at: str
    ended_at: str
    duration_ms: int
    out_of_memory: bool
    phases: str
    """The phases so far, in the format of `trial.sh`."""
    seen: FilesystemChanges
    disk_was_full: bool
    unchecked_processes: str | None = None
    """`delivered`: why the engine could not say whether a process of the agent was left, if so."""
    processes_left: bool | None = None
    """`delivered`, with processes kept: whether any runs on; None if it is not known."""
    artifacts: JsonObject | None = None
    """What was taken for a separate grader, in the form of `TakenArtifacts`."""

    @classmethod
    def of(
        cls, state: ContainerState, ended: ContainerExit, phases: str, changes: FilesystemChanges
    ) -> Self:
        """Return the outcome of an agent part that ended as `ended`.

        `state` is the container's. `changes` are those of its file system before grading.
        """
        return cls(
            state.started_at,
            ended.started_at,
            ended.ended_at,
            ended.duration_ms,
            ended.out_of_memory,
            phases,
            changes,
            ended.disk_was_full,
        )

    @classmethod
    def read(cls, spec: AttemptSpec) -> Self | None:
        """Return the stored outcome, or None if the agent part has not been stored."""
        try:
            fields = json.loads(_path(spec).read_bytes())
        except FileNotFoundError:
            return None
        seen: JsonObject = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields["seen"].items()
        }
        return cls(**fields | {"seen": FilesystemChanges(**seen)})

    def write(self, spec: AttemptSpec) -> None:
        """Store the outcome durably. Raises `OSError`."""
        write_file(_path(spec), canonical_json.dump_bytes(asdict(self)))


def _path(spec: AttemptSpec) -> Path:
    return spec.folder / "first_part.json"


def combined_exit(agent_part: AgentPart, grader_part: ContainerExit) -> ContainerExit:
    """Return both parts as one exit. Its duration excludes the time between the parts."""
    return replace(
        grader_part,
        started_at=agent_part.started_at,
        duration_ms=agent_part.duration_ms + grader_part.duration_ms,
        out_of_memory=agent_part.out_of_memory or grader_part.out_of_memory,
        # `finish_stopped_container` adds whether a disk was full during the grader part.
        disk_was_full=agent_part.disk_was_full,
        agent_part_phases=agent_part.phases,
        changes=agent_part.seen,
        unchecked_processes=agent_part.unchecked_processes,
        processes_left=agent_part.processes_left,
    )
