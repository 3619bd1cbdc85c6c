"""Single rates, pass@k and pass^k, and what replications are worth."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from labledger.compare.statistics import rates, samples

ALL = 0.95


def test_wilson_intervals_as_published() -> None:
    """The intervals of Newcombe 1998, Statistics in Medicine 17:857–872, table I, method 3."""
    published = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0000, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (passed, tasks), (low, high) in published.items():
        found = rates.rate([[1.0]] * passed + [[0.0]] * (tasks - passed), ALL)
        assert found.value == pytest.approx(passed / tasks)
        assert (found.low, found.high) == (
            pytest.approx(low, abs=6e-5),
            pytest.approx(high, abs=6e-5),
        )


@pytest.mark.parametrize("replications", [1, 4])
def test_rates_at_the_edges_have_a_width(replications: int) -> None:
    """All passed, or none: the interval is that of as many tasks, whatever the replications."""
    for value in (0.0, 1.0):
        found = rates.rate([[value] * replications] * 10, ALL)
        low, high = proportion_confint(value * 10, 10, method="wilson")
        assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
        assert found.high is not None
        assert found.low is not None
        assert found.high - found.low > 0.2


def test_replications_count_for_what_they_are_worth() -> None:
    """Copies of a trial add nothing; independent replications add, but less than new tasks."""
    tasks = [[1.0], [0.0]] * 15
    copied = rates.rate([group * 5 for group in tasks], ALL)
    assert copied == rates.rate(tasks, ALL)
    chance = random.Random(1)
    drawn = [[float(chance.random() < 0.5) for _ in range(5)] for _ in range(30)]
    many = rates.rate([[value] for group in drawn for value in group], ALL)
    found = rates.rate(drawn, ALL)
    assert _width(many) < _width(found) < _width(copied)


def _width(found: samples.Estimate) -> float:
    assert found.low is not None
    assert found.high is not None
    return found.high - found.low


def test_tasks_weigh_alike() -> None:
    """A task that lost replications counts as much as the others."""
    assert rates.rate([[1.0, 1.0, 1.0], [0.0]], ALL).value == 0.5


def test_effective_sizes_stay_between_tasks_and_trials() -> None:
    """Whatever the data, replications are worth something from nothing to a task each."""
    chance = random.Random(2)
    for _ in range(200):
        sizes = [chance.randint(1, 6) for _ in range(chance.randint(1, 12))]
        groups = [[float(chance.random() < 0.6) for _ in range(size)] for size in sizes]
        means = samples.task_means(groups)
        p = samples.mean(means)
        independent = samples.independent_size(sizes)
        found = samples.effective_size(means, p * (1 - p), independent, ALL)
        assert len(sizes) <= found <= max(independent, len(sizes)) + 1e-9
        assert independent <= sum(sizes) + 1e-9


# -- pass@k and pass^k


def test_pass_at_k_is_the_average_over_all_choices() -> None:
    """Both estimators are what drawing k of the n trials gives, over every draw there is."""
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
    """The product that Chen et al. 2021 (arXiv:2107.03374, figure 3) give in numpy agrees."""
    for n, passed, k in ((200, 3, 10), (200, 100, 100), (100, 1, 100), (5, 0, 2)):
        product = math.prod(1 - k / i for i in range(n - passed + 1, n + 1))
        expected = 1.0 if n - passed < k else 1 - product
        assert rates.any_of(n, passed, k) == pytest.approx(expected)


def test_pass_at_one_is_the_pass_rate() -> None:
    """With k = 1 both are the rate itself, interval and all."""
    groups = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    found = rates.pass_at(groups, 1, ALL)
    expected = rates.rate(groups, ALL)
    for estimate in (found.any, found.all):
        assert estimate is not None
        assert estimate.value == pytest.approx(expected.value)
        assert estimate.low == pytest.approx(expected.low)
        assert estimate.high == pytest.approx(expected.high)


def test_tasks_with_too_few_replications_are_left_out() -> None:
    """Only tasks with k trials can say something of k; where there are none, nothing does."""
    groups = [[1.0, 1.0], [0.0]]
    found = rates.pass_at(groups, 2, ALL)
    assert found.tasks == 1
    assert found.any is not None
    assert found.any.value == 1.0
    assert rates.pass_at(groups, 3, ALL) == rates.PassAt(3, 0, None, None)


def test_intervals_of_pass_at_k_hold_near_their_ends() -> None:
    """Of ten trials, pass@5 has two disjoint groups: its interval is not that of ten trials."""
    chance = np.random.default_rng(2)
    population = chance.beta(1.5, 1.5, 100_000)
    truths = float(np.mean(1 - (1 - population) ** 5)), float(np.mean(population**5))
    held, draws = [0, 0], 300
    for _ in range(draws):
        passed = chance.binomial(10, chance.choice(population, 12))
        groups = [[1.0] * count + [0.0] * (10 - count) for count in passed.tolist()]
        found = rates.pass_at(groups, 5, ALL)
        for number, (estimate, truth) in enumerate(
            zip((found.any, found.all), truths, strict=True)
        ):
            assert estimate is not None
            held[number] += (estimate.low or 0) <= truth <= (estimate.high or 1)
    assert min(held) / draws >= 0.93


def test_pass_at_k_of_clusters_is_worth_its_clusters() -> None:
    """Forty tasks of four repositories, whose tasks are alike, have a wide interval."""
    groups = [[1.0, 1.0]] * 20 + [[0.0, 0.0]] * 20
    clusters = [str(n // 10) for n in range(40)]
    alone, together = (rates.pass_at(groups, 2, ALL, named).any for named in (None, clusters))
    assert alone is not None
    assert together is not None
    assert _width(together) > 1.8 * _width(alone)
