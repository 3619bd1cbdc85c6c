"""Estimate how much the difference of two sides varies between tasks, and within a task.

The variance of a mean difference over T tasks with R replications is (between + within / R) / T for
tasks like these, and within / (R T) for a fixed suite (Brennan 2001, Generalizability Theory,
chapter 2). `of_pairs` estimates both parts from earlier trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from labledger.compare.statistics.samples import (
    Groups,
    mean,
    quantile,
    task_means,
    units_deviation,
    variance,
)

if TYPE_CHECKING:
    from labledger.compare.statistics.samples import Array


_LARGEST_LOG = 50.0
"""The logarithm of the largest factor. Beyond it, nothing is known about a variance."""


class PairedTasks(NamedTuple):
    """The trials of two sides, for the tasks that both have."""

    task_ids: Sequence[str]
    a: Groups
    b: Groups


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over tasks that the components are computed from."""

    squares: Array | float
    """Squared deviations of the tasks' differences from the mean of their pair of sides."""
    degrees: Array | float
    noise: Array | float
    """The variances of the tasks' differences that are due to their trials."""
    within: Array | float
    count: Array | float

    def variance(self, replications: float, *, replicated: bool) -> Array | float:
        """Return the variance of a task's difference with `replications` on each side.

        It may be below 0, because the part between tasks may be. Without this, the jackknife's
        estimates would vary less than the estimate does.
        """
        if not replicated:
            return self.squares / self.degrees
        between = self.squares / self.degrees - self.noise / self.count
        return between + self.within / self.count / replications


@dataclass(frozen=True, slots=True)
class Components:
    """The variances of differences between tasks and within them."""

    tasks: int
    """The number of distinct tasks that the variances were estimated from."""
    between: float
    """The variance of the tasks' true differences. Without replications it is the variance of the
    observed differences, which includes an unknown part within tasks."""
    within: float | None
    """The sum of the variances of single trials of a task on both sides; None without
    replications."""
    design_effect: float
    """The factor by which clusters of tasks increase the variance of the mean; at least 1."""
    baseline: float
    """The mean of the A sides."""
    explained: float
    """For pass rates, the variance that a pair gains from the difference of its sides. It is below
    0 if B's rates are nearer to 0 or 1."""
    explained_within: float
    """The part of `explained` that is within tasks."""
    spread: float
    """The variance of the tasks' rates, or means, that both sides share."""
    _whole: _Sums = field(repr=False)
    _without: _Sums = field(repr=False)
    """The sums without each of the tasks."""

    def variance(self, replications: int) -> float:
        """Return the variance of a task's observed difference with `replications` on each side."""
        return self.between + (self.within or 0.0) / replications

    def range_of_variance(self, replications: int, confidence: float) -> float | None:
        """Return the factor by which the true variance may be larger, or smaller.

        It comes from the interval of the variance's logarithm, by the jackknife over tasks (Miller
        1974, Biometrika 61:1–15) and the delta method. None for fewer than three tasks, or if
        nothing varies.
        """
        if self.tasks < 3:
            return None
        is_replicated = self.within is not None
        without = self._without.variance(replications, replicated=is_replicated)
        return self._range(self.variance(replications), without, confidence)

    def range_of_within(self, confidence: float) -> float | None:
        """Return the factor by which the true variance within tasks may be larger, or smaller.

        None in the same cases as `range_of_variance`.
        """
        if self.tasks < 3:
            return None
        if not self.within:
            return None
        return self._range(self.within, self._without.within / self._without.count, confidence)

    def _range(self, variance: float, without: Array | float, confidence: float) -> float | None:
        """Return the factor for a variance, from its estimates without one task each."""
        import numpy as np

        estimates = np.asarray(without)
        if variance <= 0 or not np.all(np.isfinite(estimates)):
            return None
        squares = float(((estimates - estimates.mean()) ** 2).sum())
        error = math.sqrt((self.tasks - 1) / self.tasks * squares) / variance
        return math.exp(min(quantile(confidence, self.tasks - 1) * error, _LARGEST_LOG))


