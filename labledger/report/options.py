"""The options of a report: which comparisons, which logs, how large.

`ReportOptions` is part of the public API; `check` reports every invalid option at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from labledger.compare.options import Estimand
from labledger.errors import InvalidInput, Problem

MIB = 1024 * 1024
_LEAST_BYTES = MIB


class Logs(StrEnum):
    """The trials whose logs and patches the page holds."""

    NONE = "none"
    FAILED = "failed"
    """Of trials that did not complete, or whose verdict is not `pass`."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """How to report."""

    compare: tuple[str, ...] = ()
    """What to compare, each in the words of `run_report.sides_of`; without any, the baseline with
    every treatment."""
    confidence: float = 0.95
    """Of intervals and decisions."""
    estimand: Estimand = Estimand.TASKS
    """What comparisons are about."""
    logs: Logs = Logs.FAILED
    max_bytes: int = 10 * MIB
    """About how large the page may become; logs that would make it larger are left out."""
    verify: bool = False
    """Recompute every digest of the run, as `labledger verify` does, not the chain's alone."""

    def check(self) -> None:
        """Raise `InvalidInput` with every option that is not valid."""
        problems = []
        if not (math.isfinite(self.confidence) and 0.5 <= self.confidence < 1):
            message = f"found {self.confidence:g}; expected 0.5 or more and less than 1"
            problems.append(Problem("--confidence", message))
        if self.max_bytes < _LEAST_BYTES:
            message = f"found {self.max_bytes:,} bytes; expected at least {_LEAST_BYTES:,}"
            problems.append(Problem("--max-size", message))
        if problems:
            raise InvalidInput("the options of the report", problems)
