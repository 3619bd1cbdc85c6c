"""The smallest difference that a comparison of this size could have shown with 80 % power.

It is found by bisection of the power function of the test that the comparison uses: the score test
of `paired_rates`, or a t test in place of the permutation test of `paired_means`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labledger.compare.statistics import paired_rates, permutation_test
from labledger.compare.statistics.samples import quantile

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]

POWER = 0.8
"""The probability with which a difference must be shown to count as detectable."""

_STEPS = 40
_NORMAL_DEGREES = 100_000
"""From this number of degrees of freedom on, the normal distribution replaces the t one."""


def rate_can_be_shown(pairs: int, confidence: float) -> bool:
    """Return whether both tests reject at least where all `pairs` differ in one direction."""
    can_flip = permutation_test.can_reject(pairs, confidence)
    return can_flip and math.sqrt(max(0, pairs - 1)) > quantile(confidence)


def detectable_rate(size: float, discordant: float, confidence: float) -> float | None:
    """Return the smallest difference of pass rates (0 to 1) that the score test shows with `POWER`.

    `size` is the effective number of pairs, `discordant` the share of them that differs. A
    difference cannot exceed that share: for a larger difference the share is taken to be as large,
    with all pairs that differ going one way. None where no difference is large enough.
    """
    pairs = math.floor(size + 1e-9)

    def power(difference: float) -> float:
        return rate_power(pairs, max(discordant, difference), difference, confidence)

    if pairs < 2 or power(1.0) < POWER:
        return None
    return smallest_difference(power, 1.0)


def rate_power(pairs: int, discordant: float, difference: float, confidence: float) -> float:
    """Return the power of the tests of `paired_rates.of_tasks` at a difference of pass rates.

    `pairs` are assumed to be independent, with a share `discordant` that differs. The number of
    discordant pairs is binomial, and given it, so is how many of them go one way (Duffy 1984,
    Biometrics 40:1005–1015, of the exact test; for many pairs it comes to the formula of Connor
    1987, Biometrics 43:207–211).
    """
    import numpy as np
    from scipy import special

    margin = 8 * math.sqrt(pairs * discordant * (1 - discordant)) + 1
    first = max(0, math.floor(pairs * discordant - margin))
    last = min(pairs, math.ceil(pairs * discordant + margin))
    counts = np.arange(first, last + 1)
    # The largest count on the rarer side with which both tests still reject; -1 where none does.
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

    Of `differing` pairs, `fewer` go the rarer way; where that is below 0 the p value is 0.
    """
    import numpy as np

    at_most = _up_to(fewer, differing)
    as_extreme = _up_to(fewer - 1, differing)
    has_mid_p = differing <= paired_rates.MOST_BY_HALF * pairs
    return at_most + np.where(has_mid_p, as_extreme, at_most)


def _up_to(most: Numbers, count: Numbers) -> Numbers:
    """Return the chance of at most `most` heads in `count` tosses."""
    import numpy as np
    from scipy import special

    return np.where(most < 0, 0.0, special.bdtr(np.maximum(most, 0), count, 0.5))


def detectable_shift(deviation: float, degrees: float, confidence: float) -> float | None:
    """Return the smallest difference that a t test shows with `POWER`, in the values' unit.

    `deviation` is the standard error of the difference and `degrees` its degrees of freedom; None
    where nothing varies. The t test stands in for the permutation test, whose power is similar.
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
    """Return the power of a t test of a difference of `shift` standard errors."""
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
    """Return where a power that grows with the difference passes `least`, up to `high`."""
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle) < least else (low, middle)
    return high
