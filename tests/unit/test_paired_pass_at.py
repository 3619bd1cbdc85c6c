"""Differences of pass@k and pass^k against pass rates, brute force and simulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from labledger.compare.statistics import paired_rates
from labledger.compare.statistics import rates as pass_rates
from labledger.compare.statistics.samples import Estimate

Rates = np.ndarray


def draw(chance: np.random.Generator, rates: Rates, replications: int) -> list[list[float]]:
    """Draw each task's trials with its pass probability."""
    drawn = chance.random((len(rates), replications)) < rates[:, None]
    return drawn.astype(float).tolist()


@pytest.mark.parametrize("clusters", [None, list("aabbcddd")])
def test_pass_at_1_is_the_pass_rate(clusters: Sequence[str] | None) -> None:
    """With k = 1, difference and interval equal those for pass rates, for both estimands."""
    chance = np.random.default_rng(5)
    a, b = (draw(chance, np.full(8, rate), 3) for rate in (0.4, 0.7))
    one = pass_rates.pass_at_difference(a, b, 1, 0.95, clusters)
    expected = paired_rates.of_tasks(a, b, 0.95, clusters).estimate
    for estimate in (one.any, one.all):
        assert estimate is not None
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )
    suite = pass_rates.pass_at_difference(a, b, 1, 0.95, is_suite=True)
    assert suite.any == suite.all == paired_rates.of_suite(a, b, 0.95).estimate


def test_the_estimates_are_the_means_over_all_groups_of_k_trials() -> None:
    """The difference averages over all groups of k trials of a task; smaller tasks are left out."""
    chance = np.random.default_rng(6)
    a, b = (draw(chance, np.full(6, rate), 4) for rate in (0.3, 0.6))
    difference = pass_rates.pass_at_difference([*a, [1.0]], [*b, [1.0] * 4], 3, 0.95)

    def mean_over_groups(side: Sequence[Sequence[float]], combine: type[max] | type[min]) -> float:
        groups = [[combine(g) for g in itertools.combinations(task, 3)] for task in side]
        return float(np.mean(groups))

    assert difference.tasks == 6
    for estimate, combine in ((difference.any, max), (difference.all, min)):
        assert estimate is not None
        expected = mean_over_groups(b, combine) - mean_over_groups(a, combine)
        assert estimate.value == pytest.approx(expected)
        assert (estimate.low or -2) < expected < (estimate.high or 2)


@pytest.mark.parametrize(("n", "passed", "k"), [(5, 2, 2), (6, 5, 3), (4, 4, 2), (7, 1, 6)])
def test_the_variance_within_a_task_is_the_jackknifes(n: int, passed: int, k: int) -> None:
    """The variance equals (n − 1)/n times the squared deviations of the leave-one-out estimates."""
    trials = [1.0] * passed + [0.0] * (n - passed)
    for of_task in (pass_rates.any_of, pass_rates.all_of):
        left = [of_task(n - 1, round(passed - trial), k) for trial in trials]
        expected = (n - 1) / n * math.fsum((x - np.mean(left)) ** 2 for x in left)
        variance = pass_rates.jackknife(n, passed, k, of_task)
        assert variance == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("tasks", "replications", "k", "is_suite"),
    [(40, 3, 3, False), (40, 6, 2, False), (40, 6, 2, True), (25, 5, 3, True)],
)
def test_coverage(tasks: int, replications: int, k: int, *, is_suite: bool) -> None:
    """The interval contains the true difference about as often as its confidence says."""
    chance = np.random.default_rng(8)

    def task_rates(count: int) -> tuple[Rates, Rates]:
        a = chance.beta(0.7, 0.7, count)
        return a, np.clip(a + chance.normal(0.05, 0.15, count), 0, 1)

    fixed = task_rates(tasks)
    all_a, all_b = fixed if is_suite else task_rates(200_000)
    truths = (
        float(np.mean((1 - all_a) ** k - (1 - all_b) ** k)),
        float(np.mean(all_b**k - all_a**k)),
    )
    covered, draws = [0, 0], 200
    for _ in range(draws):
        rates = fixed if is_suite else task_rates(tasks)
        a, b = (draw(chance, side, replications) for side in rates)
        difference = pass_rates.pass_at_difference(a, b, k, 0.95, is_suite=is_suite)
        for number, estimate in enumerate((difference.any, difference.all)):
            covered[number] += contains(estimate, truths[number])
    # Two hundred draws at 95 % vary by 1.5 % (one standard error).
    assert min(covered) >= 0.91 * draws


def contains(estimate: Estimate | None, truth: float) -> bool:
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


def test_an_interval_has_a_width_where_nothing_varies() -> None:
    """If all trials passed, the interval has a width, which shrinks with trials for a suite."""
    widths: dict[bool, list[float]] = {False: [], True: []}
    for is_suite, replications in itertools.product(widths, (4, 6, 12)):
        side = [[1.0] * replications] * 20
        difference = pass_rates.pass_at_difference(side, side, 3, 0.95, is_suite=is_suite).any
        assert difference is not None
        assert contains(difference, 0.0)
        widths[is_suite].append((difference.high or 0) - (difference.low or 0))
    assert min(*widths[False], *widths[True]) > 0
    assert widths[True] == sorted(set(widths[True]), reverse=True)


def test_a_suite_has_no_interval_from_a_single_estimate_of_each_task() -> None:
    """With k trials a side the spread is unknown, so there is no interval."""
    side = [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]] * 10
    difference = pass_rates.pass_at_difference(side, side[::-1], 3, 0.95, is_suite=True)
    assert difference.all == Estimate(0.0, None, None)
    assert difference.any == Estimate(0.0, None, None)
