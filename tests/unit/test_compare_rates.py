"""Single rates, pass@k and pass^k, and what replications are worth."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from labledger.compare.statistics import rates, samples

ALL = 0.95


def test_exact_intervals_as_published() -> None:
    """The intervals of Newcombe 1998, Statistics in Medicine 17:857–872, table I, method 5."""
    published = {
        (81, 263): (0.2527, 0.3676),
        (15, 148): (0.0578, 0.1617),
        (0, 20): (0.0000, 0.1684),
        (1, 29): (0.0009, 0.1776),
    }
    for (passed, tasks), (low, high) in published.items():
        estimate = rates.rate([[1.0]] * passed + [[0.0]] * (tasks - passed), ALL)
        assert estimate.value == pytest.approx(passed / tasks)
        assert (estimate.low, estimate.high) == (
            pytest.approx(low, abs=6e-5),
            pytest.approx(high, abs=6e-5),
        )


def test_intervals_of_few_tasks_hold_near_the_ends() -> None:
    """At any true rate, at most one exact interval in twenty misses it, by enumeration."""
    for tasks in (1, 5, 12, 50):
        estimates = [
            rates.rate([[1.0]] * passed + [[0.0]] * (tasks - passed), ALL)
            for passed in range(tasks + 1)
        ]
        for truth in (0.01, 0.03, 0.1, 0.18, 0.46, 0.5, 0.9, 0.97):
            chances = stats.binom.pmf(np.arange(tasks + 1), tasks, truth)
            missed = [not _holds(estimate, truth) for estimate in estimates]
            assert chances[missed].sum() <= 1 - ALL + 1e-9


def _holds(estimate: samples.Estimate, truth: float) -> bool:
    return estimate.bounds is not None and estimate.bounds[0] <= truth <= estimate.bounds[1]


@pytest.mark.parametrize("replications", [1, 4])
def test_rates_at_the_edges_have_a_width(replications: int) -> None:
    """If all or no trials passed, the interval is the interval of that many tasks."""
    for value in (0.0, 1.0):
        estimate = rates.rate([[value] * replications] * 10, ALL)
        low, high = proportion_confint(value * 10, 10, method="beta")
        assert (estimate.low, estimate.high) == (pytest.approx(low), pytest.approx(high))
        assert estimate.high is not None
        assert estimate.low is not None
        assert estimate.high - estimate.low > 0.2


def test_replications_count_for_what_they_are_worth() -> None:
    """Copies of a trial add nothing; independent replications add less than new tasks."""
    tasks = [[1.0], [0.0]] * 15
    copied = rates.rate([group * 5 for group in tasks], ALL)
    assert copied == rates.rate(tasks, ALL)
    chance = random.Random(1)
    drawn = [[float(chance.random() < 0.5) for _ in range(5)] for _ in range(30)]
    many = rates.rate([[value] for group in drawn for value in group], ALL)
    estimate = rates.rate(drawn, ALL)
    assert _width(many) < _width(estimate) < _width(copied)


@pytest.mark.parametrize("shape", ["mostly one trial", "one or three", "three"])
def test_the_rate_of_a_suite_holds_with_unequal_trials(shape: str) -> None:
    """The interval of a suite with unequal trials misses at most one of twenty of 400 seeded
    suites.

    Two simulation errors beyond that are 2.2 %.
    """
    chance = np.random.default_rng(5)
    truths = np.linspace(0.2, 0.95, 30)
    counts = {
        "mostly one trial": [1] * 27 + [10] * 3,
        "one or three": [1, 3] * 15,
        "three": [3] * 30,
    }[shape]
    missed = 0
    for _ in range(400):
        groups = [
            (chance.random(count) < rate).astype(float).tolist()
            for rate, count in zip(truths, counts, strict=True)
        ]
        missed += not _holds(rates.suite_rate(groups, ALL), float(truths.mean()))
    assert missed / 400 <= 1 - ALL + 0.022


def test_a_suite_whose_trials_never_vary_keeps_a_width() -> None:
    """If all trials passed, the interval is the binomial interval of all trials."""
    estimate = rates.suite_rate([[1.0] * 4] * 5, ALL)
    low, high = proportion_confint(20, 20, method="beta")
    assert estimate.bounds == (pytest.approx(low), pytest.approx(high))
    uneven = rates.suite_rate([[1.0]] * 4 + [[1.0] * 4], ALL)
    assert uneven.bounds is not None
    # Counts as fewer than 8 trials of one rate, because four tasks have one each.
    assert uneven.bounds[0] < proportion_confint(8, 8, method="beta")[0]


def _width(estimate: samples.Estimate) -> float:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.high - estimate.low


def test_tasks_weigh_alike() -> None:
    """A task with lost replications weighs as much as the others."""
    assert rates.rate([[1.0, 1.0, 1.0], [0.0]], ALL).value == 0.5


def test_effective_sizes_stay_between_tasks_and_trials() -> None:
    """The effective size is at least the number of tasks and at most the number of trials."""
    chance = random.Random(2)
    for _ in range(200):
        sizes = [chance.randint(1, 6) for _ in range(chance.randint(1, 12))]
        groups = [[float(chance.random() < 0.6) for _ in range(size)] for size in sizes]
        means = samples.task_means(groups)
        p = samples.mean(means)
        independent = samples.independent_size(sizes)
        effective = samples.effective_size(means, p * (1 - p), independent, ALL)
        assert len(sizes) <= effective <= max(independent, len(sizes)) + 1e-9
        assert independent <= sum(sizes) + 1e-9


# -- pass@k and pass^k


def test_pass_at_k_is_the_average_over_all_choices() -> None:
    """Both estimators equal the average over every draw of k of the n trials."""
    for n in range(1, 7):
        for passed in range(n + 1):
            trials = [1] * passed + [0] * (n - passed)
            for k in range(1, n + 1):
                draws = list(itertools.combinations(trials, k))
                some = sum(any(draw) for draw in draws) / len(draws)
                every = sum(all(draw) for draw in draws) / len(draws)
                assert rates.any_of(n, passed, k) == pytest.approx(some)
                assert rates.all_of(n, passed, k) == pytest.approx(every)


def test_pass_at_k_as_chen_computes_it() -> None:
    """The result equals the numpy product in Chen et al. 2021 (arXiv:2107.03374, figure 3)."""
    for n, passed, k in ((200, 3, 10), (200, 100, 100), (100, 1, 100), (5, 0, 2)):
        product = math.prod(1 - k / i for i in range(n - passed + 1, n + 1))
        expected = 1.0 if n - passed < k else 1 - product
        assert rates.any_of(n, passed, k) == pytest.approx(expected)


def test_pass_at_one_is_the_pass_rate() -> None:
    """With k = 1, both estimates and their intervals equal the pass rate."""
    groups = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    single_rate = rates.pass_at(groups, 1, ALL)
    expected = rates.rate(groups, ALL)
    for estimate in (single_rate.any, single_rate.all):
        assert estimate is not None
        assert estimate.value == pytest.approx(expected.value)
        assert estimate.low == pytest.approx(expected.low)
        assert estimate.high == pytest.approx(expected.high)


def test_tasks_with_too_few_replications_are_left_out() -> None:
    """Only tasks with k trials count for pass@k; without such a task there is no value."""
    groups = [[1.0, 1.0], [0.0]]
    estimate = rates.pass_at(groups, 2, ALL)
    assert estimate.tasks == 1
    assert estimate.any is not None
    assert estimate.any.value == 1.0
    assert rates.pass_at(groups, 3, ALL) == rates.PassAt(3, 0, None, None)


def test_intervals_of_pass_at_k_hold_near_their_ends() -> None:
    """Ten trials hold two disjoint groups of five, so pass@5 is known less well than a rate."""
    chance = np.random.default_rng(2)
    population = chance.beta(1.5, 1.5, 100_000)
    truths = float(np.mean(1 - (1 - population) ** 5)), float(np.mean(population**5))
    held, draws = [0, 0], 300
    for _ in range(draws):
        passed = chance.binomial(10, chance.choice(population, 12))
        groups = [[1.0] * count + [0.0] * (10 - count) for count in passed.tolist()]
        rate_at_5 = rates.pass_at(groups, 5, ALL)
        for number, (estimate, truth) in enumerate(
            zip((rate_at_5.any, rate_at_5.all), truths, strict=True)
        ):
            assert estimate is not None
            held[number] += (estimate.low or 0) <= truth <= (estimate.high or 1)
    assert min(held) / draws >= 0.93


def test_pass_at_k_of_clusters_is_worth_its_clusters() -> None:
    """Forty similar tasks in four repositories have a wide interval."""
    groups = [[1.0, 1.0]] * 20 + [[0.0, 0.0]] * 20
    clusters = [str(n // 10) for n in range(40)]
    alone, together = (rates.pass_at(groups, 2, ALL, named).any for named in (None, clusters))
    assert alone is not None
    assert together is not None
    assert _width(together) > 1.8 * _width(alone)
