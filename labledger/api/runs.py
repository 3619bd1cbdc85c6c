"""The functions that execute trials: `run`, `resume`, `regrade`, `extend` and `rerun`.

Each blocks until the run has ended or stopped, and raises a `LabLedgerError` for every error that a
caller can handle. They work in any thread. In the main thread, Ctrl-C, TERM and HUP are stop
requests while a run lasts; in another thread no signal handler is installed. `plan_extension` and
`plan_rerun` say what would be added to a run and change nothing. What was committed never changes:
a slot that runs again is a new slot, and the old one stays in the ledger.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labledger.api.experiment_sources import experiment_path, read_runnable, read_source, storing
from labledger.files.lab_folder import LabFolder
from labledger.ledger.reader import LedgerReader
from labledger.runner.extend import RunExtension, extend_run, prepare_extension
from labledger.runner.regrade import regrade_run
from labledger.runner.rerun import RerunPlan, RerunSelection, choose_slots
from labledger.runner.run_options import RunOptions
from labledger.runner.run_outcome import RunOutcome
from labledger.runner.run_start import resume_run, start_run

if TYPE_CHECKING:
    from labledger.benchmarks.translate import TranslatedExperiment


def run(experiment: str | Path, options: RunOptions | None = None) -> RunOutcome:
    """Run an experiment in Docker containers and return its outcome.

    Blocks until every slot is committed, or until the run stops: by a stop request, a spent budget,
    or a machine that stays unusable for longer than `options.patience_s`. A run that stopped can be
    continued with `resume`. Missing images are pulled, or built if the experiment says how. The
    ledger is that of `options.lab_dir`, which is found from the working directory if it is not
    given, not from the experiment's folder; the command line does the same.

    Args:
        experiment: The experiment file, a folder that holds `experiment.yaml`, or a benchmark as
            `FORMAT:LOCATION`, such as `humaneval:./HumanEval.jsonl`.
        options: Everything that is not part of the experiment, such as the lab folder, how many
            trials run at once, a budget and a listener for events; see `RunOptions`.

    Returns:
        The outcome. `complete` tells whether every slot is committed, `summary` holds the scores.
        A run that stopped early is returned, not raised: `stop` says why.

    Raises:
        InvalidInput: The experiment or an option is not valid. No run has been created.
        PreflightFailed: A check before the run failed, such as a missing image. No run has been
            created.
        ImageBuildsStopped: `options.stop_request` was raised while images were built. No run has
            been created.
        RunExists: The ledger already holds a run with `options.run_id`.
        LeaseLost: Another coordinator has taken the run over. Committed slots stay committed.
        LabLedgerError: The base class of these and all others, such as `LedgerDiskFull`.

    Example:
        >>> import labledger
        >>> options = labledger.RunOptions(max_concurrency=4, env={"API_KEY": "…"}, budget_usd=20)
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
    """Continue an interrupted run. No trial that was started is run again.

    Trials that ended meanwhile are collected from their containers, and running ones are waited
    for. Resuming a complete run runs nothing and returns its outcome.

    Args:
        run_id: The run's id, or that of an interrupted regrading.
        options: As for `run`; those that choose tasks and variants have no effect. `frozen` ignores
            changes of the experiment's files, `take_over` takes the run from another coordinator.

    Returns:
        The outcome, as that of `run`.

    Raises:
        RunNotFound: The ledger holds no such run.
        ExperimentChanged: A file of the experiment that can change results has changed.
        LeaseHeld: Another coordinator owns the run, and `options.take_over` is not set.
        TakeoverStopped: A stop request came while waiting to take the run over.
        PreflightFailed: An image of the run is not available any more.
        InvalidInput: An environment variable that the run needs has no value.

    Example:
        >>> import labledger
        >>> outcome = labledger.resume("demo-20260101-120000-ab12")
    """
    return resume_run(run_id, options or RunOptions())


def regrade(
    run_id: str, grader: str | Path, options: RunOptions | None = None, *, again: bool = False
) -> RunOutcome:
    """Grade the stored trials of a complete run with another grader, as its next generation.

    No agent runs: the grader runs in a fresh container of each trial, over the workspace that its
    agent left. The scores of earlier generations stay in the ledger. If this grader has begun a
    regrading and not completed it, only the open slots are graded.

    Args:
        run_id: A complete run, or one of its regradings.
        grader: An experiment file, whose grader is used, or a script that replaces the run's own.
        options: As for `run`. Budgets, tasks and variants have no effect.
        again: Begin a new regrading even if this grader has graded the run before.

    Returns:
        The outcome; its `regrading` compares the new scores with those that were current before.

    Raises:
        RunNotFound: The ledger holds no such run.
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
        return extend_run(run_id, None, options, because=because)
    source, options = read_runnable(experiment, options)
    with experiment_path(source) as path:
        return extend_run(run_id, path, options, storing(source), because)


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
    from labledger.runner.rerun import rerun_slots

    return rerun_slots(plan, options or RunOptions())
