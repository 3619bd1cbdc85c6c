"""Compute means, standard errors and effective sample sizes of values that are grouped by task.

The replications of a task are not independent of each other, and neither are the tasks of a
cluster. Every estimate and test of this package takes its sample size or standard error from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

Groups = Sequence[Sequence[float]]
"""The values of each task's trials, one sequence a task; none is empty."""

_ROUNDING = 1e-14
"""A number below this share of the values' magnitude is a rounding error."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its confidence interval; a bound is None where the data cannot support one."""

    value: float
    low: float | None
    high: float | None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Both bounds; None if the estimate has none."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def without_bounds(self) -> Estimate:
        return Estimate(self.value, None, None)

    def shifted(self, shift: float, scale: float) -> Estimate:
        """Return the estimate of `shift` plus `scale` times the number; `scale` is above 0."""
        low, high = (None if x is None else shift + scale * x for x in (self.low, self.high))
        return Estimate(shift + scale * self.value, low, high)


@dataclass(frozen=True, slots=True)
class Inference:
    """An estimate with its interval, and the p value of the test that the interval inverts."""

    estimate: Estimate
    p: float
    test: str
    """The name of the test."""


def quantile(confidence: float, degrees: float | None = None) -> float:
    """Return the two-sided quantile of the normal distribution, or of t with `degrees` of freedom.

    `confidence` is between 0 and 1. For 0.95, the quantile of the normal distribution is 1.96.
    """
    from scipy import special

    upper = (1 + confidence) / 2
    return float(special.ndtri(upper) if degrees is None else special.stdtrit(degrees, upper))


def task_means(groups: Groups) -> list[float]:
    """Return the mean of each task's values."""
    return [math.fsum(group) / len(group) if len(group) > 1 else group[0] for group in groups]


def task_differences(a: Groups, b: Groups) -> list[float]:
    """Return the difference of each task's means, B minus A; 0 if they differ only by rounding."""
    return [
        without_rounding(mean_b - mean_a, max(abs(mean_a), abs(mean_b)))
        for mean_a, mean_b in zip(task_means(a), task_means(b), strict=True)
    ]


def without_rounding(value: float, magnitude: float) -> float:
    """Return a difference of numbers of this magnitude, or 0.0 if it is a rounding error."""
    return value if abs(value) > _ROUNDING * magnitude else 0.0


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0.0 if positive and negative values cancel except for rounding."""
    return without_rounding(math.fsum(values) / len(values), max(map(abs, values)))


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of two or more values; 0 if they differ only by rounding."""
    centre = mean(values)
    spread = math.hypot(*(value - centre for value in values)) / math.sqrt(len(values) - 1)
    return spread if spread > 1e-12 * abs(centre) else 0.0


def variance(values: Sequence[float]) -> float | None:
    """Return the sample variance; None for a single value."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def bisected(
    is_past: Callable[[float], bool], low: float, high: float, steps: int
) -> tuple[float, float]:
    """Narrow down where `is_past` becomes true between `low` and `high`, by `steps` bisections."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if is_past(middle) else (middle, high)
    return low, high


def cluster_sums(
    values: Array, clusters: Sequence[str] | Sequence[int] | None
) -> tuple[Array, Array]:
    """Return the sum of the tasks' values in each sampled unit, and its number of tasks.

    A unit is a cluster, or a single task if `clusters` is None.
    """
    import numpy as np

    if clusters is None:
        return values, np.ones(len(values))
    _, index = np.unique(np.array(clusters), return_inverse=True)
    sums = np.asarray(np.bincount(index, values), dtype=np.float64)
    return sums, np.bincount(index).astype(np.float64)


def units_deviation(
    values: Array, clusters: Sequence[str] | Sequence[int] | None = None
) -> tuple[float, float, float]:
    """Return the standard error of the mean of the tasks' values, and the size of its sample.

    The sampled units are tasks or clusters, and are assumed to be independent. The error is
    computed from the sum of the deviations in each unit (Liang and Zeger 1986, Biometrika
    73:13–22). It is corrected for units of unequal size (CR2), with degrees of freedom that depend
    on their sizes (Bell and McCaffrey 2002, Survey Methodology 28:169–181). For c units of equal
    size, the square is multiplied by c/(c − 1), and the degrees are c − 1.

    Returns:
        The standard error; `effective_units` of the units' sizes, minus 1; and the degrees of
        freedom.
    """
    import numpy as np

    sums, sizes = cluster_sums(values - values.mean(), clusters)
    count, tasks = len(sums), len(values)
    if count < 2:
        return 0.0, 0.0, 0.0
    correction = 1 / np.sqrt(1 - sizes / tasks)
    # hypot, because the squares may overflow a double.
    error = math.hypot(*(sums * correction)) / tasks
    if error <= _ROUNDING * float(np.abs(values).max()):
        error = 0.0
    return error, effective_units(sizes.tolist()) - 1, _bell_mccaffrey(sizes, correction)


def effective_units(sizes: Sequence[float]) -> float:
    """Return the number of units of equal size whose mean would vary as much as with these sizes.

    It is the square of the tasks over the sum of the squared sizes (Kish 1965, Survey Sampling).
    """
    return math.fsum(sizes) ** 2 / math.fsum(size * size for size in sizes)


def _bell_mccaffrey(sizes: Array, correction: Array) -> float:
    """Return the degrees of freedom of a mean whose units have these sizes.

    With a = `correction` and N tasks, the corrected sums have the covariances
    `a_c a_d (n_c [c = d] − n_c n_d / N)`. The degrees are the square of their trace over the sum of
    the squares of all entries.
    """
    scaled = correction * sizes
    shares = scaled * scaled / sizes.sum()
    diagonal = scaled * correction  # The first part of the entries, which only the diagonal has.
    trace = float((diagonal - shares).sum())
    squares = float(((diagonal - shares) ** 2).sum() - (shares**2).sum() + shares.sum() ** 2)
    return max(1.0, trace * trace / squares)


def effective_size(
    means: Sequence[float], variance: float, independent: float, confidence: float
) -> float:
    """Return the number of independent observations that the replications of tasks are worth.

    `means` has the mean of each task, `variance` is the variance of one observation, and
    `independent` is the number of observations if tasks did not matter.

    The number of observations is divided by the design effect, which the spread of the tasks shows
    (Rao and Scott 1992, Biometrics 48:577–585). The quotient is divided by (t/z)², because few
    tasks give a poor estimate of the spread (Korn and Graubard 1998, Survey Methodology
    24:193–201). The result is at least the number of tasks, at most `independent`, and the number
    of tasks if nothing varies.
    """
    tasks = len(means)
    if tasks < 2 or independent <= tasks or variance <= 0:
        return float(tasks)
    centre = mean(means)
    spread = math.fsum((m - centre) ** 2 for m in means) / (tasks * (tasks - 1))
    size = min(independent, variance / spread) if spread > 0 else independent
    size *= (quantile(confidence) / quantile(confidence, tasks - 1)) ** 2
    return max(float(tasks), size)


def independent_size(sizes: Iterable[float]) -> float:
    """Return the effective number of observations in a mean of task means if tasks did not matter.

    `sizes` has the number of trials of each task.
    """
    trials = list(sizes)
    return len(trials) ** 2 / math.fsum(1 / size for size in trials)
