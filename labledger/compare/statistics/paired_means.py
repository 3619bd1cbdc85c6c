"""Compare two means, with intervals and tests.

In `of_tasks`, tasks or clusters are the sample, and the test is a permutation test. In `of_suite`,
replications of fixed tasks are, and the test is a t test. `at_every_look` is a confidence sequence.
P values are below 1 minus the confidence if and only if intervals do not contain 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from labledger.compare.statistics import sign_flip_test, skewness
from labledger.compare.statistics.samples import (
    Estimate,
    Groups,
    Inference,
    bisected,
    deviation,
    mean,
    task_differences,
    task_means,
    units_deviation,
)
from labledger.compare.statistics.sign_flip_test import Units
from labledger.compare.statistics.skewness import Skewness

if TYPE_CHECKING:
    from labledger.compare.statistics.samples import Array

SIGN_FLIP = "exact permutation test over tasks"
CLUSTER_FLIP = "exact permutation test over clusters of tasks"
APPROXIMATE = "permutation test over tasks, by saddlepoint"
SUITE_T = "stratified t test"
BETTING = "anytime-valid betting test"

_NOT_SKEWED = Skewness()

_SQUARES_FIT = 1e100
"""A double can hold the squares of values between the inverse of this number and the number."""
_STAKES = 256
"""The number of stakes that each side of the bet is spread over."""
_STEPS = 40
"""The bisections of a bound, which make it exact to 2⁻³⁹."""


# -- tasks as a sample


def of_tasks(
    a: Groups, b: Groups, confidence: float, clusters: Sequence[str] | None = None
) -> Inference:
    """Estimate the difference of means, B minus A, for tasks like these, in the metric's unit.

    Each task has the same weight. The tasks, or the clusters that `clusters` names for each task,
    are assumed to be an independent sample. `sign_flip_test` computes the p value and the interval.
    Its coverage holds for symmetric distributions with any tails; for skewed ones see `is_skewed`.
    """
    differences, scale = _scaled_down(task_differences(a, b))
    units = sign_flip_test.sampled_units(differences, clusters)
    p, is_exact = sign_flip_test.permutation_p(units.sums_less(0.0))
    skewed = sign_flip_test.skewness_of(units)
    p = skewness.corrected_p(skewed.below if units.mean > 0 else skewed.above, p)
    low, high = sign_flip_test.bounds(units, confidence, p, skewed)
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

    Each task has the same weight. There are no bounds if nothing varies.
    """
    import numpy as np

    means = task_means(groups)
    error, _, degrees = units_deviation(np.array(means), clusters)
    skewed = sign_flip_test.skewness_of(sign_flip_test.sampled_units(means, clusters))
    return _t_estimate(mean(means), error, degrees, confidence, skewed)


def _t_estimate(
    value: float,
    error: float,
    degrees: float,
    confidence: float,
    skewed: Skewness = _NOT_SKEWED,
) -> Estimate:
    from scipy import special

    if degrees < 1 or not error:
        return Estimate(value, None, None)
    low, high = (
        float(special.stdtrit(degrees, skewness.uncorrected_level(side, 1 - confidence) / 2))
        for side in (skewed.below, skewed.above)
    )
    return Estimate(value, value + low * error, value - high * error)


