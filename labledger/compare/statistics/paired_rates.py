"""Compare two pass rates, with tests of their difference and a matching interval.

The p value is below 1 minus the confidence if and only if the interval does not contain 0. In
`of_tasks`, tasks or clusters are the sample. In `of_suite`, replications of fixed tasks are the
sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labledger.compare.statistics import sign_flip_test, uneven_suites
from labledger.compare.statistics.samples import (
    Estimate,
    Groups,
    Inference,
    bisected,
    independent_size,
    quantile,
    task_means,
    units_deviation,
    without_rounding,
)

if TYPE_CHECKING:
    from labledger.compare.statistics.samples import Array

SCORE = "score test and permutation test over tasks"
CLUSTERED_SCORE = "score test and permutation test over clusters of tasks"
SUITE_SCORE = "stratified score test"

_EDGE = 1e-12
MOST_BY_HALF = 0.5 + _EDGE
"""The largest share of differing pairs for which the test of tasks uses the mid-p value."""
_STEPS = 60
"""The bisections of a bound, which make it exact to 2⁻⁶⁰."""


# -- tasks as a sample


@dataclass(frozen=True, slots=True)
class Discordance:
    """How often a trial of A and one of B of the same task differ, and the effective sample."""

    gained: float
    """The share of pairs that B alone passed; each task has the same weight."""
    lost: float
    """The share that A alone passed."""
    least_size: float
    """The effective number of pairs if a task's trials were all alike: the tasks minus 1."""
    seen_size: float
    """The effective number of pairs according to the spread of the tasks' differences."""
    degrees: float
    """The degrees of freedom of this spread."""

    def size(self, confidence: float) -> float:
        """Return the effective number of pairs for an interval."""
        if not self.degrees:
            return 0.0
        ratio = quantile(confidence) / quantile(confidence, self.degrees)
        return max(self.least_size, self.seen_size * ratio**2)

    @property
    def difference(self) -> float:
        """B minus A."""
        return without_rounding(self.gained - self.lost, self.gained)

    @property
    def score_p(self) -> float:
        """The two-sided p value of the score test of no difference."""
        from scipy import special

        differing = self.gained + self.lost
        if not self.degrees or differing <= _EDGE:
            return 1.0
        standardized = abs(self.difference) / math.sqrt(differing)
        as_single = 2 * special.ndtr(-standardized * math.sqrt(self.least_size))
        as_seen = 2 * special.stdtr(self.degrees, -standardized * math.sqrt(self.seen_size))
        return min(1.0, float(as_single), float(as_seen))


def discordance(a: Groups, b: Groups) -> Discordance:
    """Return how the pairs of tasks differ, from the 0s and 1s of each task's trials.

    A task's pairs combine each trial of A with each trial of B. Their effective number is the
    variance of one pair divided by the variance of the mean, which the spread of the tasks'
    differences shows (Rao and Scott 1992, Biometrics 48:577–585). An interval multiplies it by
    (z/t)², because few tasks give a poor estimate of the spread (Korn and Graubard 1998, Survey
    Methodology 24:193–201). Each task counts as at least a single pair.
    """
    independent = independent_pairs(map(len, a), map(len, b))
    return discordance_of_rates(task_means(a), task_means(b), independent)


def independent_pairs(a: Iterable[int], b: Iterable[int]) -> float:
    """Return the effective number of pairs if tasks did not matter.

    `a` and `b` are the numbers of trials of each task on both sides.
    """
    return independent_size(2 / (1 / n_a + 1 / n_b) for n_a, n_b in zip(a, b, strict=True))


def discordance_of_rates(a: Sequence[float], b: Sequence[float], independent: float) -> Discordance:
    """Return how the pairs of tasks differ, from each task's rate on both sides.

    `independent` is the effective number of pairs if tasks did not matter.
    """
    import numpy as np

    passed_a, passed_b = np.array(a), np.array(b)
    gained = float(np.mean(passed_b * (1 - passed_a)))
    lost = float(np.mean(passed_a * (1 - passed_b)))
    variance = gained + lost - (gained - lost) ** 2
    spread, least, degrees = units_deviation(passed_b - passed_a)
    seen = least
    if variance > _EDGE and degrees:
        seen = min(independent, variance / spread**2) if spread else independent
    return Discordance(gained, lost, least, seen, degrees)


