"""Compare two means of a metric, or pass@k and pass^k of two sides, with intervals and tests.

In `of_tasks` the tasks (or clusters of them) are the sample, and the test is a permutation test; in
`of_suite` the tasks are given, and the test is a t test of their replications. In both the p value
is below 1 less the confidence exactly where the interval does not contain 0. There is no interval
where nothing varies. `differences`, of pass@k and pass^k, uses the intervals of pass rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from labledger.compare.statistics import paired_rates, sign_flip_test
from labledger.compare.statistics.rates import PassAt, all_of, any_of
from labledger.compare.statistics.samples import (
    Estimate,
    Groups,
    Inference,
    deviation,
    independent_size,
    mean,
    quantile,
    task_differences,
    task_means,
    units_deviation,
)

SIGN_FLIP = "exact permutation test over tasks"
CLUSTER_FLIP = "exact permutation test over clusters of tasks"
APPROXIMATE = "permutation test over tasks, by saddlepoint"
SUITE_T = "stratified t test"

_SQUARES_FIT = 1e100
"""The squares of values up to this, and from its inverse on, are numbers of a double."""


# -- tasks as a sample


def of_tasks(
    a: Groups, b: Groups, confidence: float, clusters: Sequence[str] | None = None
) -> Inference:
    """Estimate the difference of means, B minus A, for tasks like these, in the metric's unit.

    Each task weighs the same. The tasks, or the `clusters` that are named for each of them, are
    assumed to be an independent sample, and `sign_flip_test` gives the p value and the interval.
    Coverage is as stated for differences that are distributed symmetrically,
    whatever their tails; for skewed ones see `is_skewed`.
    """
    differences, scale = _scaled_down(task_differences(a, b))
    units = sign_flip_test.sampled_units(differences, clusters)
    p, is_exact = sign_flip_test.permutation_p(units.sums_less(0.0))
    low, high = sign_flip_test.bounds(units, confidence, p)
    name = APPROXIMATE if not is_exact else SIGN_FLIP if clusters is None else CLUSTER_FLIP
    return Inference(Estimate(units.mean, low, high).shifted(0.0, scale), p, name)


def _scaled_down(values: Sequence[float]) -> tuple[Sequence[float], float]:
    """Return values whose squares fit a double, and the divisor that made them so."""
    largest = max(map(abs, values), default=0.0)
    if not largest or 1 / _SQUARES_FIT < largest < _SQUARES_FIT:
        return values, 1.0
    return [value / largest for value in values], largest


def mean_of_tasks(
    groups: Groups, confidence: float, clusters: Sequence[str] | None = None
) -> Estimate:
    """Estimate one side's mean for tasks like these, with a t interval.

    Each task weighs the same. There are no bounds where nothing varies.
    """
    import numpy as np

    means = task_means(groups)
    error, _, degrees = units_deviation(np.array(means), clusters)
    return _t_estimate(mean(means), error, degrees, confidence)


def _t_estimate(value: float, error: float, degrees: float, confidence: float) -> Estimate:
    if degrees < 1 or not error:
        return Estimate(value, None, None)
    half = quantile(confidence, degrees) * error
    return Estimate(value, value - half, value + half)


def is_skewed(differences: Sequence[float]) -> bool:
    """Return whether so few differences are too skewed for the interval of their mean to hold.

    This is Cochran's rule (1977, Sampling Techniques, section 2.15): fewer than 25 times the square
    of the skewness, where that is more than 1. Of 12 lognormal differences a 95 % interval contains
    the mean .84 of the time, of 100 .92. Three in four such samples are called skewed; the others
    lack the long tail altogether, which no interval can make up for.
    """
    import numpy as np

    count = len(differences)
    spread = deviation(differences) if count > 2 else 0.0
    if not spread:
        return False
    cubes = ((np.array(differences) - mean(differences)) / spread) ** 3
    # Adjusted for its bias in small samples (Joanes and Gill 1998, The Statistician 47:183–189).
    skewness = float(cubes.sum()) * count / ((count - 1) * (count - 2))
    return abs(skewness) > 1 and count < 25 * skewness**2


def unseen_share(units: float) -> float:
    """Return the share of tasks of which so many units have none in one sample of twenty.

    About three of that many (Hanley and Lippman-Hand 1983, JAMA 249:1743–1745). No interval can
    account for what a sample does not contain.
    """
    return float(1 - 0.05 ** (1 / units))


def standardized(differences: Sequence[float]) -> float | None:
    """Return Cohen's d_z: the mean difference in standard deviations of the tasks' differences.

    Cohen 1988, Statistical Power Analysis, section 2.3.5. None where the differences do not vary.
    """
    if len(differences) < 2:
        return None
    spread = deviation(differences)
    return mean(differences) / spread if spread else None


def of_suite(a: Groups, b: Groups, confidence: float) -> Inference:
    """Estimate the difference of means, B minus A, for these fixed tasks, in the metric's unit.

    Each task weighs the same; its replications are the sample, assumed to be independent. A t test
    of the mean of the tasks' differences, with the variance of each task's replications on each
    side, and degrees of freedom by Satterthwaite (1946, Biometrics Bulletin 2:110–114; of strata:
    Cochran 1977, Sampling Techniques, section 5.4). A task with a single trial on a side is assumed
    to vary there as the side's others do on average. Where no trial differs from another of its
    task and side, only their number counts: the p value is then that of exchanging trials within
    tasks, and there is no interval, because nothing tells how much trials vary.
    """
    value = mean(task_differences(a, b))
    error, degrees = suite_deviation(a, b)
    if error:
        from scipy import special

        p = 2 * float(special.stdtr(degrees, -abs(value) / error))
        return Inference(_t_estimate(value, error, degrees, confidence), min(1.0, p), SUITE_T)
    return Inference(Estimate(value, None, None), _constant_p(a, b) if value else 1.0, SUITE_T)


def suite_deviation(*sides: Groups) -> tuple[float, float]:
    """Return the standard error of a sum of the sides' means, and its degrees of freedom.

    A side's mean is that of its tasks' means, and the error is due to their replications.
    """
    by_side = [[deviation(g) if len(g) > 1 else None for g in groups] for groups in sides]
    all_known = [known for deviations in by_side for known in deviations if known is not None]
    errors, degrees = [], []
    for groups, deviations in zip(sides, by_side, strict=True):
        # A side without replications is assumed to vary as the other one does.
        measured = [known for known in deviations if known is not None] or all_known
        usual = math.hypot(*measured) / math.sqrt(len(measured)) if measured else 0.0
        for known, group in zip(deviations, groups, strict=True):
            of_trial = usual if known is None else known
            errors.append(of_trial / math.sqrt(len(group)) / len(groups))
            degrees.append(len(measured) if known is None else len(group) - 1)
    total = math.hypot(*errors)
    if not total:
        return 0.0, 0.0
    shares = ((error / total) ** 4 / free for error, free in zip(errors, degrees, strict=True))
    return total, 1 / math.fsum(shares)


def _constant_p(a: Groups, b: Groups) -> float:
    """Return the p value, by permutation within tasks, of trials that do not vary within a side."""
    ways = 1.0
    for trials_a, trials_b in zip(a, b, strict=True):
        if trials_a[0] != trials_b[0]:
            exchanges = math.comb(len(trials_a) + len(trials_b), len(trials_a))
            ways = min(1e300, ways * exchanges)
    return min(1.0, 2 / ways)


def mean_of_suite(groups: Groups, confidence: float) -> Estimate:
    """Estimate one side's mean for these fixed tasks, with a t interval of its replications."""
    value = mean(task_means(groups))
    return _t_estimate(value, *suite_deviation(groups), confidence)


