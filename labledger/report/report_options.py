"""The options of a report: which comparisons, which logs, how large.

`ReportOptions` is part of the public API; `check` reports every invalid option at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from labledger.compare.compare_options import PASS_RATE, CompareOptions, ErrorCounting, Estimand
from labledger.errors import InvalidInput, Parameter, Problem

MIB = 1024 * 1024
_MIN_BYTES = MIB


class LogSelection(StrEnum):
    """The trials whose logs and patches the page holds."""

    NONE = "none"
    FAILED = "failed"
    """Of trials that did not complete, or whose verdict is not `pass`."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The options of a report.

    Attributes:
        compare: What to compare the run with: another run (``RUN`` or ``RUN:VARIANT``), or two of
            its variants such as ``A B``; empty for the baseline with every treatment.
        all_pairs: Compare every pair of variants, and rank them in tie groups, in place of the
            baseline with every treatment.
        confidence: The level of intervals and decisions, 0.5 or more and less than 1.
        estimand: What comparisons are about, tasks like these or exactly these.
        equivalent_within: Say of each comparison whether its sides are shown to differ by less than
            this share, or this much of `metric`.
        metric: What comparisons are about, as in `CompareOptions`; so the next three.
        lower_is_better: Whether lower values of the metric are better.
        errors: How comparisons of pass rates count slots without a counted verdict.
        cluster: The field of a task's row whose values are the clusters.
        logs: The trials whose logs and patches the page holds.
        max_bytes: The approximate size limit of the page in bytes; logs beyond it are left out.
        verify: Recompute every digest of the run, as `verify` does, not only the chain's.
    """

    compare: tuple[str, ...] = ()
    all_pairs: bool = False
    confidence: float = 0.95
    estimand: Estimand = Estimand.TASKS
    equivalent_within: float | None = None
    metric: str = PASS_RATE
    lower_is_better: bool | None = None
    errors: ErrorCounting = ErrorCounting.AS_FAILURES
    cluster: str | None = None
    logs: LogSelection = LogSelection.FAILED
    max_bytes: int = 10 * MIB
    verify: bool = False

    @property
    def comparison(self) -> CompareOptions:
        """The options of the report's comparisons."""
        return CompareOptions(
            metric=self.metric,
            lower_is_better=self.lower_is_better,
            confidence=self.confidence,
            estimand=self.estimand,
            cluster=self.cluster,
            errors=self.errors,
            all_pairs=self.all_pairs,
            equivalent_within=self.equivalent_within,
        )

    def check(self) -> None:
        """Raise `InvalidInput` with every option that is not valid."""
        problems = list(self.comparison.problems())
        if self.max_bytes < _MIN_BYTES:
            message = f"found {self.max_bytes:,} bytes; expected at least {_MIN_BYTES:,}"
            problems.append(Problem(Parameter("max_bytes"), message))
        if self.all_pairs and self.compare:
            message = "is for other comparisons than `all_pairs=True`; ask for one of them"
            problems.append(Problem(Parameter("compare"), message))
        if problems:
            raise InvalidInput("the options of the report", problems)
