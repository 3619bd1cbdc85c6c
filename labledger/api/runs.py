"""The functions that execute trials: `run`, `resume`, `regrade`, `extend` and `rerun`.

Each blocks until the run has ended or stopped. They work in any thread. In the main thread, Ctrl-C,
TERM and HUP are stop requests; in other threads no signal handler is installed. Committed slots
never change: a rerun adds new slots.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labledger.api.experiment_sources import experiment_path, read_runnable, read_source, storing
from labledger.files.lab_folder import LabFolder
from labledger.ledger.reader import LedgerReader
from labledger.runner.extend import RunExtension, extend_run, prepare_extension
from labledger.runner.regrade import regrade_run
from labledger.runner.rerun import RerunPlan, RerunSelection, choose_slots, rerun_slots
from labledger.runner.run_options import RunOptions
from labledger.runner.run_outcome import RunOutcome
from labledger.runner.run_start import resume_run, start_run

if TYPE_CHECKING:
    from labledger.benchmarks.translate import TranslatedExperiment


def run(experiment: str | Path, options: RunOptions | None = None) -> RunOutcome:
    """Run an experiment in Docker containers and return its outcome.

    Blocks until every slot is committed or the run stops. Reasons to stop are a stop request, a
    spent budget, or a machine that stays unusable for too long; see `RunLimits`. `resume`
    continues a stopped run. Missing images are pulled, or built if the experiment says how.

    The results go to the ledger of `options.lab_dir`. By default, the lab folder is searched from
    the working directory upwards, not from the experiment's folder, as on the command line.

    Args:
        experiment: The experiment file, a folder that holds `experiment.yaml`, or a benchmark as
            `FORMAT:LOCATION`, such as `humaneval:./HumanEval.jsonl`.
        options: Everything that is not part of the experiment, such as the lab folder, how many
            trials run at once, a budget and a listener for events; see `RunOptions`.

    Returns:
        The outcome. `complete` says whether every slot is committed, and `summary` holds the
        scores. A run that stops early raises no error; `stop` says why it stopped.

    Raises:
        InvalidInput: The experiment or an option is not valid. No run has been created.
        PreflightFailed: A check before the run failed, such as a missing image. No run has been
            created.
        ImageBuildsStopped: `options.stop_request` was raised while images were built. No run has
            been created.
        RunExists: The ledger already holds a run with `options.run_id`.
        LeaseLost: Another coordinator has taken over the run. Committed slots stay committed.
        LabLedgerError: The base class of these and all other errors, such as `LedgerDiskFull`.

    Example:
        >>> import labledger
        >>> options = labledger.RunOptions(max_concurrency=4, env={"API_KEY": "…"})
        >>> outcome = labledger.run("my-experiment", options)
        >>> outcome.complete
        True

        In a notebook or an event loop, run it in a thread and stop it from outside:

        >>> work = asyncio.to_thread(labledger.run, "my-experiment", options)
        >>> options.stop_request.raise_level()
    """
    options = options or RunOptions()
    return run_source(*read_runnable(experiment, options))


def run_source(source: Path | TranslatedExperiment, options: RunOptions) -> RunOutcome:
    """Run an experiment file or the translation of a benchmark, as `run` does."""
    with experiment_path(source) as path:
        return start_run(path, options, storing(source))


def resume(run_id: str, options: RunOptions | None = None) -> RunOutcome:
    """Continue an interrupted run without starting any trial a second time.

    Collects the trials that have ended, waits for the ones that still run, and runs the others. For
    a complete run it runs nothing and returns the outcome.

    Args:
        run_id: The id of the run, or of an interrupted regrading.
        options: As for `run`, but options that select tasks and variants have no effect. `frozen`
            ignores changes of the experiment's files, and `take_over` takes over the run from
            another coordinator.

    Returns:
        The outcome, as for `run`.

    Raises:
        RunNotFound: The ledger has no such run.
        ExperimentChanged: A file of the experiment that can change results has changed.
        LeaseHeld: Another coordinator owns the run, and `options.placement.take_over` is not set.
        TakeoverStopped: A stop request came while waiting to take over the run.
        PreflightFailed: An image of the run is no longer available.
        InvalidInput: An environment variable that the run needs has no value.

    Example:
        >>> import labledger
        >>> outcome = labledger.resume("demo-20260101-120000-ab12")
    """
    return resume_run(run_id, options or RunOptions())


def regrade(
    run_id: str, grader: str | Path, options: RunOptions | None = None, *, again: bool = False
) -> RunOutcome:
    """Grade the stored trials of a complete run with another grader. Runs no agent.

    The grader runs in a fresh container for each trial, on the workspace that the agent left. The
    scores become the next generation of the run, and earlier generations stay in the ledger. If an
    earlier regrading by this grader is not complete, only its open slots are graded.

    Args:
        run_id: A complete run, or one of its regradings.
        grader: An experiment file whose grader to use, or a script that replaces the run's own
            grader.
        options: As for `run`. Budgets, tasks and variants have no effect.
        again: Start a new regrading even if this grader has already graded the run.

    Returns:
        The outcome. Its `regrading` compares the new scores with the previously current ones.

    Raises:
        RunNotFound: The ledger has no such run.
        RunNotComplete: Some slots of the run are not committed yet.
        AlreadyGraded: The same grader has graded the run, or failed on too many trials, and
            `again` is false.
        PreflightFailed: An image lacks something that the grader needs. No run has been created.
        InvalidInput: The grader or an option is not valid.

    Example:
        >>> import labledger
        >>> outcome = labledger.regrade("demo", "stricter.yaml")
        >>> outcome.run_id
        'demo.g2'
    """
    return regrade_run(run_id, Path(grader), options or RunOptions(), again=again)


def plan_extension(
    run_id: str, experiment: str | Path | None = None, options: RunOptions | None = None
) -> RunExtension:
    """Return what `extend` would add to a run. Writes nothing and starts nothing.

    Args:
        run_id: The run's id.
        experiment: As for `extend`.
        options: As for `extend`.

    Raises:
        RunNotFound: The ledger has no such run.
        ExperimentChanged: The experiment differs in something that the run has already run.
        NothingToExtend: The run already has every cell of the experiment.
        InvalidInput: The experiment or an option is not valid, or the run is a regrading.

    Example:
        >>> import labledger
        >>> options = labledger.RunOptions(selection=labledger.TrialSelection(limit=20))
        >>> labledger.plan_extension("demo", options=options).slot_count
        20
    """
    options = options or RunOptions()
    if experiment is None:
        return prepare_extension(run_id, None, options)
    source, options = read_source(experiment, options)
    with experiment_path(source) as path:
        return prepare_extension(run_id, path, options)


def extend(
    run_id: str,
    experiment: str | Path | None = None,
    options: RunOptions | None = None,
    *,
    because: str | None = None,
) -> RunOutcome:
    """Append further tasks, variants or replications to a run, and run them.

    The new slots follow the existing ones in the experiment's order. The run may be complete or
    interrupted; its uncommitted slots run first. Its existing cells must be unchanged in the new
    experiment. The append is atomic: if the process is killed, `resume` continues with either all
    new slots or none.

    Args:
        run_id: The run's id.
        experiment: The experiment as the run shall be afterwards, in the forms that `run` takes;
            None for the file from which the run was started or last extended.
        options: As for `run`. `limit`, `tasks`, `variants` and `shard` select everything that the
            run shall contain afterwards, not only the additions; by default the whole experiment.
        because: Why the run is extended, in a sentence that is stored with it.

    Returns:
        The outcome of the whole run, as for `run`.

    Raises:
        RunNotFound: The ledger has no such run.
        ExperimentChanged: The experiment differs in something that the run has already run. The
            message names each difference. Nothing was changed.
        NothingToExtend: The run already has every cell of the experiment.
        LeaseHeld: Another coordinator owns the run, and `options.placement.take_over` is not set.
        PreflightFailed: A check before the run failed. Nothing was changed.
        InvalidInput: The experiment or an option is not valid, or the run is a regrading.

    Example:
        >>> import labledger
        >>> options = labledger.RunOptions(selection=labledger.TrialSelection(limit=20))
        >>> outcome = labledger.extend("demo", options=options)
        >>> outcome.run_id
        'demo'
    """
    options = options or RunOptions()
    if experiment is None:
        return extend_run(run_id, None, options, because=because)
    source, options = read_runnable(experiment, options)
    with experiment_path(source) as path:
        return extend_run(run_id, path, options, storing(source), because)


def plan_rerun(
    run_id: str, selection: RerunSelection | None = None, *, lab_dir: str | Path | None = None
) -> RerunPlan:
    """Choose the slots of a run to run again. Changes nothing.

    By default, these are the slots without a verdict because of the environment or the grader:
    `infra_error`, `setup_error`, and `grade_error` if the agent succeeded.

    Args:
        run_id: The run, complete or not. A regrading cannot be rerun.
        selection: Which slots; see `RerunSelection`.
        lab_dir: The lab folder; None for `LABLEDGER_DIR` or the nearest `.lab` folder upwards.

    Returns:
        The chosen slots with their last cost. Matching slots with a verdict are only counted,
        unless `selection.despite_verdict` is set.

    Raises:
        RunNotFound: The ledger has no such run.
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

    Each new slot supersedes an old one: after its commit, views, comparisons and reports use the
    new result, and only the view `all_trials` also has the old one. `resume` continues an
    interrupted rerun.

    Args:
        plan: The result of `plan_rerun`.
        options: As for `resume`; `frozen` uses the run's own copy of a changed experiment.

    Returns:
        The outcome of the whole run.

    Raises:
        InvalidInput: The plan has no slot, or an environment variable of the run has no value.
        ExperimentChanged: A file of the experiment that can change results has changed.
        PreflightFailed: An image of the run is no longer available.
        LeaseHeld: A coordinator owns the run.
        LedgerError: Slots were appended to the run since the plan was made.

    Example:
        >>> import labledger
        >>> outcome = labledger.rerun(labledger.plan_rerun("demo"))
        >>> outcome.complete
        True
    """

    return rerun_slots(plan, options or RunOptions())