_OfTask = Callable[[int, int, int], float]
"""An estimate of one task from its trials, its passes and k."""

_EDGE = 1e-12


def differences(
    a: Groups,
    b: Groups,
    k: int,
    confidence: float,
    clusters: Sequence[str] | None = None,
    *,
    is_suite: bool = False,
) -> PassAt:
    """Estimate the differences of pass@k and pass^k, B minus A.

    A difference is the mean of the tasks' differences, over the tasks that have k replications on
    both sides. The intervals are for one k each: nothing corrects for several.

    For tasks like these, the effective number of pairs follows from the spread of the tasks' (or
    `clusters`') differences, as in `paired_rates.discordance`; a task counts as at most as many
    pairs as it has disjoint groups of k trials. For k = 1 the estimate is that of the pass rate.

    For these tasks (`is_suite`) it follows from the spread within tasks, by the jackknife over the
    trials of each side, which errs on the safe side for such estimates (Efron and Stein 1981,
    Annals of Statistics 9:586–596). It is never less than that of tasks like these, whose spread
    includes the one within tasks. There is no interval where a side has only k trials of a task,
    which are a single estimate.
    """
    enough = [i for i in range(len(a)) if min(len(a[i]), len(b[i])) >= k]
    if not enough:
        return PassAt(k, 0, None, None)
    if k == 1 and is_suite and any(len(group) > 1 for group in (*a, *b)):
        estimate = paired_rates.of_suite(a, b, confidence).estimate
        return PassAt(k, len(a), estimate, estimate)
    counts = [[_counts(side[i]) for i in enough] for side in (a, b)]
    named = None if clusters is None else [clusters[i] for i in enough]
    any_passes, all_pass = (
        _difference(counts, k, of_task, confidence, named, is_suite=is_suite)
        for of_task in (any_of, all_of)
    )
    return PassAt(k, len(enough), any_passes, all_pass)


