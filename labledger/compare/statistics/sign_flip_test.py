"""Test paired differences by sign flips, and compute the matching interval.

If A and B do not differ, each difference is as likely to have the opposite sign (Fisher 1935, The
Design of Experiments). The p value is the share of sign flips whose sum is at least as far from 0
as the observed one. Nothing is random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labledger.compare.statistics.samples import cluster_sums
from labledger.compare.statistics.skewness import Skewness, uncorrected_level

if TYPE_CHECKING:
    from labledger.compare.statistics.samples import Array

_MAX_SUBSET_UNITS = 16
"""Up to this number of units, the interval comes from the means of all subsets, at most 2¹⁶."""

_MAX_EXACT_VALUES = 30
"""Up to this number of values, all sign flips are counted exactly, in two halves."""

_MAX_LATTICE_WORK = 30_000_000
"""The largest work for a lattice, in units × points. It takes about a tenth of a second."""

_LATTICE_SCALES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 60, 100, 1_000, 10_000, 100_000)
"""The factors that are tried to turn all values into whole numbers."""

_TOLERANCE = 1e-9
"""Sums count as equal if they differ by a smaller share of the largest possible sum."""

_NONE = Skewness()


@dataclass(frozen=True, slots=True)
class Units:
    """The sampled units, whose signs are flipped: tasks or clusters."""

    sums: Array
    """The sum of the tasks' differences in each unit."""
    sizes: Array
    """The number of tasks in each unit."""

    @property
    def mean(self) -> float:
        return float(math.fsum(self.sums) / math.fsum(self.sizes))

    @property
    def negated(self) -> Units:
        """The units with A and B exchanged."""
        return Units(-self.sums, self.sizes)

    def sums_less(self, difference: float) -> Array:
        """Return the sums if each task's difference were smaller by `difference`.

        A sum that is only a rounding error is 0.
        """
        import numpy as np

        sums = self.sums - self.sizes * difference
        scale = np.abs(self.sums) + self.sizes * abs(difference)
        return np.where(np.abs(sums) > 1e-12 * scale, sums, 0.0)


def sampled_units(differences: Sequence[float], clusters: Sequence[str] | None = None) -> Units:
    """Return the units for the tasks' differences; `clusters` names the cluster of each task."""
    import numpy as np

    return Units(*cluster_sums(np.array(differences, dtype=np.float64), clusters))


def skewness_of(units: Units) -> Skewness:
    """Return how skewed the mean of some units is."""
    return Skewness.of(units.sums_less(units.mean), units.sizes)


def permutation_p(values: Array, *, mid: bool = False) -> tuple[float, bool]:
    """Return the two-sided p value of the test that the sum is 0, and whether it is exact.

    With `mid`, sign flips whose sum is exactly as far from 0 as the observed sum count half
    (Lancaster 1961, JASA 56:223–234). For pairs of single trials this is McNemar's mid-p test.

    The p value is exact for up to 30 values other than 0. It is also exact for values on a coarse
    lattice, such as whole numbers or shares of a few replications (Pagano and Tritchler 1983, JASA
    78:435–440). Otherwise it is a saddlepoint approximation (Robinson 1982, JRSS B 44:91–101).
    """
    import numpy as np

    sizes = np.abs(values[values != 0])
    total, largest_sum = abs(math.fsum(values)), math.fsum(sizes)
    if total <= _TOLERANCE * largest_sum:
        return 1.0, True
    if total >= (1 - _TOLERANCE) * largest_sum:
        return 2.0 ** (1 - len(sizes)) / (2 if mid else 1), True
    # A sum is at least as large as the observed one if the values that change sign add up to at
    # most `limit`.
    limit = (largest_sum - total) / 2
    if len(sizes) <= _MAX_EXACT_VALUES:
        tail = share_up_to(sizes, limit, mid=mid)
    elif (steps := _lattice(sizes)) is not None:
        scale = float(steps.sum()) / largest_sum
        tail = lattice_share(steps, math.floor(limit * scale + 0.5 * _TOLERANCE + 1e-6), mid=mid)
    else:
        return min(1.0, 2 * saddlepoint_tail(sizes, total)), False
    return min(1.0, 2 * tail), True


def share_up_to(sizes: Array, limit: float, *, mid: bool = False) -> float:
    """Return the share of all subsets whose sum is at most `limit`; see `permutation_p`."""
    import numpy as np

    half = len(sizes) // 2
    first, second = _subset_sums(sizes[:half]), np.sort(_subset_sums(sizes[half:]))
    tolerance = _TOLERANCE * math.fsum(sizes)
    count = float(np.searchsorted(second, limit + tolerance - first, side="right").sum())
    if mid:
        below = np.searchsorted(second, limit - tolerance - first, side="left").sum()
        count = (count + float(below)) / 2
    return count / 2.0 ** len(sizes)


def _subset_sums(values: Array) -> Array:
    import numpy as np

    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _lattice(sizes: Array) -> Array | None:
    """Return the values as multiples of a common step; None if counting would take too long."""
    import numpy as np

    for scale in _LATTICE_SCALES:
        steps = np.rint(sizes * scale)
        # The limit is at most half of the sum, and so is the number of points.
        if steps.sum() * len(sizes) > 2 * _MAX_LATTICE_WORK:
            return None
        if np.all(np.abs(steps - sizes * scale) < 1e-7) and steps.all():
            shared = math.gcd(*steps.astype(np.int64).tolist())
            return np.asarray(steps / shared)
    return None


