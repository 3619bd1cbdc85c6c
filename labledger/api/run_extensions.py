"""`extend` and `plan_extension`: more tasks, variants or replications in a run that exists.

`extend` blocks and raises as `runs.run` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.api.experiment_sources import experiment_to_check, read_runnable, read_source
from labledger.runner.options import RunOptions, RunOutcome
from labledger.runner.parts import extend as extending

if TYPE_CHECKING:
    from labledger.records import JsonObject
    from labledger.records.identity import Slot


@dataclass(frozen=True, slots=True)
class RunExtension:
    """What `extend` would add to a run."""

    run_id: str
    first_idx: int
    """The schedule index of the first new slot: how many slots the run has."""
    slot_count: int
    variants: tuple[str, ...]
    """Ids of the new variants."""
    tasks: tuple[str, ...]
    """Ids of the new tasks, in the order of the dataset."""
    digest: str
    """The experiment's digest from this part on."""
    _plan: extending.ExtensionPlan = field(repr=False)

    def slots(self) -> Iterator[Slot]:
        """Yield the new slots in schedule order."""
        return self._plan.growth.slots()

    def as_json(self) -> JsonObject:
        return {
            "run_id": self.run_id,
            "first_idx": self.first_idx,
            "slot_count": self.slot_count,
            "variants": list(self.variants),
            "tasks": list(self.tasks),
            "digest": self.digest,
        }


def plan_extension(
    run_id: str, experiment: str | Path | None = None, options: RunOptions | None = None
) -> RunExtension:
    """Return what `extend` would add to a run. Writes nothing and starts nothing.

    Args:
        run_id: The run's id.
        experiment: As for `extend`.
        options: As for `extend`.

    Raises:
        RunNotFound: The ledger holds no such run.
        ExperimentChanged: What the run has run is another in this experiment.
        NothingToExtend: The run has every cell of the experiment already.
        InvalidInput: The experiment or an option is not valid, or the run is a regrading.

    Example:
        >>> import labledger
        >>> labledger.plan_extension("demo", options=labledger.RunOptions(limit=20)).slot_count
        20
    """
    options = options or RunOptions()
    if experiment is None:
        plan = extending.plan_extension(run_id, None, options)
    else:
        source, options = read_source(experiment, options)
        with experiment_to_check(source) as path:
            plan = extending.plan_extension(run_id, path, options)
    growth = plan.growth
    return RunExtension(
        run_id=run_id,
        first_idx=growth.first_idx,
        slot_count=growth.slot_count,
        variants=growth.variants,
        tasks=tuple(t.task_id for t in plan.experiment.tasks if t.task_id in growth.tasks),
        digest=plan.experiment.digest,
        _plan=plan,
    )


def extend(
    run_id: str,
    experiment: str | Path | None = None,
    options: RunOptions | None = None,
    *,
    because: str | None = None,
) -> RunOutcome:
    """Append further tasks, variants or replications to a run, and run them.

    The new slots follow those that are there, in the order of the experiment, and are committed
    after them. The run may be complete or interrupted; slots that are not committed run first. The
    cells that it has must be the same in the new experiment. If this is killed, either nothing was
    appended or all of it, and `resume` continues.

    Args:
        run_id: The run's id.
        experiment: The experiment with all that the run shall have, as for `run`; None for the
            file from which the run was started or last extended.
        options: As for `run`. `limit`, `tasks`, `variants` and `shard` choose all that the run
            shall have, not only what is added; without them, it is the whole experiment.
        because: Why the run is extended, in a sentence that is stored with it.

    Returns:
        The outcome of the whole run, as that of `run`.

    Raises:
        RunNotFound: The ledger holds no such run.
        ExperimentChanged: What the run has run is another in this experiment; the message names
            each difference. Nothing was changed.
        NothingToExtend: The run has every cell of the experiment already.
        LeaseHeld: Another coordinator owns the run, and `options.take_over` is not set.
        PreflightFailed: A check before the run failed. Nothing was changed.
        InvalidInput: The experiment or an option is not valid, or the run is a regrading.

    Example:
        >>> import labledger
        >>> outcome = labledger.extend("demo", options=labledger.RunOptions(limit=20))
        >>> outcome.run_id
        'demo'
    """
    options = options or RunOptions()
    if experiment is None:
        return extending.extend_run(run_id, None, options, because=because)
    source, options = read_runnable(experiment, options)
    if isinstance(source, Path):
        return extending.extend_run(run_id, source, options, because=because)
    from labledger.benchmarks.stored_experiments import store_experiment, temporary_copy

    with temporary_copy(source) as path:
        return extending.extend_run(
            run_id,
            path,
            options,
            lambda lab: store_experiment(source, lab.benchmarks),
            because=because,
        )
