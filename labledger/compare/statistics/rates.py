"""Compute intervals for a pass rate, for pass@k and pass^k, and for their differences.

Tasks or clusters are the sample, except in `suite_rate` and in differences of a suite, where
replications of fixed tasks are. Intervals of a single rate are Clopper and Pearson's (1934,
Biometrika 26:404–413) for an effective number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from labledger.compare.statistics import paired_rates
from labledger.compare.statistics.samples import (
    Estimate,
    Groups,
    effective_size,
    independent_size,
    mean,
    quantile,
    task_means,
    units_deviation,
)


def rate(groups: Groups, confidence: float, clusters: Sequence[str] | None = None) -> Estimate:
    """Estimate the pass rate of tasks like these: the mean of the tasks' pass rates.

    Each group holds a task's 0s and 1s. Each task has the same weight. `clusters` names the cluster
    of each task. The interval is the exact one for the effective number of trials
    (`effective_size`). With one replication, this is the number of tasks. With clusters, it is the
    number of observations that the clusters are worth.
    """
    if clusters is not None:
        return _clustered_rate(groups, confidence, clusters)
    return _weighted_rate(task_means(groups), independent_size(map(len, groups)), confidence)


def _clustered_rate(groups: Groups, confidence: float, clusters: Sequence[str]) -> Estimate:
    import numpy as np

    means = task_means(groups)
    value = mean(means)
    spread, least, degrees = units_deviation(np.array(means), clusters)
    size = max(1.0, least + 1)
    if degrees and spread and value * (1 - value):
        seen = min(independent_size(map(len, groups)), value * (1 - value) / spread**2)
        # Rates of clusters are skewed near 0 and 1, so use the smaller number of degrees.
        free = min(degrees, max(1.0, least))
        size = max(size, seen * (quantile(confidence) / quantile(confidence, free)) ** 2)
    return _interval(value, size, confidence)


def suite_rate(groups: Groups, confidence: float) -> Estimate:
    """Estimate the pass rate of these fixed tasks: the mean of their pass rates.

    Replications of a task are assumed to be independent. The interval is the exact one for the
    number of trials that would vary as much as the tasks' replications do. This number is reduced,
    because few trials give a poor estimate of their variation (Korn and Graubard 1998, Survey
    Methodology 24:193–201). If all tasks have equally many trials, it is at least the number of
    trials. Single trials of tasks are pooled as if they had one rate: their sum varies no less than
    a sum of trials with different rates (Hoeffding 1956, Annals of Mathematical Statistics
    27:713–721).
    """
    value, tasks = mean(task_means(groups)), len(groups)
    trials = independent_size(map(len, groups))
    within, degrees = _variance_within_tasks(groups)
    if not within or not 0 < value < 1:
        return _interval(value, trials, confidence)
    seen = value * (1 - value) * tasks**2 / within
    seen *= (quantile(confidence) / quantile(confidence, degrees)) ** 2
    is_even = len(set(map(len, groups))) == 1
    return _interval(value, max(seen, trials if is_even else 1.0), confidence)


def _variance_within_tasks(groups: Groups) -> tuple[float, float]:
    """Return the variance of the sum of the tasks' rates that is due to their replications.

    The second number is its degrees of freedom (Satterthwaite 1946, Biometrics Bulletin 2:110–114).
    Half a pass and half a failure are added to the single trials of tasks, so that they never look
    constant.
    """
    parts = []
    for group in groups:
        if len(group) > 1:
            rate = math.fsum(group) / len(group)
            parts.append((rate * (1 - rate) / (len(group) - 1), len(group) - 1))
    only = [group[0] for group in groups if len(group) == 1]
    if only:
        rate = (math.fsum(only) + 0.5) / (len(only) + 1)
        parts.append((len(only) * rate * (1 - rate), len(only)))
    within = math.fsum(variance for variance, _ in parts)
    squares = math.fsum(variance**2 / free for variance, free in parts)
    return within, max(1.0, within**2 / squares) if squares else 1.0


def pooled_rate(
    groups: Groups, confidence: float, clusters: Sequence[str] | None = None
) -> Estimate:
    """Estimate the share of 1s among all trials, with the interval of `rate`.

    Each trial has the same weight, so the value differs from `rate` if tasks have unequal numbers
    of trials. `clusters` names the cluster of each task.
    """
    if clusters is not None:
        single = [[value] for group in groups for value in group]
        named = [
            name for name, group in zip(clusters, groups, strict=True) for _ in range(len(group))
        ]
        return _clustered_rate(single, confidence, named)
    trials = sum(map(len, groups))
    value = math.fsum(map(math.fsum, groups)) / trials
    size = effective_size(task_means(groups), value * (1 - value), float(trials), confidence)
    return _interval(value, size, confidence)


def _weighted_rate(means: Sequence[float], independent: float, confidence: float) -> Estimate:
    value = mean(means)
    size = effective_size(means, value * (1 - value), independent, confidence)
    return _interval(value, size, confidence)


def _interval(value: float, size: float, confidence: float) -> Estimate:
    """Return an estimate of a rate with the exact interval of a proportion in `size` trials.

    The number of trials need not be whole (Korn and Graubard 1998, Survey Methodology 24:193–201).
    """
    from scipy import special

    passed, tail = value * size, (1 - confidence) / 2
    failed = size - passed
    low = float(special.betaincinv(passed, failed + 1, tail)) if passed > 0 else 0.0
    high = float(special.betaincinv(failed, passed + 1, tail)) if failed > 0 else 0.0
    return Estimate(value, min(value, low), max(value, 1 - high))


# -- pass@k and pass^k


_OfTask = Callable[[int, int, int], float]
"""A function that estimates one task from its trials, its passes and k."""


@dataclass(frozen=True, slots=True)
class PassAt:
    """How often at least one, and how often every one, of `k` replications passes."""

    k: Annotated[int, ("minimum", 1)]
    tasks: Annotated[int, ("minimum", 0)]
    """Tasks that have at least `k` replications; the others are left out."""
    any: Estimate | None
    """pass@k."""
    all: Estimate | None
    """pass^k."""

    def without_bounds(self) -> PassAt:
        """Return the estimates without intervals, which hold only if tasks are the sample."""
        return PassAt(
            self.k,
            self.tasks,
            self.any and self.any.without_bounds(),
            self.all and self.all.without_bounds(),
        )


def any_of(count: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for one task: 1 − C(n−c, k) / C(n, k).

    `count` is n, its trials, and `passed` is c.

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, eq. 1.
    """
    return 1 - math.comb(count - passed, k) / math.comb(count, k)


