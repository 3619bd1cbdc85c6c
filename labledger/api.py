"""The library: `run`, `resume` and `open_ledger`. The command line is a thin layer over it."""

from __future__ import annotations

from pathlib import Path

from labledger.analysis.question import CompareOptions
from labledger.analysis.report.options import ReportOptions
from labledger.reading import Ledger, open_ledger
from labledger.runner.launch import resume_run, start_run
from labledger.runner.options import RunOptions, RunOutcome

__all__ = [
    "CompareOptions",
    "Ledger",
    "ReportOptions",
    "RunOptions",
    "RunOutcome",
    "open_ledger",
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
