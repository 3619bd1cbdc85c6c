"""Two means compared: an interval and the test that it is the inversion of.

Of tasks as a sample, it is the exact test by exchange of A and B within tasks; of tasks as given,
a t test of their replications. Nothing is drawn at random: the same trials give the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labledger.compare.rates import (
    Estimate,
    Groups,
    Inference,
    deviation,
    mean,
    quantile,
    task_means,
    units_deviation,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

SIGN_FLIP = "exact permutation test over tasks"
CLUSTER_FLIP = "exact permutation test over clusters of tasks"
APPROXIMATE = "permutation test over tasks, by saddlepoint"
SUITE_T = "stratified t test"

_ALL_TRIED = 16
"""Up to so many units every subset is tried: 2¹⁶ of them."""

_HALVES = 30
"""Up to so many the exchanges are counted exactly in two halves."""

_LATTICE_STEPS = 30_000_000
"""How much work adding up a lattice may be: units × points, a tenth of a second."""

_LATTICE_SCALES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 60, 100, 1_000, 10_000, 100_000)
_EDGE = 1e-9
_SQUARES_FIT = 1e100


# -- tasks as a sample


@dataclass(frozen=True, slots=True)
class Units:
    """What is drawn, and what chance may turn round: tasks, or clusters of them."""

    sums: Array
    """The sum of the tasks' differences in each unit."""
    sizes: Array
    """The number of tasks in each."""

    @property
    def mean(self) -> float:
        return float(math.fsum(self.sums) / math.fsum(self.sizes))

    def less(self, difference: float) -> Array:
        """The sums if each task's difference were less by `difference`; 0 where it is rounding."""
        import numpy as np

        found = self.sums - self.sizes * difference
        scale = np.abs(self.sums) + self.sizes * abs(difference)
        return np.where(np.abs(found) > 1e-12 * scale, found, 0.0)


def units(differences: Sequence[float], clusters: Sequence[str] | None = None) -> Units:
    """The units of some tasks' differences."""
    import numpy as np

    values = np.array(differences, dtype=np.float64)
    if clusters is None:
        return Units(values, np.ones(len(values)))
    _, index = np.unique(np.array(clusters), return_inverse=True)
    sums = np.asarray(np.bincount(index, values), dtype=np.float64)
    return Units(sums, np.bincount(index).astype(np.float64))


def of_tasks(
    a: Groups, b: Groups, confidence: float, clusters: Sequence[str] | None = None
) -> Inference:
    """B less A for tasks like these, each task weighing alike.

    Whether A and B are exchanged within a task (cluster) is what chance decides if they do not
    differ (Fisher 1935, The Design of Experiments, section 21). The p value is the share of
    exchanges whose sum is at least as far from 0 (`exchange_p`); the interval holds the
    differences that the same test does not reject. Up to 16 units its bounds are exact, quantiles
    of the means of all subsets (Hartigan 1969, JASA 64:1303–1317); beyond, the tails are
    saddlepoint approximations (Robinson 1982, JRSS B 44:91–101), good to 1 % of the p value there.
    About 0 the p value decides. There are no bounds where so few units cannot support the
    confidence. Coverage is as asked for differences that are symmetric, whatever their tails; for
    skewed ones see `is_skewed`.
    """
    differences, scale = _bounded(_differences(a, b))
    found = units(differences, clusters)
    p, is_exact = exchange_p(found.less(0.0))
    low, high = _bounds(found, confidence, p)
    name = APPROXIMATE if not is_exact else SIGN_FLIP if clusters is None else CLUSTER_FLIP
    return Inference(_times(Estimate(found.mean, low, high), scale), p, name)


def _differences(a: Groups, b: Groups) -> list[float]:
    return [y - x for x, y in zip(task_means(a), task_means(b), strict=True)]


def _bounded(values: Sequence[float]) -> tuple[Sequence[float], float]:
    """Values whose squares no double overflows with, and what they were divided by."""
    largest = max(map(abs, values), default=0.0)
    if largest < _SQUARES_FIT:
        return values, 1.0
    return [value / largest for value in values], largest


def _times(found: Estimate, scale: float) -> Estimate:
    if scale == 1:
        return found
    low, high = (None if bound is None else scale * bound for bound in (found.low, found.high))
    return Estimate(scale * found.value, low, high)


def exchange_p(values: Array) -> tuple[float, bool]:
    """The two-sided p value of the exchange test that the sum is 0, and whether it is exact.

    Exact for up to 30 values other than 0 (all exchanges, counted in two halves), and for any
    number that lie on a lattice that is not too fine, such as whole numbers or shares of a few
    replications (Pagano and Tritchler 1983, JASA 78:435–440). A saddlepoint approximation beyond.
    """
    import numpy as np

    sizes = np.abs(values[values != 0])
    total, whole = abs(math.fsum(values)), math.fsum(sizes)
    if total <= _EDGE * whole:
        return 1.0, True
    if total >= (1 - _EDGE) * whole:
        return 2.0 ** (1 - len(sizes)), True
    # A sum at least as large as that seen: what is turned round is at most `limit`.
    limit = (whole - total) / 2
    if len(sizes) <= _HALVES:
        tail = _share_up_to(sizes, limit)
    elif (steps := _lattice(sizes)) is not None:
        scale = float(steps.sum()) / whole
        tail = _lattice_share(steps, math.floor(limit * scale + 0.5 * _EDGE + 1e-6))
    else:
        return min(1.0, 2 * _saddlepoint_tail(sizes, total)), False
    return min(1.0, 2 * tail), True


