"""The library: `run`, `resume`, `regrade`, `open_ledger`. The command line is a layer over it."""

from __future__ import annotations

from pathlib import Path

from labledger.analysis.question import CompareOptions
from labledger.analysis.report.options import ReportOptions
from labledger.reading import Ledger, open_ledger
from labledger.runner.launch import resume_run, start_run
from labledger.runner.options import RunOptions, RunOutcome
from labledger.runner.regrading import regrade_run

__all__ = [
    "CompareOptions",
    "Ledger",
    "ReportOptions",
    "RunOptions",
    "RunOutcome",
    "open_ledger",
    "regrade",
    "resume",
    "run",
]


def run(experiment: str | Path, options: RunOptions | None = None) -> RunOutcome:
    """Run an experiment file to its end and return how it stands.

    Raises `InvalidInput` or `PreflightFailed` before anything exists, and another
    `LabLedgerError` where the run could not go on; then `resume` continues it.
    """
    return start_run(Path(experiment), options or RunOptions())


def resume(run_id: str, options: RunOptions | None = None) -> RunOutcome:
    """Go on with an interrupted run. Nothing that finished or was started is run again."""
    return resume_run(run_id, options or RunOptions())


def regrade(
    run_id: str, grader: str | Path, options: RunOptions | None = None, *, again: bool = False
) -> RunOutcome:
    """Judge a complete run's stored evidence with another grader, as its next generation.

    `grader` is an experiment file, whose grader is taken, or a script in the place of the run's
    own. No agent runs. Raises `RunNotComplete`, or `AlreadyJudged` where the same grader has
    judged the run before and `again` is not given.
    """
    return regrade_run(run_id, Path(grader), options or RunOptions(), again=again)