def is_skewed(differences: Sequence[float]) -> bool:
    """Return whether the differences are too few for their skewness, so that the interval may miss.

    Cochran's rule (1977, Sampling Techniques, section 2.15) requires at least 25 times the square
    of the skewness if the skewness is more than 1. A 95 % interval contains the mean of 12
    lognormal differences .84 of the time, and of 100 .92. Three in four such samples are called
    skewed. The others lack the long tail altogether, and no interval can make up for that.
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
    """Return the share of tasks that a sample of `units` misses altogether 5 % of the time.

    It is about 3 / `units` (Hanley and Lippman-Hand 1983, JAMA 249:1743–1745). No interval can
    account for values that a sample does not contain.
    """
    return float(1 - 0.05 ** (1 / units))


def standardized(differences: Sequence[float]) -> float | None:
    """Return Cohen's d_z: the mean difference in standard deviations of the tasks' differences.

    Cohen 1988, Statistical Power Analysis, section 2.3.5. None if the differences do not vary.
    """
    if len(differences) < 2:
        return None
    spread = deviation(differences)
    return mean(differences) / spread if spread else None


# -- tasks as given


def of_suite(a: Groups, b: Groups, confidence: float) -> Inference:
    """Estimate the difference of means, B minus A, for these fixed tasks, in the metric's unit.

    Each task has the same weight, and its replications are assumed to be an independent sample. The
    test is a t test of the mean of the tasks' differences. It uses the variance of each task's
    replications on each side, and degrees of freedom by Satterthwaite (1946, Biometrics Bulletin
    2:110–114; for strata: Cochran 1977, Sampling Techniques, section 5.4). `_collapsed_tasks` says
    how tasks with a single trial on a side vary.

    If the trials of a task and side never differ, the variation is unknown and there is no
    interval. The p value then comes from exchanging trials within tasks.
    """
    value = mean(task_differences(a, b))
    error, degrees = suite_deviation(a, b)
    if error:
        from scipy import special

        p = 2 * float(special.stdtr(degrees, -abs(value) / error))
        return Inference(_t_estimate(value, error, degrees, confidence), min(1.0, p), SUITE_T)
    return Inference(Estimate(value, None, None), _constant_p(a, b) if value else 1.0, SUITE_T)


def suite_deviation(a: Groups, b: Groups) -> tuple[float, float]:
    """Return the standard error of the difference of two sides' means, and its degrees of freedom.

    The error is due to the tasks' replications. It is 0 if no trial differs from another of its
    task and side, because then nothing tells how much trials vary.
    """
    everything = _added_up(_errors((a, b), range(len(a))))
    collapsed = _collapsed_tasks(a, b)
    if not collapsed or not everything[0]:
        return everything
    differences = task_differences(a, b)
    spread = deviation([differences[number] for number in collapsed])
    others = [number for number in range(len(a)) if number not in set(collapsed)]
    by_differences = spread * math.sqrt(len(collapsed)) / len(a), float(len(collapsed) - 1)
    by_others = _added_up(_errors((a, b), collapsed))
    return _added_up([max(by_differences, by_others), *_errors((a, b), others)])


def _collapsed_tasks(a: Groups, b: Groups) -> Sequence[int]:
    """Return which tasks' differences are taken as a sample of one mean.

    They have a single trial on a side, so nothing tells how much it varies. The spread of their
    differences is at least as large on average, whatever their true ones are: it contains the
    spread of these as well (collapsed strata: Cochran 1977, Sampling Techniques, section 5A.12).
    A task that is alone in this gets the company of the task with the fewest trials.
    """
    sizes = [(min(len(x), len(y)), len(x) + len(y)) for x, y in zip(a, b, strict=True)]
    single = [number for number, (least, _) in enumerate(sizes) if least == 1]
    if len(single) != 1 or len(a) == 1:
        return single if len(a) > 1 else []
    return sorted(range(len(a)), key=lambda number: sizes[number])[:2]


def _errors(sides: Sequence[Groups], numbers: Iterable[int]) -> Iterator[tuple[float, float]]:
    """Yield the parts that the trials of some tasks add to the error of a sum of the sides' means.

    Each part comes with its degrees of freedom. A single trial is assumed to vary as the repeated
    trials of its side do on average, or of the other side if its side has none.
    """
    by_side = [[(deviation(g), len(g) - 1) for g in groups if len(g) > 1] for groups in sides]
    all_measured = [task for measured in by_side for task in measured]
    chosen = list(numbers)
    for groups, measured in zip(sides, by_side, strict=True):
        chosen_groups = [groups[number] for number in chosen]
        for group in chosen_groups:
            if len(group) > 1:
                error = deviation(group) / math.sqrt(len(group)) / len(groups)
                yield error, float(len(group) - 1)
        single = sum(len(group) == 1 for group in chosen_groups)
        usual, free = _usual_deviation(measured or all_measured)
        if single and usual:
            # One figure stands for all of them, so they err together.
            yield usual * math.sqrt(single) / len(groups), free


def _added_up(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the error of a sum of independent parts and its degrees of freedom, from theirs."""
    errors = list(parts)
    total = math.hypot(*(error for error, _ in errors))
    if not total:
        return 0.0, 0.0
    return total, 1 / math.fsum((error / total) ** 4 / free for error, free in errors)


