"""The power of a comparison that has not been run, and how many tasks or replications reach it.

It is the power of the tests that `compare` uses: the score tests of `paired_rates`, and t tests in
place of the permutation test of `paired_means`. `variance_components` estimates what tasks and
trials vary by. Two sides have the same number of tasks and of replications.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from labledger.compare.statistics import (
    paired_rates,
    permutation_test,
    power,
    variance_components,
)
from labledger.compare.statistics.samples import Groups, mean, quantile, task_means

MOST_TASKS = 1_000_000
MOST_REPLICATIONS = 10_000


@dataclass(frozen=True, slots=True)
class Variation:
    """What the differences of a planned comparison are assumed to vary by.

    Attributes:
        between: The variance of the tasks' true differences, times the effect of clusters.
        within: The variances of single trials of a task on both sides, added up; None where it is
            not known. Then replications are assumed to add nothing for tasks like these.
        is_rate: Whether pass rates are compared.
        rate: The pass rate of both sides. The nearer it is to 0 or 1, the more do trials of a side
            vary whose rate is moved away from there.
    """

    between: float
    within: float | None
    is_rate: bool
    rate: float = 0.5

    def of_task(self, replications: int) -> float:
        return self.between + (self.within or 0.0) / replications

    def with_half_a_pair(self, tasks: int) -> Variation:
        """Return the same as if of `tasks` pairs of a pilot half a pair more had differed.

        So few tasks tell a rate that is near 0 or 1 too small as often as too large, but a plan
        loses more by the first than it gains by the second. Half an observation is what Jeffreys'
        prior adds to a count.
        """
        alike = max(0.0, 1 - self.of_task(1))
        return replace(self, between=(tasks * self.between + alike / 2) / (tasks + 0.5))

    def times(self, factor: float) -> Variation:
        """Return the same with all variances multiplied by a factor."""
        within = None if self.within is None else self.within * factor
        return replace(self, between=self.between * factor, within=within)


def tasks_power(
    variation: Variation, tasks: int, replications: int, difference: float, confidence: float
) -> float:
    """Return the power to show a difference on tasks like these, of which `tasks` are a sample."""
    if tasks < 2:
        return 0.0
    of_task = variation.of_task(replications)
    if not variation.is_rate:
        if not permutation_test.can_reject(tasks, confidence):
            return 0.0
        return _t_power(difference, of_task / tasks, tasks - 1, confidence)
    if not power.rate_can_be_shown(tasks, confidence):
        return 0.0
    of_pair = variation.of_task(1)
    size = tasks - 1.0
    if replications > 1 and variation.within is not None:
        # The effective number of pairs, as `paired_rates.Discordance.size` sees it.
        worth = min(float(replications), of_pair / of_task) if of_task > 0 else replications
        ratio = quantile(confidence) / quantile(confidence, tasks - 1)
        size = max(size, tasks * worth * ratio**2)
    # A share of pairs that differ has the variance of single pairs, and exceeds the difference.
    discordant = min(1.0, max(of_pair + difference**2, difference))
    return power.rate_power(math.floor(size + 1e-9) + 1, discordant, difference, confidence)


def suite_power(
    variation: Variation, tasks: int, replications: float, difference: float, confidence: float
) -> float:
    """Return the power to show a difference on exactly these tasks.

    Their trials are the sample: 0 with one replication, or where it is not known how much trials
    vary. For pass rates, the score test takes the variance that tasks would have without a
    difference: the larger one of trials whose rate is the mean of both sides'.
    """
    from scipy import special

    if replications <= 1 or variation.within is None:
        return 0.0
    within = variation.within
    if not variation.is_rate:
        of_mean = within / (tasks * replications)
        return _t_power(difference, of_mean, 2 * tasks * (replications - 1), confidence)
    # p (1 - p) of the side whose rates are moved by the difference, away from 0 or 1.
    moved = difference * abs(2 * variation.rate - 1) - difference**2
    of_mean = (within + max(0.0, moved)) / (tasks * replications)
    apart = (variation.between + difference**2) / (2 * tasks * replications)
    at_null = of_mean + apart * 2 * replications / (2 * replications - 1)
    beyond = difference - quantile(confidence) * math.sqrt(at_null)
    if of_mean <= 0:
        return float(beyond > 0)
    return float(special.ndtr(beyond / math.sqrt(of_mean)))


def suite_detectable(a: Groups, b: Groups, confidence: float) -> float | None:
    """Return the smallest difference of pass rates that these trials of given tasks could show.

    None where no difference is large enough.
    """
    between, within = variance_components.of_suite(a, b)
    rate = mean([*task_means(a), *task_means(b)])
    variation = Variation(between, within, is_rate=True, rate=rate)
    replications = paired_rates.independent_pairs(a, b) / len(a)

    def power_at(difference: float) -> float:
        return suite_power(variation, len(a), replications, difference, confidence)

    return detectable(power_at, largest=1.0)


def _t_power(difference: float, variance: float, degrees: float, confidence: float) -> float:
    if variance <= 0:
        return 1.0
    return power.t_power(difference / math.sqrt(variance), degrees, confidence)


def tasks_needed(
    variation: Variation,
    replications: int,
    difference: float,
    confidence: float,
    least: float = power.POWER,
) -> int | None:
    """Return the fewest tasks with which the power is `least`; None beyond `MOST_TASKS`."""

    def reached(tasks: int) -> bool:
        return tasks_power(variation, tasks, replications, difference, confidence) >= least

    return _fewest(reached, 2, MOST_TASKS)


def replications_needed(
    variation: Variation,
    tasks: int,
    difference: float,
    confidence: float,
    least: float = power.POWER,
) -> int | None:
    """Return the fewest replications of a fixed suite with which the power is `least`.

    None beyond `MOST_REPLICATIONS`, or where it is not known how much trials vary.
    """

    def reached(replications: int) -> bool:
        return suite_power(variation, tasks, replications, difference, confidence) >= least

    return _fewest(reached, 2, MOST_REPLICATIONS)


def _fewest(reached: Callable[[int], bool], low: int, most: int) -> int | None:
    """Return the smallest number from `low` to `most` for which a growing power is reached."""
    high = low
    while not reached(high):
        if high >= most:
            return None
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return high


def detectable(
    power_at: Callable[[float], float], largest: float, least: float = power.POWER
) -> float | None:
    """Return the smallest difference with a power of `least`; None where `largest` has less.

    `power_at` returns the power to show a difference.
    """
    if power_at(largest) < least:
        return None
    return power.smallest_difference(power_at, largest, least)
