"""How often the intervals and tests of `compare` err, by simulation.

    scripts/simulate-statistics                   all parts, about a quarter of an hour
    scripts/simulate-statistics clusters          one of them
    scripts/simulate-statistics table             the cells of the reference page that are missing
    scripts/simulate-statistics gains             what other methods would gain in some of them

Each part prints lines of a table, and its function says what it simulates. All draws are seeded.
docs/explanation/statistics.md has the figures.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from bench.statistics_table import __main__ as table
from bench.statistics_table import gains
from labledger.compare.statistics import (
    paired_means,
    paired_rates,
    planned_power,
    rates,
    sign_flip_test,
    variance_components,
)
from labledger.compare.statistics.samples import Estimate, Inference
from labledger.compare.statistics.sign_flip_test import Units

Array = np.ndarray[Any, Any]
Chance = np.random.Generator
LEVEL = 0.05
SEED = 18


def main() -> None:
    """Print the named parts, or all except `table`, which is for the reference page."""
    if sys.argv[1:2] == ["table"]:
        return table.main(sys.argv[2:])
    if sys.argv[1:2] == ["gains"]:
        return gains.main()
    parts = {
        "suites": suites,
        "outcomes": outcomes,
        "clusters": clusters,
        "means": means,
        "looks": looks,
        "sizes": sizes,
    }
    parser = argparse.ArgumentParser(prog="scripts/simulate-statistics")
    parser.add_argument("parts", nargs="*", choices=[*parts, []], metavar="PART")
    for name in parser.parse_args().parts or parts:
        print(f"-- {name}", flush=True)
        parts[name]()
    return None


# -- suites


SUITE_DRAWS = 1000
TRIALS = {
    "1 or 10 a side and task": (1, 10),
    "1, 2, 3 or 10": (1, 2, 3, 10),
    "2 or 3": (2, 3),
}


def suites() -> None:
    """Print how often a suite without a mean difference shows one."""
    for tasks in (4, 5, 8, 20, 50):
        for name, choice in TRIALS.items():
            for kind in ("equal rates", "cancel", "one side certain"):
                chance = np.random.default_rng(SEED)
                shown = 0
                for _ in range(SUITE_DRAWS):
                    a, b = _null_rates(chance, kind, tasks)
                    counts = chance.choice(choice, (2, tasks))
                    sides = [
                        [
                            (chance.random(n) < p).astype(float).tolist()
                            for n, p in zip(*side, strict=True)
                        ]
                        for side in zip(counts.tolist(), (a, b), strict=True)
                    ]
                    if np.max(counts) > 1:
                        shown += paired_rates.of_suite(sides[0], sides[1], 1 - LEVEL).p < LEVEL
                print(f"{tasks} tasks, {name}, {kind}: {shown / SUITE_DRAWS:.3f}", flush=True)


def _null_rates(chance: Chance, kind: str, tasks: int) -> tuple[Array, Array]:
    """Rates of two sides whose means agree."""
    signs = np.where(np.arange(tasks) % 2, 1.0, -1.0)
    if tasks % 2:
        signs[-1] = 0.0
    if kind == "cancel":
        return 0.5 - 0.45 * signs, 0.5 + 0.45 * signs
    if kind == "one side certain":
        return np.full(tasks, 0.5), 0.5 + 0.5 * signs
    rates = chance.beta(0.5, 0.5, tasks)
    return rates, rates


# -- outcomes


OUTCOME_DRAWS = 1000


def outcomes() -> None:
    """Print how often intervals of single variants hold the rate, pass@k and pass^k."""
    for spread in (0.35, 0.7, 1.0):
        sizes = CLUSTERS["SWE-bench's 12 repositories"]
        names = np.repeat(np.arange(len(sizes)), sizes)
        chance = np.random.default_rng(SEED)
        truth = float(special.expit(chance.normal(0.6, spread, 1_000_000)).mean())
        held = np.zeros(2)
        for _ in range(OUTCOME_DRAWS):
            level = chance.normal(0.6, spread, len(sizes))[names]
            groups = _trials(chance, special.expit(level), 1)
            both = (None, names.astype(str).tolist())
            held += [_holds(rates.pooled_rate(groups, 1 - LEVEL, c), truth) for c in both]
        print(
            f"SWE-bench's 12 repositories, deviation {spread}: intervals of tasks hold the rate "
            f"{held[0] / OUTCOME_DRAWS:.3f}, of clusters {held[1] / OUTCOME_DRAWS:.3f}",
            flush=True,
        )
    for tasks in (12, 50):
        for trials, k in ((10, 5), (10, 2), (3, 2)):
            for rate in (0.03, 0.1, 0.5, 0.9, 0.97):
                _print_pass_at(tasks, trials, k, rate)


def _print_pass_at(tasks: int, trials: int, k: int, rate: float) -> None:
    chance = np.random.default_rng(SEED)
    population = chance.beta(3 * rate, 3 * (1 - rate), 200_000)
    truths = float(np.mean(1 - (1 - population) ** k)), float(np.mean(population**k))
    held = np.zeros(2)
    for _ in range(OUTCOME_DRAWS):
        groups = _trials(chance, chance.choice(population, tasks), trials)
        estimated = rates.pass_at(groups, k, 1 - LEVEL)
        assert estimated.any is not None
        assert estimated.all is not None
        held += [_holds(estimated.any, truths[0]), _holds(estimated.all, truths[1])]
    print(
        f"{tasks} tasks, {trials} trials, rate {rate}: pass@{k} held "
        f"{held[0] / OUTCOME_DRAWS:.3f}, pass^{k} held {held[1] / OUTCOME_DRAWS:.3f}",
        flush=True,
    )


# -- clusters


CLUSTERS = {
    "SWE-bench's 12 repositories": (231, 75, 44, 34, 32, 22, 22, 19, 10, 8, 2, 1),
    "SWE-bench's, without the largest": (75, 44, 34, 32, 22, 22, 19, 10, 8, 2, 1),
    "one of 200 and nine of 5": (200, *[5] * 9),
    "one of 50 and nine of 10": (50, *[10] * 9),
    "30 of 1 to 30": tuple(range(1, 31)),
    "10 of 10": (10,) * 10,
    "30 of 10": (10,) * 30,
}
CLUSTER_DRAWS = 2000


def clusters() -> None:
    """Print how often a true null is rejected."""
    for name, sizes in CLUSTERS.items():
        names = np.repeat(np.arange(len(sizes)), sizes)
        for kind, together in (("tasks of a cluster alike", 1.0), ("independent tasks", 0.0)):
            chance = np.random.default_rng(SEED)
            rejected = np.zeros(2)
            for _ in range(CLUSTER_DRAWS):
                shared = together * chance.normal(0, 1, len(sizes))[names]
                a, b = (
                    chance.random(len(names)) < special.ndtr(side) for side in (shared, -shared)
                )
                in_cluster = names.astype(str).tolist()
                groups = [side.astype(float)[:, np.newaxis].tolist() for side in (a, b)]
                rate = paired_rates.of_tasks(groups[0], groups[1], 1 - LEVEL, in_cluster)
                shift = together * chance.normal(0, 1, len(sizes))[names]
                numbers = [chance.normal(0, 1, len(names)), shift + chance.normal(0, 1, len(names))]
                values = [side[:, np.newaxis].tolist() for side in numbers]
                metric = paired_means.of_tasks(values[0], values[1], 1 - LEVEL, in_cluster)
                rejected += [rate.p < LEVEL, metric.p < LEVEL]
            shares = rejected / CLUSTER_DRAWS
            print(
                f"{name:<34} {kind:<26} pass rates {shares[0]:.3f}, metric {shares[1]:.3f}",
                flush=True,
            )


# -- means


def normal(chance: Chance, tasks: int) -> Array:
    return chance.normal(0, 1, tasks)


def lognormal(sigma: float) -> Callable[[Chance, int], Array]:
    return lambda chance, tasks: chance.lognormal(0, sigma, tasks) - math.exp(sigma**2 / 2)


def both_lognormal(chance: Chance, tasks: int) -> Array:
    a, b = chance.lognormal(0, 1, (2, tasks))
    return np.asarray(b - a)


def rare_beside_noise(chance: Chance, tasks: int) -> Array:
    return 100.0 * (chance.random(tasks) < 0.05) + chance.normal(-5, 1, tasks)


MEANS: dict[str, Callable[[Chance, int], Array]] = {
    "normal": normal,
    "both sides lognormal": both_lognormal,
    "lognormal, 1": lognormal(1.0),
    "lognormal, 1.5": lognormal(1.5),
    "5 % by 100, noise": rare_beside_noise,
}
"""Differences of tasks whose mean is 0."""
MEAN_TASKS = (5, 12, 20, 30, 50, 200, 500)
MEAN_DRAWS = 1000
RESAMPLES = 400
EFFECT = 2.8
"""In standard errors; a t test of many normal differences shows it 80 % of the time."""


def means() -> None:
    """Print how often each candidate shows a mean that differs from 0, without and with one."""
    print(f"{'':<34}" + " ".join(f"{name:>12}" for name in CANDIDATES) + "  no interval")
    for name, draw in MEANS.items():
        for tasks in MEAN_TASKS:
            spread = float(draw(np.random.default_rng(SEED), 200_000).std())
            shifts = (0.0, EFFECT * spread / math.sqrt(tasks))
            for shift in shifts[: 2 if name in ("normal", "both sides lognormal") else 1]:
                _print_candidates(f"{name}{' + effect' if shift else ''}", draw, tasks, shift)


def _print_candidates(
    name: str, draw: Callable[[Chance, int], Array], tasks: int, shift: float
) -> None:
    chance = np.random.default_rng(SEED)
    shown, missing = dict.fromkeys(CANDIDATES, 0), 0
    for _ in range(MEAN_DRAWS):
        values = draw(chance, tasks) + shift
        for candidate, shows in CANDIDATES.items():
            shown[candidate] += shows(values, chance)
        missing += _of_tasks(values).estimate.bounds is None
    shares = " ".join(f"{count / MEAN_DRAWS:>12.3f}" for count in shown.values())
    print(f"{name:<30}{tasks:>4}{shares} {missing / MEAN_DRAWS:>12.3f}", flush=True)


def _of_tasks(values: Array) -> Inference:
    return paired_means.of_tasks([[0.0]] * len(values), values[:, np.newaxis].tolist(), 1 - LEVEL)


def corrected(values: Array, _: Chance) -> bool:
    """The test of `compare`: sign flips, corrected for skewness."""
    return _of_tasks(values).p < LEVEL


def sign_flips(values: Array, _: Chance) -> bool:
    return sign_flip_test.permutation_p(values)[0] < LEVEL


def johnson(values: Array, _: Chance) -> bool:
    """The modified t test (Johnson 1978, JASA 73:536–544)."""
    count, mean, error = _moments(values)
    third = float(((values - mean) ** 3).mean()) / (error**2 * count)
    t = (mean + third / (6 * count) + third * mean**2 / (3 * error**2 * count)) / error
    return abs(t) > _t_quantile(count)


def hall(values: Array, _: Chance) -> bool:
    """The monotone cubic transform of t (Hall 1992, JRSS B 54:221–228)."""
    count, mean, error = _moments(values)
    skewness = float(((values - mean) ** 3).mean()) / (error * math.sqrt(count)) ** 3
    s = mean / (error * math.sqrt(count))
    t = s + skewness * s**2 / 3 + skewness**2 * s**3 / 27 + skewness / (6 * count)
    return abs(t) * math.sqrt(count) > _t_quantile(count)


def bootstrap_t(values: Array, chance: Chance) -> bool:
    """The studentized bootstrap (Efron and Tibshirani 1993, chapter 12)."""
    count, mean, error = _moments(values)
    drawn = values[chance.integers(0, count, (RESAMPLES, count))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (drawn.mean(axis=1) - mean) / errors
    low, high = np.quantile(t[np.isfinite(t)], [LEVEL / 2, 1 - LEVEL / 2])
    return not mean - high * error <= 0 <= mean - low * error


def bca(values: Array, chance: Chance) -> bool:
    """The bias-corrected, accelerated bootstrap (Efron and Tibshirani 1993, chapter 14)."""
    count, mean, _ = _moments(values)
    drawn = values[chance.integers(0, count, (RESAMPLES, count))].mean(axis=1)
    away = values - mean
    acceleration = float((away**3).sum()) / (6 * float((away**2).sum()) ** 1.5)
    bias = special.ndtri(np.clip((drawn < mean).mean(), 1 / RESAMPLES, 1 - 1 / RESAMPLES))
    z = bias + special.ndtri([LEVEL / 2, 1 - LEVEL / 2])
    low, high = np.quantile(drawn, special.ndtr(bias + z / (1 - acceleration * z)))
    return not low <= 0 <= high


def _moments(values: Array) -> tuple[int, float, float]:
    """Return the number of values, their mean and its standard error."""
    count = len(values)
    return count, float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count)


def _t_quantile(count: int) -> float:
    return float(special.stdtrit(count - 1, 1 - LEVEL / 2))


CANDIDATES: dict[str, Callable[[Array, Chance], bool]] = {
    "corrected": corrected,
    "sign flips": sign_flips,
    "Johnson": johnson,
    "Hall": hall,
    "bootstrap-t": bootstrap_t,
    "BCa": bca,
}
"""Whether each shows that the mean is not 0."""


def _holds(estimate: Estimate, truth: float) -> bool:
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.low <= truth <= estimate.high


# -- looks


LOOK_DRAWS = 4000


def looks() -> None:
    """Print how often a difference is shown at any look, with and without a true one."""
    every = range(10, 201, 10)
    for gained, lost in (
        (0.05, 0.05),
        (0.2, 0.2),
        (0.5, 0.5),
        (0.2, 0.05),
        (0.25, 0.05),
        (0.3, 0.05),
    ):
        chance = np.random.default_rng(SEED)
        differs = chance.random((LOOK_DRAWS, 200))
        signs = np.where(differs < gained, 1, np.where(differs < gained + lost, -1, 0))
        ups, downs = (np.cumsum(signs == sign, axis=1) for sign in (1, -1))
        fixed = np.array([_fixed(ups[:, n - 1], downs[:, n - 1], n) for n in every])
        anytime = np.array([_anytime(ups[:, n - 1], downs[:, n - 1]) for n in every])
        with_final = anytime[:-1].any(axis=0) | fixed[-1]
        extended = _fixed(ups[:, 49], downs[:, 49], 50) | anytime[[9, 14, 19]].any(axis=0)
        shown = anytime.any(axis=0)
        first = np.array(every)[anytime.argmax(axis=0)[shown]] if shown.any() else np.array([0])
        print(
            f"gained {gained:.0%}, lost {lost:.0%}: fixed-sample test at 20 looks "
            f"{fixed.any(axis=0).mean():.3f}, confidence sequence at 20 looks {shown.mean():.3f} "
            f"(median at {np.median(first):.0f} tasks). Sequence at 19 looks and test at "
            f"the end {with_final.mean():.3f}, test alone at the end {fixed[-1].mean():.3f}. "
            f"Finished with 50 tasks, extended to 100, 150, 200: {extended.mean():.3f}",
            flush=True,
        )
    _looks_at_clusters()


def _fixed(ups: Array, downs: Array, tasks: int) -> Array:
    """Return which outcomes the tests of `compare` reject."""
    pairs, index = np.unique(np.stack([ups, downs], axis=1), axis=0, return_inverse=True)
    rejected = [_p_of(int(up), int(down), tasks) < LEVEL for up, down in pairs]
    return np.array(rejected)[index]


def _p_of(up: int, down: int, tasks: int) -> float:
    rest = tasks - up - down
    a = [(0.0,)] * up + [(1.0,)] * (down + rest)
    b = [(1.0,)] * up + [(0.0,)] * down + [(1.0,)] * rest
    return paired_rates.of_tasks(a, b, 1 - LEVEL).p


def _anytime(ups: Array, downs: Array) -> Array:
    pairs, index = np.unique(np.stack([ups, downs], axis=1), axis=0, return_inverse=True)
    rejected = []
    for up, down in pairs.tolist():
        values = np.array([1.0] * up + [-1.0] * down or [0.0])
        p = paired_means.no_difference(Units(values, np.ones(len(values))))
        rejected.append(p < LEVEL)
    return np.array(rejected)[index]


def _looks_at_clusters() -> None:
    """Print how often clusters that arrive one by one show a false difference."""
    for name in ("SWE-bench's 12 repositories", "30 of 1 to 30"):
        sizes = CLUSTERS[name]
        names = np.repeat(np.arange(len(sizes)), sizes)
        chance = np.random.default_rng(SEED)
        shown = held = 0
        draws = 1000
        for _ in range(draws):
            order = chance.permutation(len(sizes))
            shared = np.clip(chance.normal(0.0, 0.4, len(sizes))[names], -1, 1)
            differences = shared * (chance.random(len(names)) < 0.8)
            alarms = missed = False
            for count in range(2, len(sizes) + 1):
                known = np.isin(names, order[:count])
                look = paired_means.at_every_look(
                    differences[known].tolist(),
                    1 - LEVEL,
                    names[known].astype(str).tolist(),
                    max(sizes),
                )
                alarms |= look.p < LEVEL
                missed |= not _holds(look.estimate, 0.0)
            shown, held = shown + alarms, held + (not missed)
        print(
            f"{name}: a false difference at any look {shown / draws:.3f}, intervals of all looks "
            f"hold the truth {held / draws:.3f}",
            flush=True,
        )


# -- sizes


def sizes() -> None:
    """Print the power at a suite's stated detectable size, and at sizes planned from a pilot."""
    chance = np.random.default_rng(SEED)
    for rate in (0.5, 0.9, 0.98, 1.0):
        for tasks, replications in ((20, 3), (50, 2)):
            detectable = [_suite_detectable(chance, rate, tasks, replications) for _ in range(100)]
            least = [size for size in detectable if size is not None]
            shown = [_suite_shows(chance, rate, tasks, replications, size) for size in least * 4]
            print(
                f"suite of {tasks} tasks, {replications} replications, {rate:.0%} pass: could show "
                f"{100 * np.mean(least):.1f} points; of differences as large as each run says, "
                f"shown {np.mean(shown):.2f}",
                flush=True,
            )
    for rate, spread, detect in (
        (0.95, 5, 0.05),
        (0.98, 5, 0.05),
        (0.9, 3, 0.1),
        (0.5, 2, 0.1),
        (0.03, 5, 0.1),
    ):
        for replications in (1, 2):
            means = [
                np.mean(
                    [
                        _planned(chance, rate, spread, detect, replications, has_effect=has_effect)
                        for _ in range(200)
                    ]
                )
                for has_effect in (False, True)
            ]
            print(
                f"pilot of 30 tasks, {replications} replications, {rate:.0%} pass, to detect "
                f"{100 * detect:.0f} points: power of the tasks planned from a pilot without that "
                f"difference {means[0]:.2f}, with it {means[1]:.2f}",
                flush=True,
            )


