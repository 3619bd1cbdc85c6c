"""Run slots again: `plan_rerun` chooses them, and `rerun` appends them to their run and runs them.

Choosing only reads. What was committed never changes: a new slot supersedes an old one, which stays
in the ledger.
"""

from __future__ import annotations

from pathlib import Path

from labledger.ledger.reader import LedgerReader
from labledger.runner.options import RunOptions, RunOutcome
from labledger.runner.parts.rerun_choice import RerunPlan as RerunPlan
from labledger.runner.parts.rerun_choice import RerunSelection as RerunSelection
from labledger.runner.parts.rerun_choice import RerunSlot as RerunSlot
from labledger.runner.parts.rerun_choice import choose_slots
from labledger.storage.lab_folder import LabFolder


def plan_rerun(
    run_id: str, selection: RerunSelection | None = None, *, lab_dir: str | Path | None = None
) -> RerunPlan:
    """Choose the slots of a run that are to be run again. Nothing is changed.

    Without a selection these are the slots that the environment or the grader left without a
    verdict: `infra_error`, `setup_error`, and `grade_error` of an agent that succeeded.

    Args:
        run_id: The run, complete or not. A regrading cannot be rerun.
        selection: Which slots; see `RerunSelection`.
        lab_dir: The lab folder; None for `LABLEDGER_DIR` or the nearest `.lab` folder upwards.

    Returns:
        The chosen slots and what they cost last time. Slots that fit but have a verdict are only
        counted, unless `selection.despite_verdict` is set.

    Raises:
        RunNotFound: The ledger holds no such run.
        InvalidInput: An option is not valid, or the run is a regrading.
        QueryFailed: The SQL condition failed, or does more than read.

    Example:
        >>> import labledger
        >>> plan = labledger.plan_rerun("demo", labledger.RerunSelection(statuses=("infra_error",)))
        >>> len(plan.slots), plan.spent["cost_usd"].total
        (3, 0.12)
    """
    lab = LabFolder.find(lab_dir)
    with LedgerReader.open(lab.ledger) as reader:
        return choose_slots(reader, run_id, selection or RerunSelection())


def rerun(plan: RerunPlan, options: RunOptions | None = None) -> RunOutcome:
    """Run the slots of a plan again, as new slots at the end of their run's schedule.

    Each new slot supersedes an old one: from its commit on, views, comparisons and reports use the
    new result. The old one stays in the view `all_trials`. An interrupted rerun is continued with
    `resume`.

    Args:
        plan: What `plan_rerun` chose.
        options: As for `resume`; `frozen` uses the run's own copy of a changed experiment.

    Returns:
        The outcome of the run, with the slots that were not run again.

    Raises:
        InvalidInput: The plan has no slot, or an environment variable of the run has no value.
        ExperimentChanged: A file of the experiment that can change results has changed.
        PreflightFailed: An image of the run is not available any more.
        LeaseHeld: A coordinator owns the run.
        LedgerError: Slots were appended to the run since the plan was made.

    Example:
        >>> import labledger
        >>> outcome = labledger.rerun(labledger.plan_rerun("demo"))
        >>> outcome.complete
        True
    """
    from labledger.runner.parts.rerun import rerun_slots

    return rerun_slots(plan, options or RunOptions())