def all_of(count: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of pass^k for one task: C(c, k) / C(n, k).

    `count` is n, its trials, and `passed` is c.

    Yao et al. 2024, "τ-bench", arXiv:2406.12045.
    """
    return math.comb(passed, k) / math.comb(count, k)


def pass_at(
    groups: Groups, k: int, confidence: float, clusters: Sequence[str] | None = None
) -> PassAt:
    """Estimate pass@k and pass^k over the tasks that have `k` replications or more.

    The intervals use the method of `rate`, with each task's estimate as its pass rate.
    A task counts as at most one observation for each disjoint group of k trials.
    """
    enough = [i for i, group in enumerate(groups) if len(group) >= k]
    if not enough:
        return PassAt(k, 0, None, None)
    counts = [_counts(groups[i]) for i in enough]
    named = None if clusters is None else [clusters[i] for i in enough]
    independent = independent_size(count // k for count, _ in counts)

    def estimated(of_task: _OfTask) -> Estimate:
        means = [of_task(count, passed, k) for count, passed in counts]
        if named is None:
            return _weighted_rate(means, independent, confidence)
        return _clustered_rate([[value] for value in means], confidence, named)

    return PassAt(k, len(counts), estimated(any_of), estimated(all_of))


# -- differences of pass@k and pass^k


_EDGE = 1e-12


def pass_at_difference(
    a: Groups,
    b: Groups,
    k: int,
    confidence: float,
    clusters: Sequence[str] | None = None,
    *,
    is_suite: bool = False,
) -> PassAt:
    """Estimate the differences of pass@k and pass^k, B minus A.

    A difference is the mean of the tasks' differences, over the tasks that have k replications on
    both sides. The intervals are not corrected for the number of k.

    For tasks like these, the effective number of pairs follows from the spread of the tasks' (or
    `clusters`') differences, as in `paired_rates.discordance`. A task counts as at most one pair
    for each disjoint group of k trials. For k = 1 the estimate is the difference of the pass rates.

    For a fixed suite (`is_suite`), the effective number follows from the spread within tasks, by
    the jackknife over the trials of each side. The jackknife errs on the safe side (Efron and Stein
    1981, Annals of Statistics 9:586–596). The number is never less than for tasks like these, whose
    spread includes the spread within tasks. There is no interval if a side has only k trials of a
    task, because they give a single estimate.
    """
    enough = [i for i in range(len(a)) if min(len(a[i]), len(b[i])) >= k]
    if not enough:
        return PassAt(k, 0, None, None)
    if k == 1 and is_suite and any(len(group) > 1 for group in (*a, *b)):
        estimate = paired_rates.of_suite(a, b, confidence).estimate
        return PassAt(k, len(a), estimate, estimate)
    counts = [[_counts(side[i]) for i in enough] for side in (a, b)]
    named = None if clusters is None else [clusters[i] for i in enough]
    any_passes, all_pass = (
        _difference(counts, k, of_task, confidence, named, is_suite=is_suite)
        for of_task in (any_of, all_of)
    )
    return PassAt(k, len(enough), any_passes, all_pass)


def _counts(group: Sequence[float]) -> tuple[int, int]:
    """Return the number of a task's trials and the number that passed."""
    return len(group), round(math.fsum(group))


def _difference(
    counts: Sequence[Sequence[tuple[int, int]]],
    k: int,
    of_task: _OfTask,
    confidence: float,
    clusters: Sequence[str] | None,
    *,
    is_suite: bool,
) -> Estimate:
    rates_a, rates_b = ([of_task(n, passed, k) for n, passed in side] for side in counts)
    independent = paired_rates.independent_pairs(*([n // k for n, _ in side] for side in counts))
    if not is_suite:
        return paired_rates.of_rates(rates_a, rates_b, independent, confidence, clusters).estimate
    pairs = paired_rates.discordance_of_rates(rates_a, rates_b, independent)
    within = _variance_within(counts, k, of_task)
    if within is None:
        return Estimate(pairs.difference, None, None)
    variance = pairs.gained + pairs.lost - pairs.difference**2
    seen = variance / within if within > _EDGE else independent
    size = max(pairs.size(confidence), min(independent, seen))
    low, high = paired_rates.tango_interval(
        pairs.gained * size, pairs.lost * size, size, confidence
    )
    return Estimate(pairs.difference, low, high)


def _variance_within(
    counts: Sequence[Sequence[tuple[int, int]]], k: int, of_task: _OfTask
) -> float | None:
    """Return the variance of the mean difference that is due to the trials of each task.

    Returns None if a side has only k trials of some task.
    """
    if any(n == k for side in counts for n, _ in side):
        return None
    total = math.fsum(jackknife(n, passed, k, of_task) for side in counts for n, passed in side)
    return total / len(counts[0]) ** 2


def jackknife(n: int, passed: int, k: int, of_task: _OfTask) -> float:
    """Return the jackknife variance of a task's estimate on one side."""
    if passed in (0, n):
        return 0.0
    without_pass, without_failure = of_task(n - 1, passed - 1, k), of_task(n - 1, passed, k)
    # The n estimates without one trial take two values.
    return (n - 1) / n**2 * passed * (n - passed) * (without_pass - without_failure) ** 2
