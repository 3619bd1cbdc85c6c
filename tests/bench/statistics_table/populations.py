"""The drawn tasks and trials: pass rates that vary between tasks, and metrics."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy import optimize, special

Array = np.ndarray[Any, Any]
Chance = np.random.Generator
Trials = list[list[float]]
"""The values of each task's trials."""

VERIFIED = (231, 75, 44, 34, 32, 22, 22, 19, 10, 8, 2, 1)
"""The tasks of SWE-bench Verified's repositories."""
_SPREAD = 3.0
"""Rates of tasks have a beta distribution whose parameters add up to this."""
_CLUSTER_DEVIATION = 0.7
"""The standard deviation of clusters of tasks, in logits."""


def effect_of(tasks: int) -> float:
    """Return the difference of pass rates whose power is given."""
    return {5: 0.45, 12: 0.4, 50: 0.2, 200: 0.1, 500: 0.07}[tasks]


def moved(rates: Array, mean: float, difference: float, *, up: bool) -> Array:
    """Return rates whose mean, `mean`, is moved by a difference, in proportion."""
    if up:
        return rates + (1 - rates) * difference / (1 - mean)
    return rates * (1 - difference / mean)


def sides(a: Array, b: Array, mean: float, difference: float) -> tuple[Array, Array]:
    """Return the rates of A and B so that B is worse by a difference; the rarer mean stays."""
    if mean < 0.5:
        return moved(a, mean, difference, up=True), b
    return a, moved(b, mean, difference, up=False)


def task_rates(chance: Chance, mean: float, tasks: int) -> tuple[Array, Array]:
    """Return two sides' rates of tasks drawn at random: half of the tasks have a rate for both."""
    a, own_rates = (chance.beta(_SPREAD * mean, _SPREAD * (1 - mean), tasks) for _ in range(2))
    return a, np.where(chance.random(tasks) < 0.5, a, own_rates)


def suite_rates(chance: Chance, mean: float, tasks: int) -> tuple[Array, Array]:
    """Return rates of fixed tasks with one mean on both sides: B has A's rates, half shuffled."""
    size = _SPREAD / (4 * mean * (1 - mean))
    places = (np.arange(tasks) + 0.5) / tasks
    # SciPy's inverse of the incomplete beta function.
    a = special.betaincinv(size * mean, size * (1 - mean), places)
    a = a * mean / a.mean() if mean <= 0.5 else 1 - (1 - a) * (1 - mean) / (1 - a.mean())
    b = np.clip(a, 0, 1)
    index = chance.permutation(tasks)[: (tasks + 1) // 2]
    b[index] = b[np.roll(index, 1)]
    return np.clip(a, 0, 1), b


def cluster_names(tasks: int) -> Array:
    """Return the cluster of each task, with sizes in proportion to SWE-bench Verified's."""
    shares = np.array(VERIFIED[: {5: 3, 12: 6}.get(tasks, 12)], dtype=float)
    sizes = np.maximum(1, np.rint(shares / shares.sum() * tasks)).astype(int)
    sizes[0] += tasks - sizes.sum()
    return np.repeat(np.arange(len(sizes)), sizes)


def cluster_rates(chance: Chance, mean: float, names: Array, *, alike: bool) -> tuple[Array, Array]:
    """Return two sides' rates of tasks in clusters.

    Half of the clusters have a level of their own on each side; if `alike` none has, so that sides
    differ by tasks alone.
    """
    count = int(names.max()) + 1
    a, own_levels = (chance.normal(0, _CLUSTER_DEVIATION, count) for _ in range(2))
    b = a if alike else np.where(chance.random(count) < 0.5, a, own_levels)
    middle = _middle(mean)
    return special.expit(middle + a)[names], special.expit(middle + b)[names]


@cache
def _middle(mean: float) -> float:
    """Return the logit around which clusters lie whose rates have this mean."""
    places = special.ndtri((np.arange(20_000) + 0.5) / 20_000) * _CLUSTER_DEVIATION
    level = optimize.brentq(lambda x: float(special.expit(x + places).mean()) - mean, -9, 9)
    return float(level)


def trials(chance: Chance, rates: Array, most: int, *, is_even: bool) -> Trials:
    """Return the 0s and 1s of each task's trials: `most`, or any number up to that."""
    drawn = chance.random((len(rates), most)) < rates[:, np.newaxis]
    return _counted(chance, drawn.astype(float), is_even=is_even)


def _counted(chance: Chance, drawn: Array, *, is_even: bool) -> Trials:
    values: Trials = drawn.tolist()
    if is_even:
        return values
    counts = chance.integers(1, drawn.shape[1] + 1, len(values)).tolist()
    return [value[:count] for value, count in zip(values, counts, strict=True)]


def quantiles(mean: float) -> Array:
    """Return many rates that have the distribution of `task_rates`."""
    places = (np.arange(4000) + 0.5) / 4000
    return np.asarray(special.betaincinv(_SPREAD * mean, _SPREAD * (1 - mean), places))


# -- metrics


_SKEW = 0.8
_RARE_SHARE, _RARE_SIZE = 0.01, 100.0


def metric_levels(chance: Chance, kind: str, tasks: int) -> tuple[Array, Array]:
    """Return the tasks' levels on two sides, which have one mean in the population."""
    shared = chance.normal(0, 1, tasks)
    if kind == "skewed":
        own_levels = [chance.normal(0, 0.5, tasks) for _ in range(2)]
        return np.exp(_SKEW * (shared + own_levels[0])), np.exp(_SKEW * (shared + own_levels[1]))
    if kind == "one-sided":
        return shared, shared + np.exp(chance.normal(0, 1, tasks)) - np.exp(0.5)
    return shared, shared + chance.normal(0, 0.5, tasks)


def metric_trials(
    chance: Chance, kind: str, levels: Array, most: int, *, is_even: bool, shift: float
) -> Trials:
    """Return the values of each task's trials around the tasks' levels."""
    noise = chance.normal(0, 1, (len(levels), most))
    if kind == "skewed":
        # Each trial's factor has the mean 1.
        values = levels[:, np.newaxis] * np.exp(_SKEW * noise - _SKEW**2 / 2)
    else:
        values = levels[:, np.newaxis] + noise
    if kind == "rare":
        values = values + _RARE_SIZE * (chance.random(values.shape) < _RARE_SHARE)
    return _counted(chance, values + shift, is_even=is_even)


def metric_deviation(kind: str, replications: int, *, is_suite: bool) -> float:
    """Return about how much a task's difference varies."""
    within = {"skewed": 2.0, "rare": 1 + _RARE_SIZE**2 * _RARE_SHARE}.get(kind, 1.0)
    between = {"skewed": 1.5, "one-sided": 4.67}.get(kind, 0.25)
    return float(np.sqrt((0.0 if is_suite else between) + 2 * within / replications))
