"""What a planned run costs and how long it takes, from the trials of earlier runs.

A range is the interval of the new run's sum: it includes that the mean is known from few tasks, and
that the new tasks vary. A variant that has not run before is taken to be like all that have.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labledger.compare.statistics.samples import Estimate, mean, quantile
from labledger.planning.history import TrialSpent


@dataclass(frozen=True, slots=True)
class _Usual:
    """The mean of one variant's trials, each task weighing the same."""

    value: float
    deviation: float
    """The standard deviation of the tasks' means."""
    tasks: int


@dataclass(frozen=True, slots=True)
class Spending:
    """What trials of the planned variants usually cost and take."""

    _costs: tuple[_Usual, ...] | None
    """By variant; None where no trial reported its cost."""
    _durations: tuple[_Usual, ...] | None
    longest_ms: float
    concurrency: int
    confidence: float
    new_variants: tuple[str, ...]
    """The variants that no earlier run has."""
    without_costs: tuple[str, ...]
    """The other variants of which no trial reported its cost, where those of others did."""

    def cost_usd(self, tasks: int, replications: int) -> Estimate | None:
        """Return the cost of a run with so many tasks and replications, in USD."""
        return self._sum(self._costs, tasks, replications)

    def duration_ms(self, tasks: int, replications: int) -> Estimate | None:
        """Return the time that a run takes with the experiment's concurrency, in milliseconds.

        It is that of all trials divided by how many run at once; the upper bound has the longest
        trial once more, because at the end not all places are taken.
        """
        total = self._sum(self._durations, tasks, replications)
        if total is None:
            return None
        places = min(self.concurrency, tasks * replications * len(self._durations or ()))
        low = None if total.low is None else total.low / places
        high = None if total.high is None else total.high / places
        if high is not None and places > 1:
            high += self.longest_ms
        return Estimate(total.value / places, low, high)

    def _sum(
        self, usual: Sequence[_Usual] | None, tasks: int, replications: int
    ) -> Estimate | None:
        if not usual:
            return None
        trials = tasks * replications
        value = trials * math.fsum(each.value for each in usual)
        least = min(each.tasks for each in usual)
        if least < 2:
            return Estimate(value, None, None)
        # Variants run on the same tasks, so their sums vary together.
        error = trials * math.fsum(
            each.deviation * math.sqrt(1 / each.tasks + 1 / tasks) for each in usual
        )
        half = quantile(self.confidence, least - 1) * error
        return Estimate(value, max(0.0, value - half), value + half)


def usual_spending(
    spent: Sequence[TrialSpent], variants: Sequence[str], concurrency: int, confidence: float
) -> Spending:
    """Return what trials of some variants usually cost and take."""
    known = {trial.variant_id for trial in spent}
    with_costs = {trial.variant_id for trial in spent if trial.cost_usd is not None}
    return Spending(
        _costs=_by_variant(spent, variants, lambda trial: trial.cost_usd),
        _durations=_by_variant(spent, variants, lambda trial: trial.duration_ms),
        longest_ms=max((trial.duration_ms for trial in spent), default=0.0),
        concurrency=concurrency,
        confidence=confidence,
        new_variants=tuple(name for name in variants if name not in known),
        without_costs=tuple(
            name for name in variants if with_costs and name in known and name not in with_costs
        ),
    )


def _by_variant(
    spent: Sequence[TrialSpent],
    variants: Sequence[str],
    value_of: Callable[[TrialSpent], float | None],
) -> tuple[_Usual, ...] | None:
    by_task: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in spent:
        value = value_of(trial)
        if value is not None:
            for name in (trial.variant_id, ""):
                by_task[name][trial.task_id].append(value)
    if not by_task:
        return None
    return tuple(_usual(by_task.get(name) or by_task[""]) for name in variants)


def _usual(by_task: dict[str, list[float]]) -> _Usual:
    means = [mean(values) for values in by_task.values()]
    centre = mean(means)
    spread = 0.0
    if len(means) > 1:
        squares = math.fsum((value - centre) ** 2 for value in means)
        spread = math.sqrt(squares / (len(means) - 1))
    return _Usual(centre, spread, len(means))
