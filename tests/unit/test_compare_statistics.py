"""Paired intervals, tests and power, against published examples, libraries and enumeration."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar

from labledger.analysis import paired_tests, power, rates

ALL = 0.95

PUBLISHED = [
    # Fagerland, Lydersen and Laake 2017, Statistical Analysis of Contingency Tables, chapter 8,
    # with the R package contingencytables: only first, only second, pairs; Tango's interval for
    # first less second; the exact conditional p value.
    pytest.param(1, 7, 21, (-0.517, -0.026), 0.0703, id="Bentur 2009"),
    pytest.param(6, 16, 161, (-0.1240, -0.0054), 0.052479, id="Cavo 2012"),
    # Agresti 2013, Categorical Data Analysis, table 11.1: approval of the prime minister. The
    # interval there is Wald's, which so many pairs bring to the same.
    pytest.param(86, 150, 1600, (-0.059, -0.021), None, id="Agresti"),
]


@pytest.mark.parametrize(("first", "second", "pairs", "bounds", "p"), PUBLISHED)
def test_paired_proportions_as_published(
    first: int, second: int, pairs: int, bounds: tuple[float, float], p: float | None
) -> None:
    """Interval and exact test of well-known paired tables."""
    digits = max(len(f"{bound}") - len(f"{bound:.0f}") - 1 for bound in bounds)
    found = paired_tests.tango_interval(first, second, pairs, ALL)
    assert found == pytest.approx(bounds, abs=0.6 * 10**-digits)
    exact = paired_tests.mcnemar(first, second)
    reference = reference_mcnemar([[0, first], [second, 0]], exact=True)
    assert exact == pytest.approx(float(reference.pvalue))
    if p is not None:
        assert exact == pytest.approx(p, abs=1e-4)


def test_the_bounds_are_where_the_score_statistic_is_the_quantile() -> None:
    """Tango's bounds, with the constrained maximum of the likelihood found by search."""
    z = stats.norm.ppf(0.975)
    for table in ((3, 5, 20), (0, 4, 12), (9, 1, 30)):
        for bound in paired_tests.tango_interval(*table, ALL):
            assert abs(score_statistic(*table, bound)) == pytest.approx(z, abs=1e-3)


def score_statistic(gained: int, lost: int, size: int, difference: float) -> float:
    """The difference seen less the one supposed, in standard deviations under the supposed one."""

    def unlikely(share: float) -> float:
        rest = 1 - difference - 2 * share
        cells = ((gained, share + difference), (lost, share), (size - gained - lost, rest))
        return -sum(n * math.log(max(p, 1e-300)) for n, p in cells if n)

    limits = (max(0.0, -difference), (1 - difference) / 2)
    found = optimize.minimize_scalar(
        unlikely, bounds=limits, method="bounded", options={"xatol": 1e-12}
    )
    deviation = math.sqrt(size * (2 * found.x + difference - difference**2))
    return (gained - lost - size * difference) / deviation


def test_an_interval_always_has_a_width_and_stays_in_range() -> None:
    """Also where no pair differs, or every one does."""
    for size in (1, 2, 5, 30):
        for gained, lost in ((0, 0), (size, 0), (0, size), (1, 0)):
            low, high = paired_tests.tango_interval(gained, lost, size, ALL)
            assert -1 <= low < high <= 1
            assert low <= (gained - lost) / size <= high
    z2 = stats.norm.ppf(0.975) ** 2
    bound = z2 / (12 + z2)  # What Tango's formula comes to without discordant pairs.
    assert paired_tests.tango_interval(0, 0, 12, ALL) == pytest.approx((-bound, bound))


def test_coverage_of_one_replication() -> None:
    """Over every outcome that 15 tasks can have, the interval holds the truth often enough."""
    size = 15
    outcomes = [(g, n) for g in range(size + 1) for n in range(size + 1 - g)]
    bounds = {o: paired_tests.tango_interval(*o, size, ALL) for o in outcomes}
    covered = []
    for up, down in itertools.product((0.02, 0.1, 0.2, 0.35, 0.5), repeat=2):
        chances = stats.multinomial.pmf(
            [(g, n, size - g - n) for g, n in outcomes], size, (up, down, 1 - up - down)
        )
        covered.append(
            sum(
                chance
                for chance, o in zip(chances, outcomes, strict=True)
                if bounds[o][0] <= up - down <= bounds[o][1]
            )
        )
    assert min(covered) > 0.93
    assert np.mean(covered) > 0.95