def _usual_deviation(measured: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return the quadratic mean of deviations, and its degrees of freedom by Satterthwaite.

    Each deviation comes with its degrees of freedom. The mean has few degrees if the deviations are
    few or differ much.
    """
    whole = math.hypot(*(spread for spread, _ in measured))
    if not whole:
        return 0.0, 1.0
    free = 1 / math.fsum((spread / whole) ** 4 / degrees for spread, degrees in measured)
    return whole / math.sqrt(len(measured)), free


def _constant_p(a: Groups, b: Groups) -> float:
    """Return the permutation p value for trials that do not vary within a task and side.

    If all tasks that differ do so in one direction, no other assignment of their trials is as
    extreme as the observed one and its mirror image. Otherwise whole tasks are exchanged.
    """
    differences = task_differences(a, b)
    if min(differences) < 0 < max(differences):
        return sign_flip_test.permutation_p(sign_flip_test.sampled_units(differences).sums)[0]
    ways = 1.0
    for trials_a, trials_b in zip(a, b, strict=True):
        if trials_a[0] != trials_b[0]:
            exchanges = math.comb(len(trials_a) + len(trials_b), len(trials_a))
            ways = min(1e300, ways * exchanges)
    return min(1.0, 2 / ways)


def mean_of_suite(groups: Groups, confidence: float) -> Estimate:
    """Estimate one side's mean for these fixed tasks, with a t interval of its replications."""
    value = mean(task_means(groups))
    error, degrees = _added_up(_errors((groups,), range(len(groups))))
    return _t_estimate(value, error, degrees, confidence)


# -- all looks at growing runs


def at_every_look(
    differences: Sequence[float],
    confidence: float,
    clusters: Sequence[str] | None = None,
    largest: int = 1,
) -> Inference:
    """Estimate the mean of tasks' differences from -1 to 1, valid at every look.

    A fixed-sample test that is repeated as tasks come in errs far more often than its level says.
    This confidence sequence contains the true mean at all looks together (Howard, Ramdas, McAuliffe
    and Sekhon 2021, Annals of Statistics 49:1055–1080).

    Tasks, or the clusters that `clusters` names, must come in an order that does not depend on
    their differences. Each task must have all of its trials. `largest` is the number of tasks in
    the largest planned cluster.

    The bounds come from a bet against each mean (Waudby-Smith and Ramdas 2024, JRSS B 86:1–27). A
    fortune starts at 1. For each unit, a share of it is staked on a larger (or smaller) mean, so
    that it does not grow on average if the mean is true. A fortune of 2 / (1 − confidence) rejects
    the mean for good (Ville 1939). Stakes are spread over their whole range by the arcsine
    distribution (Orabona and Jun 2024, IEEE Transactions on Information Theory 70:436–455). So
    there is nothing to tune, and the order of the units does not matter. The p value comes from the
    same bet against a mean of 0.
    """
    units = sign_flip_test.sampled_units(differences, clusters)
    # Sums and sizes are shares of the largest planned size.
    size = max(largest, *units.sizes.tolist())
    units = Units(units.sums / size, units.sizes / size)
    value, limit = units.mean, math.log(2 / (1 - confidence))
    low = _bound(units.negated, limit, -value)
    high = _bound(units, limit, value)
    return Inference(Estimate(value, -low, high), no_difference(units), BETTING)


def no_difference(units: Units) -> float:
    """Return the p value for a mean of 0. The sums and sizes of units are at most 1."""
    return min(1.0, 2 * math.exp(-max(_fortune(units, 0.0), _fortune(units.negated, 0.0))))


def shows_at_every_look(values: Array, counts: Array, confidence: float) -> Array:
    """Return, for each sample of differences, whether it shows that the mean is not 0.

    Each row of `counts` has the number of times that a sample has each of the `values`, which are
    from -1 to 1.
    """
    import numpy as np
    from scipy import special

    limit = math.log(2 / (1 - confidence)) + math.log(_STAKES // 2)
    fortunes = [
        special.logsumexp(counts @ np.log1p(np.outer(sign * values, _stakes())), axis=1)
        for sign in (1, -1)
    ]
    return np.asarray(np.maximum(*fortunes) > limit)


def _stakes() -> Array:
    import numpy as np

    odd = 2 * np.arange(1, _STAKES // 2 + 1) - 1
    return np.asarray(np.cos(odd * math.pi / (2 * _STAKES)))


def _fortune(units: Units, mean: float) -> float:
    """Return the logarithm of the fortune of a bet that the true mean is smaller than `mean`.

    It grows with `mean`.
    """
    import numpy as np
    from scipy import special

    shares, weights = np.unique(units.sizes * mean - units.sums, return_counts=True)
    stakes = _stakes() / (1 - mean)
    logs = np.zeros(len(stakes))
    for start in range(0, len(shares), 1000):
        part = slice(start, start + 1000)
        logs += np.log1p(np.outer(stakes, shares[part])) @ weights[part]
    return float(special.logsumexp(logs)) - math.log(len(stakes))


def _bound(units: Units, limit: float, value: float) -> float:
    """Return the smallest mean above `value` that the bet rejects; 1 if it rejects none."""
    high = 1 - 1e-12
    if _fortune(units, high) < limit:
        return 1.0
    return bisected(lambda mean: _fortune(units, mean) >= limit, value, high, _STEPS)[1]
