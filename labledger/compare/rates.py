"""Single rates with intervals that know the clustering of replications within tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

Groups = Sequence[Sequence[float]]
"""The values of each task, a list a task; no list is empty."""

_ROUNDING = 1e-14
"""What is smaller, beside the values it is made of, is an error of rounding."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its confidence interval; a bound is None where the data cannot support one."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Inference:
    """An estimate with its interval, and the p value of the test that the interval inverts."""

    estimate: Estimate
    p: float
    test: str
    """The name of the test."""


def quantile(confidence: float, degrees: float | None = None) -> float:
    """The two-sided quantile of the normal distribution, or of t with `degrees` of freedom."""
    from scipy import special

    tail = (1 + confidence) / 2
    return float(special.ndtri(tail) if degrees is None else special.stdtrit(degrees, tail))


def units_deviation(
    values: Array, clusters: Sequence[str] | None = None
) -> tuple[float, float, int]:
    """The standard error of the mean of the tasks' values, tasks or clusters being what is drawn.

    Returns it with how many independent tasks the units are worth at least, less 1, and the
    degrees of freedom. For clusters it is that of the sums of the deviations in each (Liang and
    Zeger 1986, Biometrika 73:13–22), its square times c/(c − 1) for c clusters.
    """
    import numpy as np

    deviations = values - values.mean()
    if clusters is None:
        sums, sizes = deviations, np.ones(len(values))
    else:
        _, index = np.unique(np.array(clusters), return_inverse=True)
        sums, sizes = np.bincount(index, deviations), np.bincount(index).astype(np.float64)
    count = len(sums)
    if count < 2:
        return 0.0, 0.0, 0
    # hypot, for squares may be more than a double holds.
    found = math.hypot(*sums) * math.sqrt(count / (count - 1)) / len(values)
    if found <= _ROUNDING * float(np.abs(values).max()):
        found = 0.0
    return found, float(sizes.sum() ** 2 / (sizes @ sizes)) - 1, count - 1


def task_means(groups: Groups) -> list[float]:
    """The mean of each task's values."""
    return [math.fsum(group) / len(group) if len(group) > 1 else group[0] for group in groups]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of two values or more; 0 where only rounding sets them apart."""
    centre = mean(values)
    found = math.hypot(*(value - centre for value in values)) / math.sqrt(len(values) - 1)
    return found if found > 1e-12 * abs(centre) else 0.0


def effective_size(
    means: Sequence[float], variance: float, independent: float, confidence: float
) -> float:
    """How many independent observations are worth as much as these clustered ones.

    `means` are the tasks', `variance` is that of one observation, and `independent` the number of
    observations if tasks did not matter. The observations are divided by the design effect that
    the spread of the tasks shows (Rao and Scott 1992, Biometrics 48:577–585), and what is left by
    (t/z)², because few tasks tell little about that spread (Korn and Graubard 1998, Survey
    Methodology 24:193–201). The answer lies between the number of tasks, which is as little as
    replications can be worth, and `independent`. Where nothing varies, it is the number of tasks.
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
    """How many observations stand behind a mean of task means, if tasks did not matter."""
    found = list(sizes)
    return len(found) ** 2 / math.fsum(1 / size for size in found)


def rate(groups: Groups, confidence: float, clusters: Sequence[str] | None = None) -> Estimate:
    """The mean of the tasks' pass rates; each group holds a task's 0s and 1s.

    The interval is Wilson's (1927, JASA 22:209–212) for the effective number of trials; with one
    replication that is the number of tasks, and the interval is Wilson's own. With clusters it is
    the number of observations that are worth as much as the clusters (see `effective_size`).
    """
    if clusters is not None:
        return _clustered_rate(groups, confidence, clusters)
    return _wilson(task_means(groups), independent_size(map(len, groups)), confidence)