def _trials(chance: Chance, rates: Array, replications: int) -> list[list[float]]:
    drawn = chance.random((len(rates), replications)) < rates[:, np.newaxis]
    values: list[list[float]] = drawn.astype(float).tolist()
    return values


def _suite_detectable(chance: Chance, rate: float, tasks: int, replications: int) -> float | None:
    a, b = (_trials(chance, np.full(tasks, rate), replications) for _ in range(2))
    return planned_power.suite_detectable(a, b, 1 - LEVEL)


def _suite_shows(
    chance: Chance, rate: float, tasks: int, replications: int, difference: float
) -> bool:
    a = _trials(chance, np.full(tasks, rate), replications)
    b = _trials(chance, np.full(tasks, max(0.0, rate - difference)), replications)
    return paired_rates.of_suite(a, b, 1 - LEVEL).p < LEVEL


def _moved(rates: Array, mean: float, difference: float) -> Array:
    """Pass probabilities that are on average lower, or near 0 higher, by a difference."""
    if mean >= 0.5:
        return rates * (1 - difference / mean)
    return rates + (1 - rates) * difference / (1 - mean)


def _planned(
    chance: Chance,
    mean: float,
    spread: float,
    difference: float,
    replications: int,
    *,
    has_effect: bool,
) -> float:
    """Return the power, with one replication, of the tasks that a pilot plans for .80."""
    population = chance.beta(mean * spread, (1 - mean) * spread, 20_000)
    moved = _moved(population, mean, difference)
    differing = float(np.mean(population * (1 - moved) + moved * (1 - population)))
    rates = population[:30]
    sides = (rates, moved[:30] if has_effect else rates)
    trials = [_trials(chance, side, replications) for side in sides]
    names = [str(number) for number in range(30)]
    known = variance_components.of_pairs([variance_components.PairedTasks(names, *trials)])
    assert known is not None
    variation = planned_power.Variation(
        known.between, known.within, is_rate=True, rate=known.baseline
    )
    unmoved = variation.without(known.explained).with_half_a_pair(30)
    tasks = planned_power.tasks_needed(unmoved, 1, difference, 1 - LEVEL)
    assert tasks is not None
    return planned_power.rate_power(tasks, differing, difference, 1 - LEVEL)


if __name__ == "__main__":
    main()
