"""The exit codes of the command line.

An error has one (`LabLedgerError.exit_code`), and so have a failed check of preflight and a run
that ended (`RunOutcome.exit_code`).
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line, as documented in docs/reference/outcomes.md."""

    COMPLETE = 0
    GATE_MISSED = 1
    INVALID = 2
    INCOMPLETE = 3
    INTERRUPTED = 130