def of_tasks(
    a: Groups, b: Groups, confidence: float, clusters: Sequence[str] | None = None
) -> Inference:
    """Estimate the difference of pass rates, B minus A, for tasks like these.

    Each task has the same weight. The tasks, or the clusters that `clusters` names for each task,
    are assumed to be an independent sample. A difference is shown if two tests show it: the score
    test and the test of `sign_flip_test`. The p value is the larger one.

    The score statistic is Tango's (1998, Statistics in Medicine 17:891–908) for the effective
    number of pairs (`discordance`). With one replication this is the number of tasks minus 1, which
    multiplies the variance by n/(n − 1), as Miettinen and Nurminen (1985, Statistics in Medicine
    4:213–226) do. Used alone, it would show a difference for 4 tasks gained and none lost, of 26 or
    more.

    For tasks, the sign-flip test uses the mid-p value if up to half of the pairs differ. With one
    replication this is McNemar's mid-p test (Fagerland, Lydersen and Laake 2013, BMC Medical
    Research Methodology 13:91). If more pairs differ, the mid-p value is too small, and the test is
    the exact one. The interval is the score interval, extended to 0 if only the score test rejects.

    Clusters may be few and of unequal size. Their sign-flip test is the exact one over clusters,
    which decides in all but rare cases; the score test still uses tasks. The interval spans the
    intervals of both tests. If all clusters differ by the same amount, the sign flips give no
    interval, so each cluster counts as one pair. There is no interval for too few clusters.

    `python -m bench.comparison_error` enumerates the errors with one replication, and
    `scripts/simulate-statistics` simulates them with replications and clusters.
    """
    independent = independent_pairs(map(len, a), map(len, b))
    return of_rates(task_means(a), task_means(b), independent, confidence, clusters)


def of_rates(
    a: Sequence[float],
    b: Sequence[float],
    independent: float,
    confidence: float,
    clusters: Sequence[str] | None = None,
) -> Inference:
    """Estimate the mean difference of the tasks' rates, with the method of `of_tasks`.

    For `independent` see `discordance_of_rates`.
    """
    pairs = discordance_of_rates(a, b, independent)
    score = _score_bounds_of(pairs, pairs.size(confidence), confidence)
    units = sign_flip_test.sampled_units([y - x for x, y in zip(a, b, strict=True)], clusters)
    has_mid_p = clusters is None and pairs.gained + pairs.lost <= MOST_BY_HALF
    flips_p, _ = sign_flip_test.permutation_p(units.sums_less(0.0), mid=has_mid_p)
    p = max(pairs.score_p, flips_p)
    name, (low, high) = SCORE, score
    if clusters is not None:
        name, count = CLUSTERED_SCORE, len(units.sums)
        if not sign_flip_test.can_reject(count, confidence):
            return Inference(Estimate(pairs.difference, None, None), p, name)
        flips_low, flips_high = sign_flip_test.bounds(units, confidence, flips_p)
        if flips_low is None or flips_high is None:
            flips_low, flips_high = _score_bounds_of(pairs, count, confidence)
        low, high = max(-1.0, min(low, flips_low)), min(1.0, max(high, flips_high))
    low, high = sign_flip_test.bounds_agreeing_with_p(
        pairs.difference, low, high, is_shown=p < 1 - confidence
    )
    return Inference(Estimate(pairs.difference, low, high), p, name)


