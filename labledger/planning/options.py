"""The options of a plan. `PlanOptions` is part of the public API."""

from __future__ import annotations

import math
from dataclasses import dataclass

from labledger.compare.options import PASS_RATE
from labledger.errors import InvalidInput, Parameter, Problem


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan shall show, and from which runs it is estimated.

    Attributes:
        detect: The difference to show: a share for pass rates, such as 0.05 for 5 points; else in
            the metric's unit.
        power: The probability with which it shall be shown, more than 0 and less than 1.
        confidence: The level of the comparison's interval, as for `CompareOptions`; also that of
            the ranges of a plan.
        metric: `pass_rate`, the name of the primary metric, or the id of a metric that is a number.
        from_runs: The runs that variances, costs and times are estimated from; `RUN1+RUN2` are
            several taken as one. By default the newest runs of the same experiment.
    """

    detect: float
    power: float = 0.8
    confidence: float = 0.95
    metric: str = PASS_RATE
    from_runs: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise `InvalidInput` with every option that is not valid."""
        problems = []
        is_rate = self.metric == PASS_RATE
        if not (
            math.isfinite(self.detect) and self.detect > 0 and (self.detect <= 1 or not is_rate)
        ):
            expected = "a share above 0, up to 1, such as 0.05" if is_rate else "more than 0"
            problems.append(
                Problem(Parameter("detect"), f"found {self.detect:g}; expected {expected}")
            )
        if not 0 < self.power < 1:
            message = f"found {self.power:g}; expected more than 0 and less than 1"
            problems.append(Problem(Parameter("power"), message))
        if not 0.5 <= self.confidence < 1:
            message = f"found {self.confidence:g}; expected 0.5 or more and less than 1"
            problems.append(Problem(Parameter("confidence"), message))
        if problems:
            raise InvalidInput("the options of the plan", problems)
