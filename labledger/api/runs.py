"""`run`, `resume` and `regrade`: the functions that execute trials.

Each blocks until the run has ended or stopped, and raises a `LabLedgerError` for every error that a
caller can handle. They work in any thread. In the main thread, Ctrl-C, TERM and HUP are stop
requests while a run lasts; in another thread no signal handler is installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labledger.api.experiment_sources import read_runnable
from labledger.runner.options import RunOptions, RunOutcome
from labledger.runner.regrade import regrade_run
from labledger.runner.start_and_resume import resume_run, start_run

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
    if isinstance(source, Path):
        return start_run(source, options)
    from labledger.benchmarks.stored_experiments import store_experiment, temporary_copy

    with temporary_copy(source) as path:
        return start_run(path, options, lambda lab: store_experiment(source, lab.benchmarks))


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
    agent left. The scores of earlier generations stay in the ledger.

    Args:
        run_id: A complete run, or one of its regradings.
        grader: An experiment file, whose grader is used, or a script that replaces the run's own.
        options: As for `run`. Budgets, tasks and variants have no effect.
        again: Allow a grader that has graded the run before.

    Returns:
        The outcome; its `regrading` compares the new scores with those that were current before.

    Raises:
        RunNotFound: The ledger holds no such run.
        RunNotComplete: Some slots of the run are not committed yet.
        AlreadyGraded: The same grader has graded the run, and `again` is false.
        PreflightFailed: An image lacks something that the grader needs. No run has been created.
        InvalidInput: The grader or an option is not valid.

    Example:
        >>> import labledger
        >>> outcome = labledger.regrade("demo", "stricter.yaml")
        >>> outcome.run_id
        'demo.g2'
    """
    return regrade_run(run_id, Path(grader), options or RunOptions(), again=again)
