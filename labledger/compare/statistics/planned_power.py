"""Compute the power of a comparison, the size that reaches it, and detectable differences.

The power is computed for the score tests of `paired_rates`. For metrics, it is computed for t
tests, because the permutation test of `paired_means` has no formula. Both sides have equally many
tasks and replications. A bisection finds sizes and detectable differences (with 80 % power).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from labledger.compare.statistics import (
    paired_means,
    paired_rates,
    sign_flip_test,
    variance_components,
)
from labledger.compare.statistics.samples import Groups, bisected, mean, quantile, task_means
from labledger.compare.statistics.variance_components import Components

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]


POWER = 0.8
"""The probability with which a difference must be shown to count as detectable."""

_STEPS = 40
_DRAWS = 4000
"""The number of simulated samples if a power has no formula, for a standard error up to 0.8 %."""
_NORMAL_DEGREES = 100_000
"""From this number of degrees of freedom on, the normal distribution replaces t."""


def rate_can_be_shown(pairs: int, confidence: float) -> bool:
    """Return whether both tests reject if all `pairs` differ in one direction."""
    can_flip = sign_flip_test.can_reject(pairs, confidence)
    return can_flip and math.sqrt(max(0, pairs - 1)) > quantile(confidence)


def detectable_rate(
    size: float, discordant: float, confidence: float, rate: float = 0.5
) -> float | None:
    """Return the smallest difference of pass rates (0 to 1) that the score test shows with `POWER`.

    `size` is the effective number of pairs; for `discordant` and `rate` see `discordant_at`.
    Returns None if no difference is large enough.
    """
    pairs = math.floor(size + 1e-9)

    def power(difference: float) -> float:
        differing = discordant_at(difference, discordant, rate)
        return rate_power(pairs, differing, difference, confidence)

    return None if pairs < 2 else detectable(power, 1.0)


def discordant_at(difference: float, discordant: float, rate: float) -> float:
    """Return the share of pairs that differ if the rates of both sides differ by `difference`.

    `discordant` is the share without a difference, and `rate` is A's pass rate. If a side's rate
    moves away from 0 or 1, its trials vary more and more pairs differ. The share is at least the
    difference, when all differing pairs go one way.
    """
    return min(1.0, max(discordant + difference * abs(2 * rate - 1), difference))


def rate_power(pairs: int, discordant: float, difference: float, confidence: float) -> float:
    """Return the power of the tests of `paired_rates.of_tasks` at a difference of pass rates.

    `pairs` are assumed to be independent, with a share `discordant` that differs. The number of
    discordant pairs is binomial, and given it, so is the number that goes one way (Duffy 1984,
    Biometrics 40:1005–1015, for the exact test). For many pairs this approaches the formula of
    Connor 1987, Biometrics 43:207–211.
    """
    import numpy as np
    from scipy import special

    margin = 8 * math.sqrt(pairs * discordant * (1 - discordant)) + 1
    first = max(0, math.floor(pairs * discordant - margin))
    last = min(pairs, math.ceil(pairs * discordant + margin))
    counts = np.arange(first, last + 1)
    # The largest count on the rarer side with which both tests still reject; -1 if there is none.
    scale = math.sqrt(pairs / (pairs - 1)) if pairs > 1 else math.inf
    critical = np.ceil((counts - quantile(confidence) * scale * np.sqrt(counts)) / 2) - 1
    critical = np.where(counts > 0, critical, -1)
    while (refused := _sign_flip_p(critical, counts, pairs) >= 1 - confidence).any():
        critical = np.where(refused, critical - 1, critical)
    one_way = (discordant + difference) / (2 * discordant) if discordant else 0.5
    possible = critical >= 0
    least = np.maximum(critical, 0)
    rejected = special.bdtr(least, counts, one_way) + special.bdtr(least, counts, 1 - one_way)
    log_chance = special.xlogy(counts, discordant) + special.xlog1py(pairs - counts, -discordant)
    ways = special.gammaln([pairs + 1]) - special.gammaln(counts + 1)
    chance = np.exp(ways - special.gammaln(pairs - counts + 1) + log_chance)
    return float(np.sum(np.where(possible, chance * np.minimum(rejected, 1.0), 0.0)))


def _sign_flip_p(fewer: Numbers, differing: Numbers, pairs: int) -> Numbers:
    """Return the p value of the sign-flip test, as `paired_rates.of_tasks` computes it.

    `fewer` of the `differing` pairs go the rarer way. If this number is below 0, the p value is 0.
    """
    import numpy as np

    at_most = _up_to(fewer, differing)
    as_extreme = _up_to(fewer - 1, differing)
    has_mid_p = differing <= paired_rates.MOST_BY_HALF * pairs
    return at_most + np.where(has_mid_p, as_extreme, at_most)


def _up_to(most: Numbers, count: Numbers) -> Numbers:
    """Return the probability of at most `most` heads in `count` tosses."""
    import numpy as np
    from scipy import special

    return np.where(most < 0, 0.0, special.bdtr(np.maximum(most, 0), count, 0.5))


def detectable_shift(deviation: float, degrees: float, confidence: float) -> float | None:
    """Return the smallest difference that a t test shows with `POWER`, in the values' unit.

    `deviation` is the standard error of the difference and `degrees` its degrees of freedom.
    Returns None if nothing varies. The permutation test has a similar power.
    """
    from scipy import special

    if not deviation or degrees < 1:
        return None
    if degrees >= _NORMAL_DEGREES:
        return float((quantile(confidence) + special.ndtri(POWER)) * deviation)
    critical = float(special.stdtrit(degrees, (1 + confidence) / 2))
    high = 2 * (critical + 5)
    return smallest_difference(lambda shift: t_power(shift, degrees, confidence), high) * deviation


def t_power(shift: float, degrees: float, confidence: float) -> float:
    """Return the power of a t test for a difference of `shift` standard errors."""
    from scipy import special

    if degrees < 1:
        return 0.0
    if degrees >= _NORMAL_DEGREES:
        return float(special.ndtr(shift - quantile(confidence)))
    critical = float(special.stdtrit(degrees, (1 + confidence) / 2))
    return float(1 - special.nctdtr(degrees, shift, critical))


def smallest_difference(
    power: Callable[[float], float], high: float, least: float = POWER
) -> float:
    """Return the smallest difference up to `high` with a power of `least`, by bisection."""
    return bisected(lambda difference: not power(difference) < least, 0.0, high, _STEPS)[1]


MOST_TASKS = 1_000_000
MOST_REPLICATIONS = 10_000


def with_more_pairs(differing: float, pairs: float, *, is_replicated: bool) -> float:
    """Return the share of differing pairs after adding half a differing pair, or a whole one.

    The share from few pairs is too small as often as too large, but a plan loses more power if it
    is too small than it gains if it is too large. Jeffreys' prior adds half an observation to a
    count. Pairs without replications are less informative and get a whole one.
    """
    more = 0.5 if is_replicated else 1.0
    return differing + max(0.0, 1 - differing) * more / (pairs + more)


@dataclass(frozen=True, slots=True)
class Variation:
    """The assumed variation of the differences of a planned comparison.

    Attributes:
        between: The variance of the tasks' true differences, times the effect of clusters.
        within: The sum of the variances of single trials of a task on both sides. None if it is not
            known; then replications are assumed to add nothing for tasks like these.
        is_rate: Whether pass rates are compared.
        rate: The pass rate of the side that does not move, as `rate_with_spread` returns it. The
            nearer it is to 0 or 1, the more the other side's trials vary when its rate moves away.
    """

    between: float
    within: float | None
    is_rate: bool
    rate: float = 0.5

    def of_task(self, replications: int) -> float:
        return self.between + (self.within or 0.0) / replications

    def with_half_a_pair(self, tasks: int) -> Variation:
        """Return the variation as if more of the `tasks` pairs of a pilot had differed.

        See `with_more_pairs`. The parts between and within tasks keep their proportion.
        """
        whole = self.of_task(1)
        share = with_more_pairs(whole, tasks, is_replicated=self.within is not None)
        if whole > 0:
            return self.times(share / whole)
        if self.within is None:
            return replace(self, between=share)
        return replace(self, within=share)

    def without(self, explained: float) -> Variation:
        """Return the variation minus an explained part, with both parts in proportion."""
        whole = self.of_task(1)
        return self if whole <= 0 else self.times(max(0.0, 1 - explained / whole))

    def times(self, factor: float) -> Variation:
        """Return the variation with all variances multiplied by a factor."""
        within = None if self.within is None else self.within * factor
        return replace(self, between=self.between * factor, within=within)


def planned_variation(known: Components, *, is_rate: bool, is_suite: bool = False) -> Variation:
    """Return the variation of an experiment's differences, as a pilot shows it.

    For pass rates, the result leaves out the variation caused by the pilot's own difference.
    """
    whole = Variation(known.between, known.within, is_rate)
    if not is_rate:
        return whole if is_suite else whole.times(known.design_effect)
    rate = variance_components.rate_with_spread(known.baseline, known.spread)
    whole = replace(whole, rate=rate)
    if not is_suite:
        unmoved = whole.without(known.explained).with_half_a_pair(known.tasks)
        return unmoved.times(known.design_effect)
    if known.within is None:
        return whole
    return replace(whole, within=max(0.0, known.within - known.explained_within))


def tasks_power(
    variation: Variation, tasks: int, replications: int, difference: float, confidence: float
) -> float:
    """Return the power to show a difference on tasks like these with a sample of `tasks` tasks."""
    if tasks < 2:
        return 0.0
    of_task = variation.of_task(replications)
    if not variation.is_rate:
        if not sign_flip_test.can_reject(tasks, confidence):
            return 0.0
        return _t_power(difference, of_task / tasks, tasks - 1, confidence)
    if not rate_can_be_shown(tasks, confidence):
        return 0.0
    moved = _moved(variation, difference)
    of_pair, of_task = variation.of_task(1) + moved, of_task + moved / replications
    size = tasks - 1.0
    if replications > 1 and variation.within is not None:
        # The effective number of pairs, as `paired_rates.Discordance.size` sees it.
        worth = min(float(replications), of_pair / of_task) if of_task > 0 else replications
        ratio = quantile(confidence) / quantile(confidence, tasks - 1)
        size = max(size, tasks * worth * ratio**2)
    # A share of pairs that differ has the variance of single pairs, and exceeds the difference.
    discordant = min(1.0, max(of_pair + difference**2, difference))
    return rate_power(math.floor(size + 1e-9) + 1, discordant, difference, confidence)


def power_at_every_look(
    variation: Variation, tasks: int, replications: int, difference: float, confidence: float
) -> float:
    """Return the power of `paired_means.at_every_look` to show a difference of pass rates.

    The tasks' differences are drawn from three values, -h, 0 and h, with the planned mean and
    variance. With one replication, h is 1. The draws are always the same.
    """
    import numpy as np

    of_task = variation.of_task(replications) + _moved(variation, difference) / replications
    square = max(of_task, 0.0) + difference**2
    size = 1.0 if replications == 1 else min(1.0, max(1 / replications, math.sqrt(square)))
    differing = min(1.0, max(square / size**2, difference / size))
    up = min(1.0, (differing + difference / size) / 2)
    chances = np.array([up, max(0.0, differing - up), max(0.0, 1 - differing)])
    counts = np.random.default_rng(1).multinomial(tasks, chances / chances.sum(), _DRAWS)
    values = np.array([size, -size, 0.0])
    shown = paired_means.shows_at_every_look(values, counts.astype(np.float64), confidence)
    return float(shown.mean())


def _moved(variation: Variation, difference: float) -> float:
    """Return the variance that a pair gains if one side moves away from 0 or 1."""
    return max(0.0, difference * abs(2 * variation.rate - 1) - difference**2)


def suite_power(
    variation: Variation, tasks: int, replications: float, difference: float, confidence: float
) -> float:
    """Return the power to show a difference on exactly these tasks.

    The trials are the sample, so the power is 0 with one replication, or if the variation of trials
    is unknown. For pass rates, the score test uses the variance without a difference. It is larger,
    because both sides then have the mean of their rates.
    """
    from scipy import special

    if replications <= 1 or variation.within is None:
        return 0.0
    within = variation.within
    if not variation.is_rate:
        of_mean = within / (tasks * replications)
        return _t_power(difference, of_mean, 2 * tasks * (replications - 1), confidence)
    of_mean = (within + _moved(variation, difference)) / (tasks * replications)
    apart = (variation.between + difference**2) / (2 * tasks * replications)
    at_null = of_mean + apart * 2 * replications / (2 * replications - 1)
    beyond = difference - quantile(confidence) * math.sqrt(at_null)
    if of_mean <= 0:
        return float(beyond > 0)
    return float(special.ndtr(beyond / math.sqrt(of_mean)))


def suite_detectable(a: Groups, b: Groups, confidence: float) -> float | None:
    """Return the smallest difference of pass rates that these trials of fixed tasks could show.

    Returns None if no difference is large enough.
    """
    between, within = variance_components.of_suite(a, b)
    rate_a, rate_b = mean(task_means(a)), mean(task_means(b))
    unmoved = max(0.0, within - variance_components.explained_within_by(rate_a, rate_b))
    rate = variance_components.rate_with_spread(rate_a, variance_components.spread_of(a, b))
    variation = Variation(between, unmoved, is_rate=True, rate=rate)
    replications = paired_rates.independent_pairs(map(len, a), map(len, b)) / len(a)

    def power_at(difference: float) -> float:
        return suite_power(variation, len(a), replications, difference, confidence)

    return detectable(power_at, largest=1.0)


def _t_power(difference: float, variance: float, degrees: float, confidence: float) -> float:
    if variance <= 0:
        return 1.0
    return t_power(difference / math.sqrt(variance), degrees, confidence)


def tasks_needed(
    variation: Variation,
    replications: int,
    difference: float,
    confidence: float,
    least: float = POWER,
) -> int | None:
    """Return the fewest tasks with a power of `least`; None if more than `MOST_TASKS`."""

    def reached(tasks: int) -> bool:
        return tasks_power(variation, tasks, replications, difference, confidence) >= least

    return _fewest(reached, MOST_TASKS)


def replications_needed(
    variation: Variation,
    tasks: int,
    difference: float,
    confidence: float,
    least: float = POWER,
) -> int | None:
    """Return the fewest replications of a fixed suite with a power of `least`.

    None if more than `MOST_REPLICATIONS`, or if the variation of trials is unknown.
    """

    def reached(replications: int) -> bool:
        return suite_power(variation, tasks, replications, difference, confidence) >= least

    return _fewest(reached, MOST_REPLICATIONS)


def _fewest(reached: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number from 2 to `most` for which `reached` is true; None if none is."""
    low = high = 2
    while not reached(high):
        if high >= most:
            return None
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return high


def detectable(
    power_at: Callable[[float], float], largest: float, least: float = POWER
) -> float | None:
    """Return the smallest difference with a power of `least`; None if `largest` has less.

    `power_at` returns the power to show a difference.
    """
    if power_at(largest) < least:
        return None
    return smallest_difference(power_at, largest, least)