@pytest.mark.parametrize(("tasks", "replications"), [(6, 3), (12, 5), (30, 4)])
def test_coverage_of_replications(tasks: int, replications: int) -> None:
    """Tasks of very different difficulty, replicated: the interval holds the truth."""
    chance = np.random.default_rng(tasks)
    held = 0
    for _ in range(300):
        difficulty = chance.beta(0.5, 0.5, tasks)[:, np.newaxis]
        spread = chance.uniform(-0.4, 0.4, tasks)[:, np.newaxis]
        a = chance.random((tasks, replications)) < difficulty
        b = chance.random((tasks, replications)) < np.clip(difficulty + spread, 0, 1)
        found = paired_tests.rate_difference((b.astype(float) - a).tolist(), ALL)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high  # The difficulty and the spread are symmetric.
    assert held / 300 > 0.93


def test_replications_that_are_copies_add_nothing() -> None:
    """Pairing and clustering: copied pairs leave the interval as it was with one."""
    single = [[1.0], [0.0], [0.0], [-1.0], [1.0], [1.0], [0.0]]
    copied = [pairs * 8 for pairs in single]
    assert paired_tests.rate_difference(copied, ALL) == paired_tests.rate_difference(single, ALL)


# -- tests by exchange


def test_fishers_permutation_test_of_darwins_plants() -> None:
    """Fisher 1935, The Design of Experiments, section 21: 1,726 of 32,768 exchanges."""
    darwin = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert paired_tests.sign_flip_test(darwin, 0) == pytest.approx(1726 / 32768)


def test_the_sign_flip_test_against_all_exchanges() -> None:
    """The p value is the share of exchanges that come out at least as far from 0."""
    chance = random.Random(4)
    for _ in range(10):
        values = [chance.choice([-0.5, -0.25, 0, 0.25, 0.5, 1]) for _ in range(7)]
        signs = itertools.product((1, -1), repeat=len(values))
        sums = [sum(s * v for s, v in zip(sign, values, strict=True)) for sign in signs]
        upper = sum(total >= sum(values) for total in sums) / len(sums)
        lower = sum(total <= sum(values) for total in sums) / len(sums)
        expected = min(1.0, 2 * min(upper, lower))
        assert paired_tests.sign_flip_test(values, 0) == pytest.approx(expected)


def test_many_tasks_are_sampled_the_same_for_the_same_seed() -> None:
    """Random flips are fixed by the seed, and near the normal approximation they stand for."""
    values = list(np.random.default_rng(3).normal(0.3, 1, 60))
    found = paired_tests.sign_flip_test(values, 1)
    assert found == paired_tests.sign_flip_test(values, 1)
    assert found != paired_tests.sign_flip_test(values, 2)
    assert found == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.02)
    assert paired_tests.sign_flip_test([5.0] * 60, 1) > 0  # As seen is one of the ways.


def test_the_interval_of_a_mean_is_the_test_turned_round() -> None:
    """Means within the interval are not rejected; those just beyond it are."""
    values = [0.3, 1.7, -0.4, 2.2, 0.9, 3.1, 1.2, -1.0]
    found = paired_tests.mean_difference(values, ALL, 0)
    assert found.low is not None
    assert found.high is not None
    for bound, outward in ((found.low, -1e-6), (found.high, 1e-6)):
        inside, outside = (
            paired_tests.sign_flip_test([v - bound - step for v in values], 0)
            for step in (-outward, outward)
        )
        assert outside < 0.05 <= inside


@pytest.mark.parametrize("tasks", [7, 20])
def test_coverage_of_a_mean(tasks: int) -> None:
    """Also with heavy tails, where a t interval is at its limits."""
    chance = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        values = list(1.5 + chance.standard_t(3, tasks))
        found = paired_tests.mean_difference(values, ALL, 0)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.5 <= found.high
    assert held / 200 > 0.93


def test_a_mean_that_cannot_have_an_interval_has_none() -> None:
    """Five tasks cannot support 95 %, and differences that do not vary tell no spread."""
    for values in ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0] * 50):
        found = paired_tests.mean_difference(values, ALL, 0)
        assert (found.low, found.high) == (None, None)
        assert found.value == sum(values) / len(values)
    assert paired_tests.mean_difference([1.0, 2.0, 3.0, 4.0, 5.0], 0.9, 0).low == 1.0


