"""The smallest difference that a comparison of this size could have shown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labledger.analysis.rates import deviation

POWER = 0.8
"""How likely a difference is to be shown that counts as one that could be."""


def can_be_shown(tasks: int, confidence: float) -> bool:
    """Whether any differences between so many tasks would be enough.

    Of 2ⁿ ways to exchange A and B in n tasks, two are as extreme as B ahead in every task.
    """
    return 2.0 ** (1 - tasks) < 1 - confidence


def detectable_rate(size: float, discordant: float, confidence: float) -> float | None:
    """The smallest difference of pass rates that McNemar's exact test shows with `POWER`.

    `size` pairs, of which a share `discordant` differs. A difference cannot be larger than that
    share: where it must be, as many pairs more are taken to differ, all in one direction. None
    where no difference is large enough.
    """
    from scipy import optimize

    pairs = math.floor(size + 1e-9)

    def lacking(difference: float) -> float:
        return rate_power(pairs, max(discordant, difference), difference, confidence) - POWER

    if pairs < 1 or lacking(1.0) < 0:
        return None
    return float(optimize.brentq(lacking, 0.0, 1.0, xtol=1e-6))


def rate_power(pairs: int, discordant: float, difference: float, confidence: float) -> float:
    """How likely McNemar's exact test is to find a difference of pass rates.

    The number of discordant pairs is binomial, and given it, so is how many of them go one way
    (Duffy 1984, Biometrics 40:1005–1015; for many pairs it comes to the formula of Connor 1987,
    Biometrics 43:207–211).
    """
    import numpy as np
    from scipy import stats

    margin = 8 * math.sqrt(pairs * discordant * (1 - discordant)) + 1
    first = max(0, math.floor(pairs * discordant - margin))
    last = min(pairs, math.ceil(pairs * discordant + margin))
    counts = np.arange(first, last + 1)
    tail = (1 - confidence) / 2
    # The largest count on the rarer side with which the test still rejects; −1 where none does.
    quantile = stats.binom.ppf(tail, counts, 0.5)
    critical = np.where(stats.binom.cdf(quantile, counts, 0.5) <= tail, quantile, quantile - 1)
    one_way = (discordant + difference) / (2 * discordant) if discordant else 0.5
    rejected = stats.binom.cdf(critical, counts, one_way)
    rejected += stats.binom.cdf(critical, counts, 1 - one_way)
    return float(np.sum(stats.binom.pmf(counts, pairs, discordant) * rejected))


def detectable_mean(means: Sequence[float], confidence: float) -> float | None:
    """The smallest mean difference that a paired t test over as many tasks shows with `POWER`.

    By the standard deviation that the tasks' differences have; None where they do not vary. The
    t test stands for the sign-flip test, whose power is much the same.
    """
    from statsmodels.stats.power import TTestPower

    if len(means) < 2:
        return None
    spread = deviation(means)
    if not spread:
        return None
    effect = TTestPower().solve_power(nobs=len(means), alpha=1 - confidence, power=POWER)
    return float(effect) * spread
