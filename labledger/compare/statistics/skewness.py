"""Correct the test of a mean for skewed differences.

A sample of long-tailed differences often lacks the tail, so its mean is too near to the other side.
The correction widens that side of the interval. `uncorrected_level` and `corrected_p` invert each
other, so the test and its interval agree.
"""

# The correction is the first term of the Edgeworth expansion of the studentized mean (Johnson 1978,
# JASA 73:536–544; Hall 1992, JRSS B 54:221–228): the quantile z becomes z + γ(1 + 2z²)/6, where γ
# is the skewness of the mean. A sample without its tail has too little skewness. So the term is
# multiplied by `_factor`, and by how one-sided the sample is.

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labledger.compare.statistics.samples import effective_units

if TYPE_CHECKING:
    from labledger.compare.statistics.samples import Array

_ONE_SIDEDNESS = 1.5
"""The power of the sample's one-sidedness. A symmetrical sample with long tails has little."""
_UNSEEN = 45.0
"""How much skewness small samples hide: the factor is 1 plus this over the root of the units."""
_CAREFUL_UNITS = 150.0
"""The factor is at most the square of the units over this. Otherwise samples of fewer than 30
normal differences, which look skewed by chance, would lose more than two points of power."""
MENDED_UNITS = 30
"""From this number of units on, lognormal differences (σ = 1) err as seldom as they should."""
_SMALLEST = 1e-300


@dataclass(frozen=True, slots=True)
class Skewness:
    """By how much the quantile of a test grows on each side, in units of (1 + 2z²)/6."""

    above: float = 0.0
    """For means above the observed one: larger than 0 if the long tail is there."""
    below: float = 0.0

    @classmethod
    def of(cls, residuals: Array, sizes: Array) -> Skewness:
        """Return the skewness of a mean, from its sampled units' residuals and sizes.

        Residuals that are only rounding errors must be 0.
        """
        import numpy as np

        units = effective_units(sizes.tolist())
        largest = float(np.abs(residuals).max(initial=0.0))
        if units <= 2 or not largest:
            return cls()
        scaled = residuals / largest
        cubes = scaled**3
        third, absolute = float(cubes.sum()), float(np.abs(cubes).sum())
        # Adjusted for its bias in small samples (Joanes and Gill 1998, The Statistician 47:183–189)
        unbiased = math.sqrt(units * (units - 1)) / (units - 2)
        of_mean = unbiased * abs(third) / float(scaled @ scaled) ** 1.5
        size = of_mean * _factor(units) * (abs(third) / absolute) ** _ONE_SIDEDNESS
        return cls(above=size) if third > 0 else cls(below=size)

    @property
    def larger(self) -> float:
        """The side on which more evidence is needed."""
        return max(self.above, self.below)


def _factor(units: float) -> float:
    return min(1 + _UNSEEN / math.sqrt(units), units * units / _CAREFUL_UNITS)


def uncorrected_level(size: float, alpha: float) -> float:
    """Return the two-sided level of the uncorrected test that has the level `alpha` corrected.

    `size` is the side of a `Skewness`.
    """
    from scipy import special

    if not size:
        return alpha
    z = -float(special.ndtri(alpha / 2))
    return max(_SMALLEST, 2 * float(special.ndtr(-(z + size * (1 + 2 * z * z) / 6))))


def corrected_p(size: float, p: float) -> float:
    """Return the corrected two-sided p value for an uncorrected one; see `uncorrected_level`."""
    from scipy import special

    if not size or p <= 0:
        return p
    beyond = -float(special.ndtri(max(p, _SMALLEST) / 2)) - size / 6
    if beyond <= 0:
        return 1.0
    # The root of z + size z² / 3 = beyond.
    z = 2 * beyond / (1 + math.sqrt(1 + 4 * size * beyond / 3))
    return 2 * float(special.ndtr(-z))


def more_errors(size: float, confidence: float, degrees: float) -> float:
    """Return how many standard errors a side's bound of a t interval lies further out."""
    from scipy import special

    usual, larger = (
        -float(special.stdtrit(degrees, level / 2))
        for level in (1 - confidence, uncorrected_level(size, 1 - confidence))
    )
    return larger - usual