def lattice_share(steps: Array, limit: int, *, mid: bool = False) -> float:
    """Return the share of all subsets of whole numbers whose sum is at most `limit`."""
    import numpy as np

    shares = np.zeros(limit + 1)
    shares[0] = 1.0
    for step in map(int, np.sort(steps)):
        shares *= 0.5
        if step <= limit:
            shares[step:] += shares[: limit + 1 - step].copy()
    return float(shares.sum() - (shares[limit] / 2 if mid else 0.0))


def saddlepoint_tail(sizes: Array, total: float) -> float:
    """Return the probability that `sizes` with random signs add up to at least `total` > 0.

    The approximation is Lugannani and Rice's (1980, Advances in Applied Probability 12:475–490).
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
    """Return the slope at which the tilted mean of the sum is `total`.

    The squares of `sizes` add up to 1.
    """
    import numpy as np

    slope, low, high = total, 0.0, math.inf
    for _ in range(100):
        tanh = np.tanh(slope * sizes)
        missing = total - float(sizes @ tanh)
        low, high = (slope, high) if missing > 0 else (low, slope)
        if abs(missing) <= 1e-12 * total:
            break
        curvature = float(np.sum(sizes * sizes * (1 - tanh * tanh)))
        step = slope + missing / curvature if curvature > 1e-300 else math.inf
        inside = low < step < high
        slope = step if inside else (2 * slope if math.isinf(high) else (low + high) / 2)
    return slope


def can_reject(units: int, confidence: float) -> bool:
    """Return whether the test of `units` tasks (or clusters) can reject at all.

    If B is ahead in all n units, two of the 2ⁿ sign flips are at least as extreme.
    """
    return can_reject_at(1 - confidence, units)


def can_reject_at(level: float, units: int) -> bool:
    """Return whether the test can reject at a level, which may be too small for 1 - level."""
    return 2.0 ** (1 - units) < level


def bounds(
    sampled: Units, confidence: float, p: float, skewness: Skewness = _NONE
) -> tuple[float | None, float | None]:
    """Return the bounds of the mean differences that the test does not reject.

    `p` is the p value of no difference, which decides whether the interval contains 0. Both are
    corrected for `skewness`. Up to 16 units the bounds are exact: quantiles of the means of all
    subsets (Hartigan 1969, JASA 64:1303–1317). For more units the tails are saddlepoint
    approximations (Robinson 1982, JRSS B 44:91–101), good to 1 % of the p value. A bound is None if
    the units are too few for the confidence, or if all units are equal. The test then rejects
    every other mean only because it sees no variation.
    """
    count = len(sampled.sums)
    level_low, level_high = (
        uncorrected_level(side, 1 - confidence) for side in (skewness.below, skewness.above)
    )
    supports_both = can_reject_at(min(level_low, level_high), count)
    if not supports_both or not sampled.sums_less(sampled.mean).any():
        return None, None
    if count <= _MAX_SUBSET_UNITS:
        low, high = _subset_bounds(sampled, level_low, level_high)
    else:
        low = _approximate_bound(sampled, level_low)
        high = -_approximate_bound(sampled.negated, level_high)
    return bounds_agreeing_with_p(sampled.mean, low, high, is_shown=p < 1 - confidence)


def _subset_bounds(sampled: Units, level_low: float, level_high: float) -> tuple[float, float]:
    import numpy as np

    means = np.sort(_subset_sums(sampled.sums)[1:] / _subset_sums(sampled.sizes)[1:])
    # A difference is rejected while fewer subsets' means than this lie at or below it.
    ranks = [
        math.ceil(level / 2 * 2 ** len(sampled.sums) - 1 - _TOLERANCE)
        for level in (level_low, level_high)
    ]
    return float(means[ranks[0] - 1]), float(means[-ranks[1]])


def _approximate_bound(sampled: Units, level: float) -> float:
    """Return the lower bound: the largest difference below the mean that the test rejects."""
    import numpy as np

    centre = sampled.mean

    def tail(difference: float) -> float:
        values = sampled.sums_less(difference)
        sizes = np.abs(values[values != 0])
        total, largest_sum = math.fsum(values), math.fsum(sizes)
        if total <= _TOLERANCE * largest_sum:
            return 0.5
        if total >= (1 - _TOLERANCE) * largest_sum:
            return 2.0 ** -len(sampled.sums)
        return saddlepoint_tail(sizes, total)

    spread = float(np.sqrt(np.sum(sampled.sums_less(centre) ** 2))) / float(sampled.sizes.sum())
    if not spread:
        return centre
    return _rejected_below(tail, centre, spread, level / 2)


def _rejected_below(
    tail: Callable[[float], float], centre: float, spread: float, level: float
) -> float:
    """Return where a tail that grows up to `centre` reaches `level`, to a millionth of `spread`."""
    high, low = centre, centre - 2 * spread
    while tail(low) >= level:
        high, low = low, centre - 2 * (centre - low)
    while high - low > 1e-6 * spread:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < level else (low, middle)
    return (low + high) / 2


def bounds_agreeing_with_p(
    value: float, low: float, high: float, *, is_shown: bool
) -> tuple[float, float]:
    """Adjust bounds so that they contain 0 if and only if no difference is shown.

    The p value decides this, because it is more exact than the bounds.
    """
    if is_shown and low <= 0 <= high:
        nearest = 1e-6 * value
        return (nearest, high) if value > 0 else (low, nearest)
    if not is_shown:
        return min(low, 0.0), max(high, 0.0)
    return low, high
