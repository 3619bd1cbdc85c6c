"""labledger runs agent experiments in containers and keeps every result in one SQLite ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labledger.errors import (
    AlreadyGraded,
    DiskFull,
    EngineUnavailable,
    Exit,
    ExperimentChanged,
    ExtraMissing,
    InvalidInput,
    LabLedgerError,
    LeaseHeld,
    LeaseLost,
    LedgerDiskFull,
    LedgerError,
    LedgerMissing,
    LedgerOutdated,
    LedgerTooNew,
    MalformedJson,
    NotALedger,
    PreflightFailed,
    Problem,
    QueryFailed,
    RunExists,
    RunNotComplete,
    RunNotFound,
    SchemaInvalid,
    SlotNotFound,
    TakeoverStopped,
)

if TYPE_CHECKING:
    from labledger.api import (
        CompareOptions,
        Ledger,
        ReportOptions,
        RunOptions,
        RunOutcome,
        open_ledger,
        regrade,
        resume,
        run,
    )

__version__ = "0.2.0"

__all__ = [
    "AlreadyGraded",
    "CompareOptions",
    "DiskFull",
    "EngineUnavailable",
    "Exit",
    "ExperimentChanged",
    "ExtraMissing",
    "InvalidInput",
    "LabLedgerError",
    "LeaseHeld",
    "LeaseLost",
    "Ledger",
    "LedgerDiskFull",
    "LedgerError",
    "LedgerMissing",
    "LedgerOutdated",
    "LedgerTooNew",
    "MalformedJson",
    "NotALedger",
    "PreflightFailed",
    "Problem",
    "QueryFailed",
    "ReportOptions",
    "RunExists",
    "RunNotComplete",
    "RunNotFound",
    "RunOptions",
    "RunOutcome",
    "SchemaInvalid",
    "SlotNotFound",
    "TakeoverStopped",
    "open_ledger",
    "regrade",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    # The parts are loaded when first used, so that the command line starts fast.
    if name in __all__:
        from labledger import api

        return getattr(api, name)
    raise AttributeError(f"module 'labledger' has no attribute {name!r}")
