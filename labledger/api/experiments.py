"""Functions for an experiment that does not run yet: create it, plan a run, check what a run needs.

Only `create_experiment` writes files. Modules that plan and check are imported when a function is
called, so that `labledger init` starts fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.experiment import templates

if TYPE_CHECKING:
    from labledger.experiment.resolve import ResolvedExperiment
    from labledger.maintenance.preflight import Preflight
    from labledger.records import JsonObject
    from labledger.records.identity import Slot
    from labledger.runner.options import RunOptions


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run of an experiment would do."""

    digest: str
    """SHA-256, in hex, of everything in the experiment that can change a result."""
    resolved: JsonObject
    """The resolved experiment: every default filled in and every file digested."""
    variants: tuple[str, ...]
    """The ids of the variants, the baseline first."""
    sealing: str
    """How the grader's files are hidden from the agent, in words."""
    total_slots: int
    _experiment: ResolvedExperiment = field(repr=False)

    def slots(self) -> Iterator[Slot]:
        """Yield every slot in schedule order."""
        return self._experiment.slots()


def create_experiment(
    directory: str | Path, profile: str = templates.DEFAULT_PROFILE, *, image: str | None = None
) -> list[Path]:
    """Create a small, commented experiment that runs as it is.

    Args:
        directory: A folder that does not exist or is empty.
        profile: `agent-eval`, `ab-test`, `sweep` or `regression`.
        image: The image of its trials; None for the image that `scripts/image` builds.

    Returns:
        The files written, `experiment.yaml` first.

    Raises:
        InvalidInput: The profile is unknown, the folder is not empty or it cannot be written. No
            file is left behind.

    Example:
        >>> import labledger
        >>> labledger.create_experiment("demo", "ab-test")[0]
        PosixPath('demo/experiment.yaml')
    """
    return templates.scaffold(profile, Path(directory), image=image)


def plan_run(experiment: str | Path, options: RunOptions | None = None) -> RunPlan:
    """Return what a run would do: the resolved experiment and its schedule. Writes nothing.

    Args:
        experiment: The experiment file, or a folder that holds `experiment.yaml`.
        options: As for `run`: its limit, tasks and variants choose the slots.

    Raises:
        InvalidInput: The experiment is not valid; `problems` lists every problem with its line.

    Example:
        >>> import labledger
        >>> plan = labledger.plan_run("demo", labledger.RunOptions(limit=2))
        >>> [slot.task_id for slot in plan.slots()]
        ['two-sum', 'two-sum', 'fizz-buzz', 'fizz-buzz']
    """
    from labledger.runner.options import RunOptions
    from labledger.runner.start_and_resume import resolve_experiment

    resolved = resolve_experiment(experiment_file(experiment), options or RunOptions())
    return RunPlan(
        digest=resolved.digest,
        resolved=resolved.document,
        variants=resolved.variants,
        sealing="; ".join(sealing.meaning for sealing in resolved.sealings),
        total_slots=resolved.total_slots,
        _experiment=resolved,
    )


def preflight(
    experiment: str | Path, options: RunOptions | None = None, *, pull: bool = False
) -> Preflight:
    """Check everything that a run needs: experiment, environment, ledger, Docker, disk and images.

    No run is created, and the containers that test the images are removed again. `run` does the
    same checks first and raises `PreflightFailed`.

    Args:
        experiment: The experiment file, or a folder that holds `experiment.yaml`.
        options: As for `run`.
        pull: Pull images that are missing on this machine.

    Returns:
        The result of every check. A failed check is returned, not raised; `failures` lists them.

    Raises:
        InvalidInput: The experiment is not valid.

    Example:
        >>> import labledger
        >>> [check.hint for check in labledger.preflight("demo").failures]
        []
    """
    from labledger.runner.options import RunOptions
    from labledger.runner.start_and_resume import check_experiment

    return check_experiment(experiment_file(experiment), options or RunOptions(), pull=pull)


def experiment_file(experiment: str | Path) -> Path:
    """Return the path of the experiment file; of a folder, that of its `experiment.yaml`."""
    path = Path(experiment)
    return path / "experiment.yaml" if path.is_dir() else path
