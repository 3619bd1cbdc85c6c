"""`run`, `resume` and `regrade`: what executes trials, as functions with typed options.

The command line calls what these call. Each returns when the run has ended or stopped, and raises a
`LabLedgerError` for everything that a caller can do something about.
"""

from __future__ import annotations

from pathlib import Path

from labledger.runner.options import RunOptions, RunOutcome
from labledger.runner.regrade import regrade_run
from labledger.runner.start_and_resume import resume_run, start_run


def run(experiment: str | Path, options: RunOptions | None = None) -> RunOutcome:
    """Run an experiment file to its end and return the run's outcome.

    Raises `InvalidInput` or `PreflightFailed` before anything is created, and another
    `LabLedgerError` if the run could not continue; then `resume` continues it.
    """
    return start_run(Path(experiment), options or RunOptions())


def resume(run_id: str, options: RunOptions | None = None) -> RunOutcome:
    """Continue an interrupted run. No trial that was started is run again."""
    return resume_run(run_id, options or RunOptions())


def regrade(
    run_id: str, grader: str | Path, options: RunOptions | None = None, *, again: bool = False
) -> RunOutcome:
    """Grade the stored trials of a complete run with another grader, as its next generation.

    `grader` is an experiment file, whose grader is used, or a script that replaces the run's own.
    No agent runs. Raises `RunNotComplete`, or `AlreadyGraded` if the same grader has graded the
    run before and `again` is false.
    """
    return regrade_run(run_id, Path(grader), options or RunOptions(), again=again)