def test_turning_the_sides_turns_the_signs() -> None:
    """Swapping A and B negates value and bounds, and leaves the p value."""
    chance = random.Random(6)
    groups = [[float(chance.choice([-1, 0, 0, 1, 1])) for _ in range(3)] for _ in range(20)]
    turned = [[-d for d in group] for group in groups]
    for of in (
        lambda found: paired_tests.rate_difference(found, ALL),
        lambda found: paired_tests.mean_difference(rates.task_means(found), ALL, 7),
    ):
        one, other = of(groups), of(turned)
        assert one.value == -other.value
        assert one.low == pytest.approx(-other.high)
        assert one.high == pytest.approx(-other.low)
    tests = [paired_tests.sign_flip_test(rates.task_means(g), 7) for g in (groups, turned)]
    assert tests[0] == pytest.approx(tests[1])


def test_holms_correction() -> None:
    """The usual example of the step-down method, and its definition, for any p values."""
    assert paired_tests.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    chance = random.Random(8)
    p_values = [chance.random() ** 3 for _ in range(9)]
    ranked = sorted(p_values)
    for p, found in zip(p_values, paired_tests.holm(p_values), strict=True):
        steps = [(9 - i) * q for i, q in enumerate(ranked) if q <= p]
        assert found == pytest.approx(min(1.0, max(steps)))


def test_standardized_differences() -> None:
    """d_z is the t statistic over the root of the number of tasks (Cohen 1988)."""
    values = [0.3, 1.7, -0.4, 2.2, 0.9]
    t = stats.ttest_1samp(values, 0).statistic
    assert paired_tests.standardized(values) == pytest.approx(t / math.sqrt(5))
    assert paired_tests.standardized([1.0, 1.0]) is None
    assert paired_tests.standardized([1.0]) is None


# -- power


def test_power_is_that_of_every_outcome() -> None:
    """Summed over all outcomes of ten pairs that the exact test rejects."""
    up, down, size = 0.6, 0.05, 10
    expected = sum(
        stats.multinomial.pmf((g, n, size - g - n), size, (up, down, 1 - up - down))
        for g in range(size + 1)
        for n in range(size + 1 - g)
        if paired_tests.mcnemar(g, n) <= 0.05
    )
    assert power.rate_power(size, up + down, up - down, ALL) == pytest.approx(expected)


def test_power_of_many_pairs_is_connors() -> None:
    """The sample size of Connor 1987 for a power, turned round, is about the power asked for."""
    share, difference = 0.2, 0.04
    z_a, z_b = stats.norm.ppf([0.975, 0.8])
    size = (z_a * math.sqrt(share) + z_b * math.sqrt(share - difference**2)) ** 2 / difference**2
    found = power.rate_power(math.ceil(size), share, difference, ALL)
    assert found == pytest.approx(0.8, abs=0.02)
    assert power.detectable_rate(size, share, ALL) == pytest.approx(difference, rel=0.03)


@pytest.mark.parametrize(("size", "discordant"), [(12, 0.2), (40, 0.4), (150, 0.3)])
def test_what_could_be_shown_is_shown_four_times_in_five(size: int, discordant: float) -> None:
    """Comparisons drawn with the smallest detectable difference reject in 80 % of cases."""
    least = power.detectable_rate(size, discordant, ALL)
    assert least is not None
    share = max(discordant, least)
    chance = np.random.default_rng(9)
    drawn = chance.multinomial(
        size, ((share + least) / 2, (share - least) / 2, 1 - share), size=1000
    )
    rejected = [paired_tests.mcnemar(int(g), int(n)) <= 0.05 for g, n, _ in drawn]
    assert np.mean(rejected) == pytest.approx(0.8, abs=0.04)


def test_too_few_tasks_can_show_nothing() -> None:
    """Five tasks all lost are p = 0.0625: no difference can be shown at 95 %."""
    assert power.detectable_rate(5, 0.5, ALL) is None
    assert not power.can_be_shown(5, ALL)
    assert paired_tests.mcnemar(5, 0) > 0.05
    assert power.can_be_shown(6, ALL)
    assert paired_tests.mcnemar(6, 0) < 0.05


def test_means_that_could_be_shown_are_shown_four_times_in_five() -> None:
    """Normal differences with the smallest detectable mean reject in about 80 % of cases."""
    chance = np.random.default_rng(10)
    unit = np.array([-1.0, 1.0] * 5)
    least = power.detectable_mean(list(3 * unit / unit.std(ddof=1)), ALL)
    assert least is not None
    rejected = [
        paired_tests.sign_flip_test(list(chance.normal(least, 3, 10)), 0) < 0.05 for _ in range(200)
    ]
    assert np.mean(rejected) == pytest.approx(0.8, abs=0.08)
    assert power.detectable_mean([1.0], ALL) is None
    assert power.detectable_mean([1.0] * 9, ALL) is None