def can_show(
    a: Iterable[int], b: Iterable[int], confidence: float, clusters: Sequence[str] | None = None
) -> bool:
    """Return whether any results could show a difference, given each task's number of trials.

    The p value is smallest if A passes nothing and B passes everything, or half of its trials,
    because the mid-p value is used only if up to half of the pairs differ.
    """
    trials_a, trials_b = list(a), list(b)
    independent = independent_pairs(trials_a, trials_b)
    none = [0.0] * len(trials_a)
    extremes = [1.0] * len(trials_b), [n // 2 / n for n in trials_b]
    return any(
        of_rates(none, rates, independent, confidence, clusters).p < 1 - confidence
        for rates in extremes
    )


def _score_bounds_of(pairs: Discordance, size: float, confidence: float) -> tuple[float, float]:
    return tango_interval(pairs.gained * size, pairs.lost * size, size, confidence)


def tango_interval(
    gained: float, lost: float, size: float, confidence: float
) -> tuple[float, float]:
    """Return the score interval of the difference of two paired proportions.

    The difference is (gained − lost) / size. Among `size` pairs, B alone passed `gained` and A
    alone passed `lost`; these need not be whole numbers. The interval has a width even if all pairs
    agree. Tango 1998, Statistics in Medicine 17:891–908; recommended for small samples by
    Fagerland, Lydersen and Laake 2014, Statistics in Medicine 33:2850–2875.
    """
    if size <= 0:
        return -1.0, 1.0

    def score(difference: float) -> float:
        """Return the score statistic for a hypothetical difference, with which it falls."""
        a = 2 * size
        b = -gained - lost + (2 * size - gained + lost) * difference
        c = -lost * difference * (1 - difference)
        lost_share = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
        variance = size * (2 * lost_share + difference * (1 - difference))
        return (gained - lost - size * difference) / math.sqrt(max(variance, _EDGE))

    return score_bounds(score, (gained - lost) / size, confidence)


def score_bounds(
    score: Callable[[float], float], value: float, confidence: float
) -> tuple[float, float]:
    """Return the differences at which a score statistic is ± the quantile.

    The statistic falls with the difference and is 0 at the observed difference `value`.
    """
    z = quantile(confidence)
    low, high = -1 + _EDGE, 1 - _EDGE
    lower, upper = -1.0, 1.0
    if score(low) >= z:
        lower = sum(bisected(lambda d: not score(d) - z > 0, low, value, _STEPS)) / 2
    if score(high) <= -z:
        upper = sum(bisected(lambda d: not score(d) + z > 0, value, high, _STEPS)) / 2
    return lower, upper


# -- tasks as given


@dataclass(frozen=True, slots=True)
class Strata:
    """Tasks with the same counts of passes and trials on both sides, taken together."""

    tasks: Array
    """The number of tasks in each stratum."""
    passed_a: Array
    trials_a: Array
    passed_b: Array
    trials_b: Array

    @property
    def difference(self) -> float:
        """The mean over the tasks of B minus A."""
        rates = self.passed_b / self.trials_b - self.passed_a / self.trials_a
        value = float(self.tasks @ rates / self.tasks.sum())
        return without_rounding(value, 1.0)

    def variance(self, difference: float) -> float:
        """Return the variance of the mean difference if all tasks differed by `difference`."""
        import numpy as np

        rate_a = likeliest_rates(self, difference)
        rate_b = np.clip(rate_a + difference, 0.0, 1.0)
        variances = rate_a * (1 - rate_a) / self.trials_a + rate_b * (1 - rate_b) / self.trials_b
        trials = self.trials_a + self.trials_b
        return float(self.tasks @ (variances * trials / (trials - 1)) / self.tasks.sum() ** 2)


def strata(a: Groups, b: Groups) -> Strata:
    """Return the strata of tasks, from the 0s and 1s of each task's trials.

    Both sides of a task count with the number of trials of the side with fewer. Otherwise the side
    with more trials would dominate the common rate of the null hypothesis.
    """
    import numpy as np

    counts = []
    for trials_a, trials_b in zip(a, b, strict=True):
        fewer = min(len(trials_a), len(trials_b))
        passed = (math.fsum(trials) * (fewer / len(trials)) for trials in (trials_a, trials_b))
        counts.append((next(passed), fewer, next(passed), fewer))
    rows, tasks = np.unique(np.array(counts), axis=0, return_counts=True)
    return Strata(tasks.astype(np.float64), *rows.T)


def of_suite(a: Groups, b: Groups, confidence: float) -> Inference:
    """Estimate the difference of pass rates, B minus A, for these fixed tasks.

    Each task has the same weight, and its replications are assumed to be an independent sample. At
    least one task needs two trials on a side.

    The score statistic is Miettinen and Nurminen's (1985, Statistics in Medicine 4:213–226), summed
    over the tasks as strata of equal weight. A task's variance is computed at the likeliest rates
    that differ by the hypothetical difference, so the interval has a width even if every trial
    passed. If tasks differ by different amounts, this variance is too large, which errs on the safe
    side. The test requires similar numbers of trials; otherwise `uneven_suites` compares the sides.
    """
    from scipy import special

    if not uneven_suites.are_nearly_even(a, b):
        return uneven_suites.of_suite(a, b, confidence)
    tasks = strata(a, b)
    value = tasks.difference

    def score(difference: float) -> float:
        return (value - difference) / math.sqrt(max(tasks.variance(difference), _EDGE**2))

    low, high = score_bounds(score, value, confidence)
    p = 2 * float(special.ndtr(-abs(score(0.0)))) if abs(value) > _EDGE else 1.0
    return Inference(Estimate(value, low, high), min(1.0, p), SUITE_SCORE)


def likeliest_rates(observed: Strata, difference: float) -> Array:
    """Return A's maximum-likelihood rate in each stratum if B's rate is larger by `difference`.

    It is the root of a cubic (Miettinen and Nurminen 1985, appendix 1).
    """
    import numpy as np

    x_a, n_a = observed.passed_a, observed.trials_a
    x_b, n_b = observed.passed_b, observed.trials_b
    total, passed = n_a + n_b, x_a + x_b
    cubic = total
    square = (n_b + 2 * n_a) * difference - total - passed
    linear = (n_a * difference - total - 2 * x_a) * difference + passed
    constant = x_a * difference * (1 - difference)
    third = square / (3 * cubic)
    q = third**3 - square * linear / (6 * cubic**2) + constant / (2 * cubic)
    p = np.copysign(np.sqrt(np.maximum(third**2 - linear / (3 * cubic), 0.0)), q)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.where(np.abs(p) > _EDGE, q / p**3, 0.0)
    angle = (math.pi + np.arccos(np.clip(cosine, -1.0, 1.0))) / 3
    rates = 2 * p * np.cos(angle) - third
    return np.asarray(np.clip(rates, max(0.0, -difference), min(1.0, 1.0 - difference)))
