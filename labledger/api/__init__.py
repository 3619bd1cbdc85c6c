"""The library: `run`, `resume` and `regrade`, and a `Ledger` to query, compare and report.

In: paths and typed options. Out: typed results. Errors are `LabLedgerError`s.
May not import `cli`. Each name is imported when it is first used: a query needs nothing that runs
trials.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labledger.api.ledger import Ledger, open_ledger
    from labledger.api.runs import regrade, resume, run
    from labledger.compare.options import CompareOptions
    from labledger.report.options import ReportOptions
    from labledger.runner.options import RunOptions, RunOutcome

_MODULES = {
    "CompareOptions": "labledger.compare.options",
    "Ledger": "labledger.api.ledger",
    "ReportOptions": "labledger.report.options",
    "RunOptions": "labledger.runner.options",
    "RunOutcome": "labledger.runner.options",
    "open_ledger": "labledger.api.ledger",
    "regrade": "labledger.api.runs",
    "resume": "labledger.api.runs",
    "run": "labledger.api.runs",
}

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


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'labledger.api' has no attribute {name!r}")