def _share_up_to(sizes: Array, limit: float) -> float:
    """The share of all subsets whose sum is at most `limit`."""
    import numpy as np

    half = len(sizes) // 2
    first, second = _subset_sums(sizes[:half]), np.sort(_subset_sums(sizes[half:]))
    slack = _EDGE * math.fsum(sizes)
    count = np.searchsorted(second, limit + slack - first, side="right").sum()
    return float(count) / 2.0 ** len(sizes)


def _subset_sums(values: Array) -> Array:
    import numpy as np

    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _lattice(sizes: Array) -> Array | None:
    """The values as whole numbers of a common step, where adding them up is cheap enough."""
    import numpy as np

    for scale in _LATTICE_SCALES:
        steps = np.rint(sizes * scale)
        if steps.sum() * len(sizes) > 2 * _LATTICE_STEPS:
            return None
        if np.all(np.abs(steps - sizes * scale) < 1e-7) and steps.all():
            shared = np.gcd.reduce(steps.astype(np.int64))
            return np.asarray(steps / shared)
    return None


def _lattice_share(steps: Array, limit: int) -> float:
    """The share of all subsets of whole numbers whose sum is at most `limit`."""
    import numpy as np

    shares = np.zeros(limit + 1)
    shares[0] = 1.0
    for step in map(int, np.sort(steps)):
        shares *= 0.5
        if step <= limit:
            shares[step:] += shares[: limit + 1 - step].copy()
    return float(shares.sum())


def _saddlepoint_tail(sizes: Array, total: float) -> float:
    """How likely a sum of `sizes`, each with a sign by a coin, is to be at least `total` > 0.

    Lugannani and Rice 1980, Advances in Applied Probability 12:475–490.
    """
    import numpy as np
    from scipy import special

    unit = math.sqrt(float(sizes @ sizes))
    sizes, total = sizes / unit, total / unit
    slope = _saddlepoint(sizes, total)
    scaled = slope * sizes
    # log cosh, without overflow
    cumulant = float(np.sum(scaled + np.log1p(np.exp(-2 * scaled)) - math.log(2)))
    root = math.sqrt(max(0.0, 2 * (slope * total - cumulant)))
    curvature = slope * math.sqrt(float(np.sum((sizes / np.cosh(np.minimum(scaled, 300.0))) ** 2)))
    if root < 1e-4 or curvature < 1e-12:
        return float(special.ndtr(-total))
    density = math.exp(-root * root / 2) / math.sqrt(2 * math.pi)
    return float(special.ndtr(-root)) + density * (1 / curvature - 1 / root)


def _saddlepoint(sizes: Array, total: float) -> float:
    """Where the tilted mean of the sum is `total`; `sizes` have squares that add up to 1."""
    import numpy as np

    slope, low, high = total, 0.0, math.inf
    for _ in range(100):
        tanh = np.tanh(slope * sizes)
        lacking = total - float(sizes @ tanh)
        low, high = (slope, high) if lacking > 0 else (low, slope)
        if abs(lacking) <= 1e-12 * total:
            break
        curvature = float(np.sum(sizes * sizes * (1 - tanh * tanh)))
        step = slope + lacking / curvature if curvature > 1e-300 else math.inf
        inside = low < step < high
        slope = step if inside else (2 * slope if math.isinf(high) else (low + high) / 2)
    return slope


def _bounds(found: Units, confidence: float, p: float) -> tuple[float | None, float | None]:
    """The bounds of the differences that the test does not reject."""
    count = len(found.sums)
    level = 1 - confidence
    if 2.0 ** (1 - count) >= level:
        return None, None
    if count <= _ALL_TRIED:
        return _agreeing(found.mean, *_subset_bounds(found, level), is_shown=p < level)
    turned = Units(-found.sums, found.sizes)
    low, upper = _approximate_bound(found, level), _approximate_bound(turned, level)
    return _agreeing(found.mean, low, -upper, is_shown=p < level)


def _subset_bounds(found: Units, level: float) -> tuple[float, float]:
    import numpy as np

    means = np.sort(_subset_sums(found.sums)[1:] / _subset_sums(found.sizes)[1:])
    # A difference is rejected while fewer subsets' means than this lie at or below it.
    beyond = math.ceil(level / 2 * 2 ** len(found.sums) - 1 - _EDGE)
    return float(means[beyond - 1]), float(means[-beyond])


