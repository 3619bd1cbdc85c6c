"""The output folders of a trial: `runtime.outputs`, each a folder of the host beside out and state.

They are `outputs/0`, `outputs/1` and so on in the trial folder, mounted writable at their paths.
A regrading restores those of the agent. What is in them was written in a container and is hostile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labledger.experiment.settings.grading import GradingMode
from labledger.experiment.settings.runtime_values import overlap
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


def folder_of_path(spec: AttemptSpec, path: str) -> Path | None:
    """Return the host's folder of an output folder of the grader, by its path in the container."""
    for output in outputs_of(spec, "grader"):
        if output.path == path.rstrip("/"):
            return spec.grader_folder / output.name
    return None
