"""Intervals and tests for paired differences; tasks, not trials, are what is independent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from labledger.analysis.rates import (
    Estimate,
    Groups,
    deviation,
    effective_size,
    independent_size,
    mean,
    task_means,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

RESAMPLES = 9_999
"""Random sign flips or subsets that are drawn where there are too many to try all."""

_ALL_TRIED = 16
"""Up to so many tasks every sign flip and every subset is tried: 2¹⁶ of them."""

_BATCH = 256
_EDGE = 1e-12


# -- pass rates


def rate_difference(differences: Groups, confidence: float) -> Estimate:
    """The mean over tasks of the paired differences (−1, 0 or 1) within each task.

    With one replication the interval is Tango's score interval. With several it is the same for
    the effective number of pairs, so that replications of one task count for what they are worth.
    """
    means = task_means(differences)
    size, gained, lost = effective_counts(differences, confidence)
    low, high = tango_interval(gained, lost, size, confidence)
    return Estimate(mean(means), low, high)


def effective_counts(differences: Groups, confidence: float) -> tuple[float, float, float]:
    """Effective numbers of pairs, of those gained (1) and of those lost (−1).

    Each task weighs alike, however many of its pairs there are.
    """
    gained = mean([sum(d > 0 for d in group) / len(group) for group in differences])
    lost = mean([sum(d < 0 for d in group) / len(group) for group in differences])
    variance = gained + lost - (gained - lost) ** 2
    independent = independent_size(map(len, differences))
    size = effective_size(task_means(differences), variance, independent, confidence)
    return size, gained * size, lost * size


def tango_interval(
    gained: float, lost: float, size: float, confidence: float
) -> tuple[float, float]:
    """The score interval for the difference of two paired proportions, (gained − lost) / size.

    Tango 1998, Statistics in Medicine 17:891–908; recommended for small samples by Fagerland,
    Lydersen and Laake 2014, Statistics in Medicine 33:2850–2875. It has a width whatever was seen.
    """
    from scipy import optimize, stats

    z = float(stats.norm.ppf((1 + confidence) / 2))

    def score(difference: float) -> float:
        """The score statistic for a supposed difference, which falls as that grows."""
        a = 2 * size
        b = -gained - lost + (2 * size - gained + lost) * difference
        c = -lost * difference * (1 - difference)
        lost_share = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
        variance = size * (2 * lost_share + difference * (1 - difference))
        return (gained - lost - size * difference) / math.sqrt(max(variance, _EDGE))

    low, high = -1 + _EDGE, 1 - _EDGE
    lower = -1.0 if score(low) < z else float(optimize.brentq(lambda d: score(d) - z, low, high))
    upper = 1.0 if score(high) > -z else float(optimize.brentq(lambda d: score(d) + z, low, high))
    return lower, upper


def mcnemar(gained: int, lost: int) -> float:
    """The p value of McNemar's exact test, two-sided, for pairs that are independent."""
    from scipy import stats

    if gained + lost == 0:
        return 1.0
    return float(stats.binomtest(min(gained, lost), gained + lost, 0.5).pvalue)


# -- any number


def sign_flip_test(means: Sequence[float], seed: int) -> float:
    """The p value, two-sided, of the sign-flip permutation test that the tasks' mean is 0.

    Whether A and B are exchanged within a task is what chance decides (Fisher 1935, The Design of
    Experiments, section 21). Exact for up to 16 tasks that differ; else random flips, which
    `seed` fixes, with the observed one among them (Phipson and Smyth 2010, SAGMB 9:39).
    """
    import numpy as np
    from scipy import stats

    differing = np.array([value for value in means if value != 0])
    if len(differing) < 2:
        return 1.0
    found = stats.permutation_test(
        (differing,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**_ALL_TRIED if len(differing) <= _ALL_TRIED else RESAMPLES,
        batch=_BATCH,
        random_state=np.random.default_rng(seed),
    )
    return min(1.0, float(found.pvalue))


def mean_difference(means: Sequence[float], confidence: float, seed: int) -> Estimate:
    """The mean of the tasks' differences, with the interval that the sign-flip test inverts to.

    A supposed mean is rejected where flipping some subset of the tasks seldom changes the sum,
    so that the bounds are quantiles of the means of random subsets: Hartigan 1969, "Using
    subsample values as typical values", JASA 64:1303–1317. Its coverage is exact for symmetric
    differences of any shape; for very skewed ones it is less than asked for, as a t interval's is
    (some 85 % of 95 % for 12 lognormal values). There are no bounds where the tasks are too few
    for the confidence, or all differ alike.
    """
    import numpy as np

    values = np.array(means, dtype=np.float64)
    centre = mean(means)
    if len(means) < 2 or not deviation(means):
        return Estimate(centre, None, None)
    subsets = _subset_means(values, seed)
    beyond = math.floor((1 - confidence) / 2 * (len(subsets) + 1) + 1e-9)
    if beyond < 1:
        return Estimate(centre, None, None)
    subsets.sort()
    return Estimate(centre, float(subsets[beyond - 1]), float(subsets[-beyond]))


def _subset_means(values: Array, seed: int) -> Array:
    """The means of all non-empty subsets, or of random ones, each value in or out by a coin."""
    import numpy as np

    if len(values) <= _ALL_TRIED:
        numbers = np.arange(1, 2 ** len(values))[:, np.newaxis]
        chosen = (numbers >> np.arange(len(values)) & 1).astype(np.float64)
        return np.asarray(chosen @ values / chosen.sum(axis=1))
    chance = np.random.default_rng(seed)
    found = []
    for start in range(0, RESAMPLES, _BATCH):
        count = min(_BATCH, RESAMPLES - start)
        drawn = chance.integers(0, 2, size=(count, len(values))).astype(np.float64)
        drawn = drawn[drawn.any(axis=1)]
        found.append(drawn @ values / drawn.sum(axis=1))
    return np.concatenate(found)


def standardized(means: Sequence[float]) -> float | None:
    """Cohen's d_z: the mean difference in standard deviations of the tasks' differences.

    Cohen 1988, Statistical Power Analysis, section 2.3.5. None where the differences do not vary.
    """
    if len(means) < 2:
        return None
    spread = deviation(means)
    return mean(means) / spread if spread else None


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values corrected for how many they are (Holm 1979, Scand. J. Statist. 6:65–70)."""
    from statsmodels.stats.multitest import multipletests

    corrected: Callable[..., Any] = multipletests
    return [float(p) for p in corrected(list(p_values), method="holm")[1]] if p_values else []
