"""Measure the gain of other valid methods where a cell of the table errs far less than allowed.

scripts/simulate-statistics gains

Sums over all outcomes where that is possible, else seeded draws. The texts of `sections` quote the
figures.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import optimize, special, stats

from bench.statistics_table import populations
from bench.statistics_table.designs import Cell
from bench.statistics_table.populations import Array
from labledger.compare import estimates
from labledger.compare.compare_options import CompareOptions
from labledger.compare.estimates import Sample
from labledger.compare.statistics import paired_rates, rates

_LEVEL = 0.05
_DRAWS = 1000
_SEED = 44


def main() -> None:
    """Print a line for each method and design."""
    for tasks in (5, 12, 50):
        print(unconditional(tasks), flush=True)
    for tasks in (5, 12, 50):
        print(blaker(tasks), flush=True)
    for treatments in (3, 8):
        print(largest_statistic(treatments), flush=True)
    for tasks in (12, 50, 500):
        print(without_clusters(tasks), flush=True)


# -- pairs: the exact unconditional test of one replication


def unconditional(tasks: int) -> str:
    """Compare the power of `compare` with an exact test over all shares of pairs that differ."""
    outcomes = [(g, n) for g in range(tasks + 1) for n in range(tasks + 1 - g)]
    gained, lost = np.array(outcomes).T
    differing = gained + lost
    score = np.where(differing > 0, np.abs(gained - lost) / np.sqrt(np.maximum(differing, 1)), 0)
    nulls = np.array([_chances(outcomes, tasks, p / 2, p / 2) for p in np.linspace(0.005, 1, 200)])
    rejects = np.zeros(len(outcomes), dtype=bool)
    for value in sorted(set(np.round(score, 9)), reverse=True):
        larger = score >= value - 1e-9
        if nulls[:, larger].sum(axis=1).max() > _LEVEL:
            break
        rejects = larger
    ours = np.array([_p(g, n, tasks) < _LEVEL for g, n in outcomes])
    effect = populations.effect_of(tasks)
    chances = _chances(outcomes, tasks, 0.05 + effect, 0.05)
    largest = [float(nulls[:, shown].sum(axis=1).max()) for shown in (ours, rejects)]
    return (
        f"{tasks} pairs, 5 % lost and {100 * (0.05 + effect):.0f} % gained: power of compare "
        f"{chances[ours].sum():.3f}, of the unconditional test {chances[rejects].sum():.3f}; "
        f"largest type I errors {largest[0]:.3f}, {largest[1]:.3f}"
    )


def _chances(outcomes: list[tuple[int, int]], tasks: int, up: float, down: float) -> Array:
    counts = [(g, n, tasks - g - n) for g, n in outcomes]
    return np.asarray(stats.multinomial.pmf(counts, tasks, (up, down, max(0.0, 1 - up - down))))


def _p(gained: int, lost: int, tasks: int) -> float:
    rest = tasks - gained - lost
    a = [[0.0]] * gained + [[1.0]] * lost + [[0.0]] * rest
    b = [[1.0]] * gained + [[0.0]] * lost + [[0.0]] * rest
    return paired_rates.of_tasks(a, b, 1 - _LEVEL).p


# -- single rates: Blaker's interval


def blaker(tasks: int) -> str:
    """Compare the mean widths of `compare`'s and Blaker's intervals of one rate."""
    usual, shorter = [], []
    for passed in range(tasks + 1):
        estimate = rates.rate([[1.0]] * passed + [[0.0]] * (tasks - passed), 1 - _LEVEL)
        assert estimate.bounds is not None
        usual.append(estimate.bounds[1] - estimate.bounds[0])
        shorter.append(_blaker_width(passed, tasks))
    chances = stats.binom.pmf(np.arange(tasks + 1), tasks, 0.5)
    mean, other = float(chances @ usual), float(chances @ shorter)
    return f"{tasks} tasks, rate .5: intervals of compare {mean:.3f} wide, Blaker's {other:.3f}"


def _blaker_width(passed: int, tasks: int) -> float:
    """Return the width of the rates that Blaker's test (2000) accepts."""
    grid = np.linspace(0, 1, 4001)
    counts = np.arange(tasks + 1)[:, np.newaxis]
    tails = np.minimum(
        stats.binom.cdf(counts, tasks, grid), stats.binom.sf(counts - 1, tasks, grid)
    )
    chances = stats.binom.pmf(counts, tasks, grid)
    accepted = grid[(chances * (tails <= tails[passed] * (1 + 1e-9))).sum(axis=0) > _LEVEL]
    return float(accepted.max() - accepted.min())


# -- families: the largest statistic


def largest_statistic(treatments: int) -> str:
    """Compare the quantiles of Bonferroni and of the largest correlated statistic (Dunnett)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()

    def beyond(quantile: float) -> float:
        inside = special.ndtr((quantile - nodes * math.sqrt(0.5)) / math.sqrt(0.5))
        inside -= special.ndtr((-quantile - nodes * math.sqrt(0.5)) / math.sqrt(0.5))
        return float(1 - weights @ inside**treatments) - _LEVEL

    joint = optimize.brentq(beyond, 1.5, 4)
    usual = -float(special.ndtri(_LEVEL / treatments / 2))
    gain = float(special.ndtr(usual + special.ndtri(0.8) - joint)) - 0.8
    return (
        f"{treatments} treatments: quantile of Bonferroni {usual:.3f}, of the largest statistic "
        f"{joint:.3f}; a power of .80 becomes {0.8 + gain:.3f}"
    )


# -- clusters that do not matter


def without_clusters(tasks: int) -> str:
    """Compare the power over clusters with that over tasks, if clusters do not matter."""
    cell = Cell("clusters-alike", tasks, 1, "0.5", "equal", _DRAWS)
    chance, names = np.random.default_rng(_SEED), populations.cluster_names(tasks)
    shown = [0, 0]
    for _ in range(_DRAWS):
        drawn = populations.cluster_rates(chance, cell.rate, names, alike=True)
        moved = populations.sides(*drawn, cell.rate, populations.effect_of(tasks))
        a, b = (populations.trials(chance, side, 1, is_even=True) for side in moved)
        clustered = Sample(a, b, names.astype(str).tolist(), CompareOptions(), 1)
        for number, sample in enumerate((clustered, replace(clustered, clusters=None))):
            result = estimates.inference(sample)
            shown[number] += result is not None and result.p < _LEVEL
    of_clusters, of_tasks = (count / _DRAWS for count in shown)
    return f"{tasks} tasks: power over clusters {of_clusters:.3f}, over tasks {of_tasks:.3f}"
