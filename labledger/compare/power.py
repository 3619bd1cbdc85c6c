"""The smallest difference that a comparison of this size could have shown."""

from __future__ import annotations

import math
from collections.abc import Callable

from labledger.compare.rates import quantile

POWER = 0.8
"""How likely a difference is to be shown that counts as one that could be."""

_STEPS = 40
_MANY = 100_000
"""Degrees of freedom from which on t is taken for normal."""


def rate_can_be_shown(pairs: int, confidence: float) -> bool:
    """Whether the score test could reject at all: if all of so many pairs went one way."""
    return math.sqrt(max(0, pairs - 1)) > quantile(confidence)


def mean_can_be_shown(units: int, confidence: float) -> bool:
    """Whether any differences between so many tasks (clusters) would be enough.

    Of 2ⁿ ways to exchange A and B in n of them, two are as extreme as B ahead in every one.
    """
    return 2.0 ** (1 - units) < 1 - confidence


def detectable_rate(size: float, discordant: float, confidence: float) -> float | None:
    """The smallest difference of pass rates that the score test shows with `POWER`.

    `size` pairs, of which a share `discordant` differs. A difference cannot be larger than that
    share: where it must be, as many pairs more are taken to differ, all in one direction. None
    where no difference is large enough.
    """
    pairs = math.floor(size + 1e-9)

    def power(difference: float) -> float:
        return rate_power(pairs, max(discordant, difference), difference, confidence)

    if pairs < 2 or power(1.0) < POWER:
        return None
    return _smallest(power, 1.0)


def rate_power(pairs: int, discordant: float, difference: float, confidence: float) -> float:
    """How likely the score test of `paired_rates.of_tasks` is to find a difference of pass rates.

    The number of discordant pairs is binomial, and given it, so is how many of them go one way
    (Duffy 1984, Biometrics 40:1005–1015, of the exact test; for many pairs it comes to the formula
    of Connor 1987, Biometrics 43:207–211).
    """
    import numpy as np
    from scipy import special

    margin = 8 * math.sqrt(pairs * discordant * (1 - discordant)) + 1
    first = max(0, math.floor(pairs * discordant - margin))
    last = min(pairs, math.ceil(pairs * discordant + margin))
    counts = np.arange(first, last + 1)
    # The largest count on the rarer side with which the test still rejects; -1 where none does.
    scale = math.sqrt(pairs / (pairs - 1)) if pairs > 1 else math.inf
    critical = np.ceil((counts - quantile(confidence) * scale * np.sqrt(counts)) / 2) - 1
    critical = np.where(counts > 0, critical, -1)
    one_way = (discordant + difference) / (2 * discordant) if discordant else 0.5
    possible = critical >= 0
    least = np.maximum(critical, 0)
    rejected = special.bdtr(least, counts, one_way) + special.bdtr(least, counts, 1 - one_way)
    log_chance = special.xlogy(counts, discordant) + special.xlog1py(pairs - counts, -discordant)
    ways = special.gammaln([pairs + 1]) - special.gammaln(counts + 1)
    chance = np.exp(ways - special.gammaln(pairs - counts + 1) + log_chance)
    return float(np.sum(np.where(possible, chance * np.minimum(rejected, 1.0), 0.0)))


def detectable_shift(deviation: float, degrees: float, confidence: float) -> float | None:
    """The smallest difference that a t test shows with `POWER`, by its standard error.

    None where nothing varies. The t test stands for the exchange test, whose power is much the
    same.
    """
    from scipy import special

    if not deviation or degrees < 1:
        return None
    if degrees >= _MANY:
        return float((quantile(confidence) + special.ndtri(POWER)) * deviation)
    critical = float(special.stdtrit(degrees, (1 + confidence) / 2))

    def power(shift: float) -> float:
        return float(1 - special.nctdtr(degrees, shift, critical))

    return _smallest(power, 2 * (critical + 5)) * deviation


def _smallest(power: Callable[[float], float], high: float) -> float:
    """Where a power that grows with the difference passes `POWER`."""
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle) < POWER else (low, middle)
    return high
