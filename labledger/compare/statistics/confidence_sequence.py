"""A test and an interval of differences of pass rates that hold at every look.

The confidence sequence contains the true difference at all looks together (Howard, Ramdas,
McAuliffe and Sekhon 2021, Annals of Statistics 49:1055–1080): a fixed-sample test that is repeated
as tasks come in errs far more often than its level says. Tasks (or clusters) are the sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labledger.compare.statistics.samples import (
    Estimate,
    Inference,
)
from labledger.compare.statistics.sign_flip_test import Units, sampled_units

BETTING = "anytime-valid betting test"

_STAKES = 256
"""The number of stakes that a side of the bet is spread over."""
_STEPS = 40
"""Bisections of a bound, which is then exact to 2⁻³⁹."""


def of_tasks(
    differences: Sequence[float],
    confidence: float,
    clusters: Sequence[str] | None = None,
    largest: int = 1,
) -> Inference:
    """Estimate the mean of tasks' differences from -1 to 1, valid at every look.

    The tasks, or the clusters that are named for each, must come in an order that does not depend
    on their differences, each with all of its trials; `largest` is the size of the largest cluster
    that is planned.

    The bounds are those of a bet against each mean (Waudby-Smith and Ramdas 2024, JRSS B 86:1–27):
    a fortune starts at 1, and for each unit a share of it is staked on a larger (or smaller) mean,
    so that it does not grow on average if the mean is the true one. A fortune that has reached
    2 / (1 − confidence) rejects that mean for good (Ville 1939). Stakes are spread over their whole
    range by the arcsine distribution (Orabona and Jun 2024, IEEE Transactions on Information Theory
    70:436–455), so that nothing is tuned, and the order of the units does not matter. The p value
    is that of the same bet against no difference.
    """
    units = _scaled(sampled_units(differences, clusters), largest)
    value, limit = units.mean, math.log(2 / (1 - confidence))
    low = _bound(_negated(units), limit, -value)
    high = _bound(units, limit, value)
    return Inference(Estimate(value, -low, high), no_difference(units), BETTING)


def no_difference(units: Units) -> float:
    """Return the p value of a mean of 0, of differences from -1 to 1 in units of at most 1."""
    return min(1.0, 2 * math.exp(-max(_fortune(units, 0.0), _fortune(_negated(units), 0.0))))


def _scaled(units: Units, largest: int) -> Units:
    """Return the units with sums and sizes as shares of the largest planned size."""
    size = max(largest, float(units.sizes.max()))
    return Units(units.sums / size, units.sizes / size)


def _negated(units: Units) -> Units:
    return Units(-units.sums, units.sizes)


def _fortune(units: Units, mean: float) -> float:
    """Return the logarithm of what a bet has become that the true mean is smaller than `mean`.

    It grows with `mean`.
    """
    import numpy as np
    from scipy import special

    shares, weights = np.unique(units.sizes * mean - units.sums, return_counts=True)
    odd = 2 * np.arange(1, _STAKES // 2 + 1) - 1
    stakes = np.cos(odd * math.pi / (2 * _STAKES)) / (1 - mean)
    logs = np.zeros(len(stakes))
    for start in range(0, len(shares), 1000):
        part = slice(start, start + 1000)
        logs += np.log1p(np.outer(stakes, shares[part])) @ weights[part]
    return float(special.logsumexp(logs)) - math.log(len(stakes))


def _bound(units: Units, limit: float, value: float) -> float:
    """Return the smallest mean above `value` that the bet rejects; 1 where it rejects none."""
    low, high = value, 1 - 1e-12
    if _fortune(units, high) < limit:
        return 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if _fortune(units, middle) >= limit else (middle, high)
    return high