def _counts(group: Sequence[float]) -> tuple[int, int]:
    """Return the trials of a task and how many passed."""
    return len(group), round(math.fsum(group))


def _difference(
    counts: Sequence[Sequence[tuple[int, int]]],
    k: int,
    of_task: _OfTask,
    confidence: float,
    clusters: Sequence[str] | None,
    *,
    is_suite: bool,
) -> Estimate:
    rates_a, rates_b = ([of_task(n, passed, k) for n, passed in side] for side in counts)
    independent = independent_size(
        2 / (1 / (n_a // k) + 1 / (n_b // k)) for (n_a, _), (n_b, _) in zip(*counts, strict=True)
    )
    if not is_suite:
        return paired_rates.of_rates(rates_a, rates_b, independent, confidence, clusters).estimate
    pairs = paired_rates.discordance_of_rates(rates_a, rates_b, independent)
    within = _variance_within(counts, k, of_task)
    if within is None:
        return Estimate(pairs.difference, None, None)
    variance = pairs.gained + pairs.lost - pairs.difference**2
    seen = variance / within if within > _EDGE else independent
    size = max(pairs.size(confidence), min(independent, seen))
    low, high = paired_rates.tango_interval(
        pairs.gained * size, pairs.lost * size, size, confidence
    )
    return Estimate(pairs.difference, low, high)


def _variance_within(
    counts: Sequence[Sequence[tuple[int, int]]], k: int, of_task: _OfTask
) -> float | None:
    """Return the variance of the mean difference that is due to the trials of each task.

    None where a side has only k trials of some task.
    """
    if any(n == k for side in counts for n, _ in side):
        return None
    total = math.fsum(_jackknife(n, passed, k, of_task) for side in counts for n, passed in side)
    return total / len(counts[0]) ** 2


def _jackknife(n: int, passed: int, k: int, of_task: _OfTask) -> float:
    """Return the jackknife variance of a task's estimate on one side."""
    if passed in (0, n):
        return 0.0
    without_pass, without_failure = of_task(n - 1, passed - 1, k), of_task(n - 1, passed, k)
    # The n estimates without one trial take two values.
    return (n - 1) / n**2 * passed * (n - passed) * (without_pass - without_failure) ** 2