def _clustered_rate(groups: Groups, confidence: float, clusters: Sequence[str]) -> Estimate:
    import numpy as np

    means = task_means(groups)
    value = mean(means)
    spread, least, degrees = units_deviation(np.array(means), clusters)
    size = max(1.0, least + 1)
    if degrees and spread and value * (1 - value):
        seen = min(independent_size(map(len, groups)), value * (1 - value) / spread**2)
        size = max(size, seen * (quantile(confidence) / quantile(confidence, degrees)) ** 2)
    return _interval(value, size, confidence)


def suite_rate(groups: Groups, confidence: float) -> Estimate:
    """The mean of these very tasks' pass rates, each weighing alike.

    The interval is Wilson's for the number of trials that would vary as much as the tasks'
    replications do, which is at least as many as there are.
    """
    means = task_means(groups)
    value, tasks = mean(means), len(groups)
    size = independent_size(map(len, groups))
    within = math.fsum(
        rate * (1 - rate) / max(1, len(group) - 1)
        for rate, group in zip(means, groups, strict=True)
    )
    if within:
        size = max(size, value * (1 - value) * tasks**2 / within)
    return _interval(value, size, confidence)


def pooled_rate(groups: Groups, confidence: float) -> Estimate:
    """The share of 1s among all trials, whatever their tasks, with the interval of `rate`.

    It differs from `rate` where tasks have unequal numbers of trials.
    """
    trials = sum(map(len, groups))
    value = math.fsum(map(math.fsum, groups)) / trials
    size = effective_size(task_means(groups), value * (1 - value), float(trials), confidence)
    return _interval(value, size, confidence)


def _wilson(means: Sequence[float], independent: float, confidence: float) -> Estimate:
    value = mean(means)
    size = effective_size(means, value * (1 - value), independent, confidence)
    return _interval(value, size, confidence)


def _interval(value: float, size: float, confidence: float) -> Estimate:
    """Wilson's interval (1927, JASA 22:209–212) of a rate seen in `size` trials."""
    z = quantile(confidence)
    scale = 1 + z * z / size
    centre = (value + z * z / (2 * size)) / scale
    half = z * math.sqrt(value * (1 - value) / size + z * z / (4 * size * size)) / scale
    return Estimate(value, max(0.0, centre - half), min(1.0, centre + half))


# -- pass@k and pass^k


@dataclass(frozen=True, slots=True)
class PassAt:
    """How often at least one, and how often every one, of `k` replications passes."""

    k: int
    tasks: int
    """Tasks that have at least `k` replications; the others are left out."""
    any: Estimate | None
    """pass@k."""
    all: Estimate | None
    """pass^k."""

    def without_bounds(self) -> PassAt:
        """The same without intervals, which are those of tasks as a sample."""
        one, every = (
            None if found is None else Estimate(found.value, None, None)
            for found in (self.any, self.all)
        )
        return PassAt(self.k, self.tasks, one, every)


def any_of(count: int, passed: int, k: int) -> float:
    """pass@k of one task, without bias: 1 − C(n−c, k) / C(n, k).

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, eq. 1.
    """
    return 1 - math.comb(count - passed, k) / math.comb(count, k)


def all_of(count: int, passed: int, k: int) -> float:
    """pass^k of one task, without bias: C(c, k) / C(n, k).

    Yao et al. 2024, "τ-bench", arXiv:2406.12045.
    """
    return math.comb(passed, k) / math.comb(count, k)


def pass_at(groups: Groups, k: int, confidence: float) -> PassAt:
    """pass@k and pass^k over the tasks that have `k` replications or more.

    The intervals are those of `rate`, with the tasks' own estimates for their pass rates.
    """
    counts = [(len(group), round(math.fsum(group))) for group in groups if len(group) >= k]
    if not counts:
        return PassAt(k, 0, None, None)
    independent = independent_size(count for count, _ in counts)
    one, every = (
        _wilson([of(count, passed, k) for count, passed in counts], independent, confidence)
        for of in (any_of, all_of)
    )
    return PassAt(k, len(counts), one, every)