def of_pairs(
    pairs: Sequence[PairedTasks], clusters: Mapping[str, str] | None = None
) -> Components | None:
    """Estimate the components from pairs of sides, such as the baseline and treatment of runs.

    Pairs with fewer than two tasks are ignored; returns None if no pair remains. `clusters` names
    the cluster of each task. Components of a metric are in its unit squared. An estimate below 0
    becomes 0.
    """
    import numpy as np

    usable = [pair for pair in pairs if len(pair.task_ids) > 1]
    if not usable:
        return None
    names = sorted({task_id for pair in usable for task_id in pair.task_ids})
    position = {name: number for number, name in enumerate(names)}
    is_replicated = any(len(g) > 1 for pair in usable for side in (pair.a, pair.b) for g in side)
    squares, noise, within, count = (np.zeros(len(names)) for _ in range(4))
    squares_without, degrees, effects = np.zeros(len(names)), 0, []
    means = [(mean(task_means(pair.a)), mean(task_means(pair.b))) for pair in usable]
    for pair in usable:
        index = np.array([position[name] for name in pair.task_ids])
        size = len(index)
        differences = np.array([mean(b) - mean(a) for a, b in zip(pair.a, pair.b, strict=True)])
        deviations = (differences - differences.mean()) ** 2
        np.add.at(squares, index, deviations)
        # Removing a value reduces the sum of squares by the value's square times n / (n − 1).
        np.add.at(squares_without, index, deviations * size / (size - 1))
        np.add.at(count, index, 1)
        degrees += size - 1
        for side in (pair.a, pair.b):
            of_trial = _trial_variances(side, usable)
            np.add.at(within, index, of_trial)
            np.add.at(noise, index, of_trial / np.array([len(group) for group in side]))
        if clusters is not None:
            effects.append(_design_effect(differences, [clusters[t] for t in pair.task_ids]))
    whole = _Sums(squares.sum(), degrees, noise.sum(), within.sum(), count.sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        without = _Sums(
            squares.sum() - squares_without,
            degrees - count,
            noise.sum() - noise,
            within.sum() - within,
            count.sum() - count,
        )
    return Components(
        tasks=len(names),
        between=float(
            max(whole.variance(math.inf, replicated=True), 0.0)
            if is_replicated
            else whole.variance(1, replicated=False)
        ),
        within=float(within.sum() / count.sum()) if is_replicated else None,
        design_effect=max(1.0, mean(effects)) if effects else 1.0,
        baseline=mean([mean_a for mean_a, _ in means]),
        explained=mean([explained_by(mean_a, mean_b) for mean_a, mean_b in means]),
        spread=mean([spread_of(pair.a, pair.b) for pair in usable]),
        explained_within=mean([explained_within_by(mean_a, mean_b) for mean_a, mean_b in means]),
        _whole=whole,
        _without=without,
    )


def spread_of(a: Groups, b: Groups) -> float:
    """Return the variance of the tasks' means that both sides share; at least 0."""
    means_a, means_b = task_means(a), task_means(b)
    if len(means_a) < 2:
        return 0.0
    centre_a, centre_b = mean(means_a), mean(means_b)
    products = ((x - centre_a) * (y - centre_b) for x, y in zip(means_a, means_b, strict=True))
    return max(0.0, math.fsum(products) / (len(means_a) - 1))


def rate_with_spread(rate: float, spread: float) -> float:
    """Return the rate at which tasks of equal rates would gain as much variation as these tasks.

    Suppose that tasks with the mean rate p, which vary by `spread`, all move away from 1 in
    proportion. A difference of d then adds d (2p − 1) + 2 d spread / p to the share of pairs that
    differ. For a move towards 1, replace p by 1 − p.
    """
    pull = abs(2 * rate - 1) + 2 * spread / max(rate, 1 - rate)
    return min(1.0, (1 + pull) / 2)


def explained_by(rate_a: float, rate_b: float) -> float:
    """Return the variance that a pair's difference gains because B's rate is not A's.

    With rates p and q and independent trials, the share of pairs that differ grows by p(1 − q) +
    q(1 − p) − 2p(1 − p). The variance grows by this minus the square of the difference.
    """
    difference = rate_a - rate_b
    return difference * (2 * rate_a - 1) - difference**2


def explained_within_by(rate_a: float, rate_b: float) -> float:
    """Return the variance that the trials of a task gain because B's rate is not A's.

    With rates p and q it is q(1 − q) − p(1 − p).
    """
    return (rate_a - rate_b) * (rate_a + rate_b - 1)


def of_suite(a: Groups, b: Groups) -> tuple[float, float]:
    """Return the variances between and within fixed tasks; one task is enough."""
    pair = PairedTasks([str(number) for number in range(len(a))], a, b)
    known = of_pairs([pair])
    if known is not None:
        return known.between, known.within or 0.0
    return 0.0, math.fsum(float(_trial_variances(side, [pair]).mean()) for side in (a, b))


def _trial_variances(side: Groups, pairs: Sequence[PairedTasks]) -> Array:
    """Return the variance of a trial of each task; the average variance for single trials."""
    import numpy as np

    known = [variance(group) for group in side]
    measured = [value for value in known if value is not None]
    if not measured:
        every = (group for pair in pairs for other in (pair.a, pair.b) for group in other)
        measured = [v for group in every if (v := variance(group)) is not None]
    usual = mean(measured) if measured else 0.0
    return np.array([usual if value is None else value for value in known])


def _design_effect(differences: Array, clusters: Sequence[str]) -> float:
    clustered, _, degrees = units_deviation(differences, clusters)
    single, _, _ = units_deviation(differences)
    return (clustered / single) ** 2 if degrees and single else 1.0
