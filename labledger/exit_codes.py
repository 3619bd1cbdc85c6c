"""The exit codes of the command line.

Errors have one (`LabLedgerError.exit_code`), and so do failed checks and the outcomes of runs
(`RunOutcome.exit_code`).
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