def _approximate_bound(found: Units, level: float) -> float:
    """The lower bound: the largest supposed difference below the mean that is rejected."""
    import numpy as np

    centre = found.mean

    def tail(difference: float) -> float:
        values = found.less(difference)
        sizes = np.abs(values[values != 0])
        total, whole = math.fsum(values), math.fsum(sizes)
        if total <= _EDGE * whole:
            return 0.5
        if total >= (1 - _EDGE) * whole:
            return 2.0 ** -len(found.sums)
        return _saddlepoint_tail(sizes, total)

    spread = float(np.sqrt(np.sum(found.less(centre) ** 2))) / float(found.sizes.sum())
    if not spread:
        return centre
    return _rejected_below(tail, centre, spread, level / 2)


def _rejected_below(
    tail: Callable[[float], float], centre: float, spread: float, level: float
) -> float:
    """Where a tail that grows up to `centre` passes `level`, to a millionth of `spread`."""
    high, low = centre, centre - 2 * spread
    while tail(low) >= level:
        high, low = low, centre - 2 * (centre - low)
    while high - low > 1e-6 * spread:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < level else (low, middle)
    return (low + high) / 2


def _agreeing(value: float, low: float, high: float, *, is_shown: bool) -> tuple[float, float]:
    """Bounds that leave out 0 exactly where the p value says so; it is the more exact of both."""
    if is_shown and low <= 0 <= high:
        nearest = 1e-6 * value
        return (nearest, high) if value > 0 else (low, nearest)
    if not is_shown:
        return min(low, 0.0), max(high, 0.0)
    return low, high


def mean_of_tasks(
    groups: Groups, confidence: float, clusters: Sequence[str] | None = None
) -> Estimate:
    """One side's mean over tasks, with a t interval; no bounds where nothing varies."""
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
    """Whether differences are too skewed for so few tasks for an interval of their mean to hold.

    Cochran's rule (1977, Sampling Techniques, section 2.15): fewer than 25 times the square of
    the skewness, where that is more than 1. Of 12 lognormal differences an interval of 95 %
    holds the mean .84 of the time, of 100 .92; three in four such samples are called skewed, and
    the others are those that lack the long tail altogether, which no interval can make up for.
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


def standardized(means: Sequence[float]) -> float | None:
    """Cohen's d_z: the mean difference in standard deviations of the tasks' differences.

    Cohen 1988, Statistical Power Analysis, section 2.3.5. None where the differences do not vary.
    """
    if len(means) < 2:
        return None
    spread = deviation(means)
    return mean(means) / spread if spread else None


# -- tasks as given


def of_suite(a: Groups, b: Groups, confidence: float) -> Inference:
    """B less A for these very tasks, each weighing alike; their replications are the sample.

    A t test of the mean of the tasks' differences, with the variance of each task's replications
    on each side, and degrees of freedom by Satterthwaite (1946, Biometrics Bulletin 2:110–114; of
    strata: Cochran 1977, Sampling Techniques, section 5.4). A task with a single trial on a side is
    supposed to vary there as the side's others do on average. Where no trial differs from
    another of its task and side there is nothing to go by but their number: the p value is then
    that of exchanging trials within tasks, and the interval, if it is below 1 less the confidence,
    a point.
    """
    value = mean(_differences(a, b))
    error, degrees = suite_deviation(a, b)
    if error:
        from scipy import special

        p = 2 * float(special.stdtr(degrees, -abs(value) / error))
        return Inference(_t_estimate(value, error, degrees, confidence), min(1.0, p), SUITE_T)
    p = _constant_p(a, b) if value else 1.0
    is_shown = p < 1 - confidence
    return Inference(Estimate(value, *((value, value) if is_shown else (None, None))), p, SUITE_T)


def suite_deviation(*sides: Groups) -> tuple[float, float]:
    """The standard error of a sum of the sides' means by replications, and its degrees of freedom.

    A side's mean is that over the tasks' means.
    """
    deviations = [[deviation(g) if len(g) > 1 else None for g in groups] for groups in sides]
    of_all = [found for known in deviations for found in known if found is not None]
    errors, degrees = [], []
    for groups, known in zip(sides, deviations, strict=True):
        # A side without replications is supposed to vary as the other one does.
        measured = [found for found in known if found is not None] or of_all
        usual = math.hypot(*measured) / math.sqrt(len(measured)) if measured else 0.0
        for found, group in zip(known, groups, strict=True):
            of_trial = usual if found is None else found
            errors.append(of_trial / math.sqrt(len(group)) / len(groups))
            degrees.append(len(measured) if found is None else len(group) - 1)
    total = math.hypot(*errors)
    if not total:
        return 0.0, 0.0
    shares = ((error / total) ** 4 / free for error, free in zip(errors, degrees, strict=True))
    return total, 1 / math.fsum(shares)


def _constant_p(a: Groups, b: Groups) -> float:
    """At least how likely trials that never vary are to come out so far apart by exchange."""
    ways = 1.0
    for one, other in zip(a, b, strict=True):
        if one[0] != other[0]:
            ways = min(1e300, ways * math.comb(len(one) + len(other), len(one)))
    return min(1.0, 2 / ways)


def mean_of_suite(groups: Groups, confidence: float) -> Estimate:
    """One side's mean over these very tasks, with a t interval of its replications."""
    value = mean(task_means(groups))
    return _t_estimate(value, *suite_deviation(groups), confidence)
