"""Plan the size of an experiment before it is paid for, from earlier runs of the ledger.

Nothing is run or written. Modules that plan are imported when a function is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labledger.api.experiments import RunPlan, plan_run

if TYPE_CHECKING:
    from labledger.planning.size_plan import PlannedExperiment, PlanOptions, SizePlan
    from labledger.runner.options import RunOptions


def plan(
    experiment: str | Path, options: PlanOptions, run_options: RunOptions | None = None
) -> SizePlan:
    """Return how many tasks and replications show a difference, what they cost and how long they
    take.

    Args:
        experiment: The experiment file, a folder that holds `experiment.yaml`, or a benchmark as
            `FORMAT:LOCATION`, such as `humaneval:./HumanEval.jsonl`.
        options: The difference to show, and the runs to estimate from.
        run_options: As for `run`: its lab folder holds the ledger; its limit, tasks and variants
            choose the slots.

    Raises:
        InvalidInput: The experiment or an option is not valid, or the ledger has no runs that tell
            how much tasks vary.
        LedgerMissing: There is no ledger.
        RunNotFound: The ledger holds no run of a name in `options.from_runs`.
        ExtraMissing: A library that the statistics need is not installed.

    Example:
        >>> import labledger
        >>> plan = labledger.plan("demo", labledger.PlanOptions(detect=0.05))
        >>> for needed in plan.requirements:
        ...     if needed.design is not None:
        ...         print(needed.estimand, needed.design.tasks, needed.design.replications)
    """
    from labledger.files.lab_folder import LabFolder
    from labledger.ledger.reader import LedgerReader
    from labledger.planning.size_plan import plan_size
    from labledger.runner.options import RunOptions

    options.check()
    run_options = run_options or RunOptions()
    written = planned_experiment(plan_run(experiment, run_options))
    with LedgerReader.open(LabFolder.find(run_options.lab_dir).ledger) as reader:
        return plan_size(reader, written, options)


def expectation(planned: RunPlan, lab_dir: Path | None = None) -> tuple[str, ...]:
    """Return what a run can show, and what it costs and takes, as two lines.

    Args:
        planned: What `plan_run` returned.
        lab_dir: The lab folder, whose ledger holds earlier runs; None to find it.

    Returns:
        No lines where the ledger is missing or cannot be read, where it has no earlier runs of the
        experiment to estimate from, or where the statistics' libraries are not installed.

    Example:
        >>> import labledger
        >>> for line in labledger.expectation(labledger.plan_run("demo")):
        ...     print(line)
    """
    from labledger.errors import LabLedgerError
    from labledger.files.lab_folder import LabFolder
    from labledger.ledger.reader import LedgerReader
    from labledger.planning import plan_text
    from labledger.planning.size_plan import PlanOptions, plan_size

    path = LabFolder.find(lab_dir).ledger
    if not path.exists():
        return ()
    try:
        with LedgerReader.open(path) as reader:
            size = plan_size(reader, planned_experiment(planned), PlanOptions(detect=0.05))
    except LabLedgerError:
        return ()
    return plan_text.expectation(size)


def planned_experiment(planned: RunPlan) -> PlannedExperiment:
    """Return the size of an experiment as a plan needs it."""
    from labledger.planning.size_plan import PlannedExperiment

    design = planned.resolved["design"]
    return PlannedExperiment(
        experiment_id=planned.resolved["experiment"]["id"],
        tasks=planned.tasks,
        replications=design["replications"],
        variants=planned.variants,
        max_concurrency=design["max_concurrency"],
        cluster=planned.resolved["dataset"].get("cluster"),
    )
