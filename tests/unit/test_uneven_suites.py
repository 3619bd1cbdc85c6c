"""Fixed suites whose tasks have different numbers of counted trials."""

from __future__ import annotations

import numpy as np
import pytest

from labledger.compare.statistics import paired_means, paired_rates

ALL = 0.95
Sides = tuple[list[list[float]], list[list[float]]]


def drawn(
    chance: np.random.Generator,
    rates: tuple[list[float], list[float]],
    trials: tuple[list[int], list[int]],
) -> Sides:
    """Return the trials of both sides, drawn with each task's rates and numbers of trials."""
    a, b = (
        [(chance.random(n) < rate).astype(float).tolist() for n, rate in zip(*side, strict=True)]
        for side in zip(trials, rates, strict=True)
    )
    return a, b


@pytest.mark.parametrize(
    ("rates", "trials"),
    [
        # On the tasks with one trial a side, both may agree by chance.
        (([0.5] * 4, [0.0, 1.0] * 2), ([10, 1] * 2, [10, 1] * 2)),
        # The side with one trial varies; the other one, which has ten, does not.
        (([0.5] * 8, [0.0, 1.0] * 4), ([1] * 8, [10] * 8)),
        (([0.05, 0.95] * 3, [0.95, 0.05] * 3), ([10, 1, 1] * 2, [1, 10, 10] * 2)),
        (([0.5] * 6, [0.5] * 6), ([1, 1, 10] * 2, [10, 1, 1] * 2)),
        # Nearly even: the stratified test holds, with the trials of the side that has fewer.
        (([0.05, 0.95] * 2, [0.95, 0.05] * 2), ([2, 3, 3, 2], [3, 3, 2, 2])),
        (([0.5] * 8, [0.0, 1.0] * 4), ([5] * 8, [10] * 8)),
    ],
)
def test_tasks_that_cancel_are_seldom_called_a_difference(
    rates: tuple[list[float], list[float]], trials: tuple[list[int], list[int]]
) -> None:
    """At a mean difference of 0, at most 5 % of draws show one, whatever the trial numbers."""
    chance = np.random.default_rng(3)
    alarms, draws = 0, 400
    for _ in range(draws):
        inference = paired_rates.of_suite(*drawn(chance, rates, trials), ALL)
        alarms += inference.p < 1 - ALL
    assert alarms / draws <= 0.07  # Two standard errors above .05.


def test_interval_and_p_value_of_uneven_suites_agree() -> None:
    """The p value is small exactly where the interval excludes 0, in both directions."""
    chance = np.random.default_rng(4)
    shown = 0
    for _ in range(300):
        tasks = int(chance.integers(1, 9))
        choice = [1, 2, 3, 10] if chance.random() < 0.5 else [2, 3]
        counts = tuple(chance.choice(choice, tasks).tolist() for _ in range(2))
        rates = tuple(chance.beta(0.4, 0.4, tasks).tolist() for _ in range(2))
        a, b = drawn(chance, (rates[0], rates[1]), (counts[0], counts[1]))
        inference, mirrored = paired_rates.of_suite(a, b, ALL), paired_rates.of_suite(b, a, ALL)
        low, high = inference.estimate.bounds or (0.0, 0.0)
        assert low <= inference.estimate.value <= high
        assert (inference.p < 1 - ALL) is not (low <= 0 <= high)
        assert inference.p == pytest.approx(mirrored.p, abs=1e-9)
        assert mirrored.estimate.low == pytest.approx(-high, abs=1e-9)
        shown += inference.p < 1 - ALL
    assert shown > 10


def test_a_lost_trial_changes_little() -> None:
    """Without one trial of 60, the conclusion about a suite stays."""
    a = [[1.0] * 3] * 20
    b = [[0.0] * 3] * 5 + [[1.0] * 3] * 15
    whole = paired_rates.of_suite(a, b, ALL)
    partly = paired_rates.of_suite(a, [*b[:-1], [1.0] * 2], ALL)
    assert whole.p < 0.001
    assert partly.p < 0.001
    assert partly.estimate.value == pytest.approx(whole.estimate.value)
    assert (partly.estimate.high or 0) == pytest.approx(whole.estimate.high, abs=0.01)


def test_single_trials_of_both_directions_are_no_evidence() -> None:
    """Ten tasks with one trial, half of them up and half down, show no difference."""
    a = [[0.0]] * 10 + [[0.0, 0.0]]
    b = [[1.0]] * 6 + [[-1.0]] * 4 + [[0.0]]
    assert paired_means.of_suite(a, b, ALL).p == pytest.approx(0.754, abs=0.01)
    one_way = paired_means.of_suite(a, [[1.0]] * 10 + [[0.0]], ALL)
    assert one_way.p == pytest.approx(2 / 2**10)
