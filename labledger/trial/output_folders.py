"""The output folders of a trial: `runtime.outputs`, each a folder of the host beside out and state.

They are `outputs/0`, `outputs/1` and so on in the trial folder, mounted writable at their paths.
A regrading restores those of the agent. What is in them was written in a container and is hostile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from labledger.experiment.authored_fields import overlap
from labledger.experiment.grading import GradingMode
from labledger.experiment.task_row import workspace_seed
from labledger.files.artifact_store import ArtifactStore
from labledger.files.workspace_seed import Seed
from labledger.records.attempt_result import EventFile
from labledger.records.identity import TrialIds
from labledger.trial.attempt_spec import AttemptSpec

FOLDER = "outputs"
"""The folder, in the trial folder, that holds the output folders."""


@dataclass(frozen=True, slots=True)
class OutputMount:
    """An output folder of a trial."""

    name: str
    """Relative to the trial folder."""
    path: str
    """In the container."""
    phase: str
    """`agent` or `grader`: the phase that writes there."""

    def name_in_tar(self, relative: str) -> str:
        """Return the name of one of its files in the tars that are evidence."""
        return f"{self.path.strip('/')}/{relative}"


def output_mounts(spec: AttemptSpec) -> tuple[OutputMount, ...]:
    """Return all output folders of a trial, in authored order."""
    return tuple(
        OutputMount(f"{FOLDER}/{index}", output.path.rstrip("/"), output.phase)
        for index, output in enumerate(spec.settings.runtime.outputs or ())
    )


def outputs_of(spec: AttemptSpec, phase: str) -> list[OutputMount]:
    """Return the output folders of a phase, `agent` or `grader`."""
    return [output for output in output_mounts(spec) if output.phase == phase]


def outputs_of_container(spec: AttemptSpec) -> list[OutputMount]:
    """Return what the container of the agent has, or of the grader in a regrading.

    With a separate grader the agent's container has no output folder of the grader, and the
    grader's container has those of the agent read-only; see `agent_outputs_of_grader`.
    """
    if spec.part:
        return outputs_of(spec, "grader")
    if spec.grading_mode is not GradingMode.SEPARATE:
        return list(output_mounts(spec))
    if spec.runs_agent:
        return outputs_of(spec, "agent")
    return [*_outputs_without_artifacts(spec), *outputs_of(spec, "grader")]


def agent_outputs_of_grader(spec: AttemptSpec) -> dict[Path, str]:
    """Return the agent's output folders that a separate grader reads, with their paths.

    `spec` is that of the grader's container.
    """
    if not spec.part:
        return {}
    outputs = _outputs_without_artifacts(spec)
    return {spec.folder.parent / output.name: output.path for output in outputs}


def _outputs_without_artifacts(spec: AttemptSpec) -> list[OutputMount]:
    """Return the agent's output folders without those at or around an artifact's path.

    In a separate grader's container the artifact comes instead.
    """
    artifacts = [artifact.to or artifact.path for artifact in spec.settings.grading.artifacts or ()]
    return [
        output
        for output in outputs_of(spec, "agent")
        if not any(overlap(output.path, path) for path in artifacts)
    ]


def output_settings(outputs: list[OutputMount]) -> Iterator[str]:
    """Yield the settings of `trial.sh` for the output folders of its container."""
    for output in outputs:
        yield f"{'EMPTIED' if output.phase == 'grader' else 'OUTPUT'}={output.path}"


def event_file_for(spec: AttemptSpec) -> EventFile:
    """Return the file for a trial's events if they are many. It outlives the trial folder."""
    name = f"{spec.run_id}/{spec.slot.schedule_idx:06d}-{spec.attempt}.jsonl"
    return EventFile(spec.plan.store_root / "staged", name, 0)


@dataclass(frozen=True, slots=True)
class TrialOutputs:
    """Where the outputs of an attempt are on this host, whose they are, and how they are read."""

    ids: tuple[TrialIds, ...]
    """The attempt's own, and then those of other trials that its outputs may name."""
    folder: Path
    """The trial folder."""
    grader_folder: Path
    """That of the container in which the grader runs."""
    mounts: tuple[OutputMount, ...]
    """The output folders."""
    workspace: str
    """The workspace's path in the container."""
    has_mounted_workspace: bool
    seed: Seed
    """What the workspace began with."""
    store: ArtifactStore
    event_file: EventFile
    """Where its events go if they are many."""
    max_log_bytes: int

    @classmethod
    def of(cls, spec: AttemptSpec) -> Self:
        return cls(
            ids=(spec.ids, *spec.kind.other_ids),
            folder=spec.folder,
            grader_folder=spec.grader_folder,
            mounts=output_mounts(spec),
            workspace=spec.workspace,
            has_mounted_workspace=spec.has_mounted_workspace,
            seed=workspace_seed(spec.task.workspace, spec.plan.store_root),
            store=ArtifactStore(spec.plan.store_root),
            event_file=event_file_for(spec),
            max_log_bytes=spec.settings.runtime.max_log_bytes,
        )

    def folder_of(self, phase: str) -> Path:
        """Return the folder of the container in which a phase runs."""
        return self.grader_folder if phase == "grader" else self.folder

    def of_phase(self, phase: str) -> list[OutputMount]:
        """Return the output folders of a phase, `agent` or `grader`."""
        return [output for output in self.mounts if output.phase == phase]

    def of_grader(self, path: str) -> Path | None:
        """Return this host's folder of the grader's output folder at a path in the container."""
        for output in self.of_phase("grader"):
            if output.path == path.rstrip("/"):
                return self.grader_folder / output.name
        return None
