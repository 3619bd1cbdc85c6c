"""Compare pass@k and pass^k of two sides: their differences with intervals.

A difference is the mean of the tasks' differences, over the tasks that have k replications on both
sides. The intervals are those of pass rates in `paired_rates`, for another effective number of
pairs. They are for one k each: nothing corrects for several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from labledger.compare.statistics import paired_rates
from labledger.compare.statistics.rates import PassAt, all_of, any_of
from labledger.compare.statistics.samples import Estimate, Groups, independent_size

_OfTask = Callable[[int, int, int], float]
"""An estimate of one task from its trials, its passes and k."""

_EDGE = 1e-12


def differences(
    a: Groups,
    b: Groups,
    k: int,
    confidence: float,
    clusters: Sequence[str] | None = None,
    *,
    is_suite: bool = False,
) -> PassAt:
    """Estimate the differences of pass@k and pass^k, B minus A.

    For tasks like these, the effective number of pairs follows from the spread of the tasks' (or
    `clusters`') differences, as in `paired_rates.discordance`; a task counts as at most as many
    pairs as it has disjoint groups of k trials. For k = 1 the estimate is that of the pass rate.

    For these tasks (`is_suite`) it follows from the spread within tasks, by the jackknife over the
    trials of each side, which errs on the safe side for such estimates (Efron and Stein 1981,
    Annals of Statistics 9:586–596). It is never less than that of tasks like these, whose spread
    includes the one within tasks. There is no interval where a side has only k trials of a task,
    which are a single estimate.
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
    """Return the trials of a task and how many passed."""
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
    independent = independent_size(
        2 / (1 / (n_a // k) + 1 / (n_b // k)) for (n_a, _), (n_b, _) in zip(*counts, strict=True)
    )
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

    None where a side has only k trials of some task.
    """
    if any(n == k for side in counts for n, _ in side):
        return None
    total = math.fsum(_jackknife(n, passed, k, of_task) for side in counts for n, passed in side)
    return total / len(counts[0]) ** 2


def _jackknife(n: int, passed: int, k: int, of_task: _OfTask) -> float:
    """Return the jackknife variance of a task's estimate on one side."""
    if passed in (0, n):
        return 0.0
    without_pass, without_failure = of_task(n - 1, passed - 1, k), of_task(n - 1, passed, k)
    # The n estimates without one trial take two values.
    return (n - 1) / n**2 * passed * (n - passed) * (without_pass - without_failure) ** 2
