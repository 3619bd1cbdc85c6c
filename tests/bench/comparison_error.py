"""How often the tests for two pass rates err, and their power.

    PYTHONPATH=tests python -m bench.comparison_error
    PYTHONPATH=tests python -m bench.comparison_error replications

The first prints the largest type I error and the mean power of several tests, from all outcomes of
one replication. The second draws 10,000 runs of each design without a difference (five minutes) and
prints how often `compare` rejects at 5 %.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from labledger.compare.statistics import paired_rates

SIZES = (10, 15, 20, 30, 50, 100, 200)
LEVELS = (0.05, 0.0125, 0.0025)
SHARES = np.linspace(0.02, 1, 50)
ALTERNATIVES = ((0.4, 0.1), (0.25, 0.05), (0.15, 0.05))

Array = np.ndarray[Any, Any]


def main() -> None:
    """Print one of the two tables."""
    if sys.argv[1:] == ["replications"]:
        print_replications()
    else:
        print_one_replication()


def print_one_replication() -> None:
    """Print a line for each level and number of tasks."""
    for level in LEVELS:
        for size in SIZES:
            gained, lost = _outcomes(size)
            cells = []
            for name, rejected in _tests(gained, lost, size, level).items():
                errors = (_chances(gained, lost, size, s / 2, s / 2)[rejected] for s in SHARES)
                error = max(chances.sum() for chances in errors)
                powers = [_chances(gained, lost, size, *a)[rejected].sum() for a in ALTERNATIVES]
                cells.append(f"{name} {error / level:.2f} {np.mean(powers):.3f}")
            print(f"level {level:<7} tasks {size:<4}", " | ".join(cells), flush=True)


def _outcomes(size: int) -> tuple[Array, Array]:
    """Return how many tasks only B and only A passed, in each possible outcome."""
    gained, lost = np.meshgrid(np.arange(size + 1), np.arange(size + 1), indexing="ij")
    possible = gained + lost <= size
    return gained[possible], lost[possible]


def _tests(gained: Array, lost: Array, size: int, level: float) -> Mapping[str, Array]:
    """Return the outcomes that each test rejects."""
    differing, fewer = gained + lost, np.minimum(gained, lost)
    z = np.abs(gained - lost) / np.sqrt(np.maximum(differing, 1))
    critical = special.ndtri(1 - level / 2)
    score = z * np.sqrt((size - 1) / size) > critical
    twice = 2 * stats.binom.cdf(fewer, differing, 0.5)
    middle = np.where(gained == lost, 1, twice - stats.binom.pmf(fewer, differing, 0.5))
    return {
        "compare": score & (np.where(2 * differing > size, twice, middle) < level),
        "score": score,
        "Tango": z > critical,
        "mid-p": middle < level,
        "exact": np.minimum(1, twice) < level,
    }


def _chances(gained: Array, lost: Array, size: int, up: float, down: float) -> Array:
    rest = size - gained - lost
    ways = special.gammaln([size + 1]) - special.gammaln(gained + 1) - special.gammaln(lost + 1)
    ways = ways - special.gammaln(rest + 1)
    return np.asarray(
        np.exp(ways + gained * np.log(up) + lost * np.log(down) + rest * np.log1p(-up - down))
    )


# -- replications and clusters


DRAWS = 10_000
SEED = 9

Probabilities = Callable[[np.random.Generator, int], tuple[Array, Array]]
"""Draw the pass probabilities of some tasks, of A and of B."""


def equal_tasks(chance: np.random.Generator, tasks: int) -> tuple[Array, Array]:
    """Every task passes half of the time."""
    return np.full(tasks, 0.5), np.full(tasks, 0.5)


def shared_difficulty(shape: float) -> Probabilities:
    """Tasks differ in difficulty by a beta distribution. A and B are the same agent."""

    def draw(chance: np.random.Generator, tasks: int) -> tuple[Array, Array]:
        difficulty = chance.beta(shape, shape, tasks)
        return difficulty, difficulty

    return draw


def own_difficulty(shape: float) -> Probabilities:
    """A and B find different tasks difficult, but have the same mean."""

    def draw(chance: np.random.Generator, tasks: int) -> tuple[Array, Array]:
        return chance.beta(shape, shape, tasks), chance.beta(shape, shape, tasks)

    return draw


def clustered(size: int) -> Probabilities:
    """A and B are each better in whole clusters of `size` tasks, equally often."""

    def draw(chance: np.random.Generator, tasks: int) -> tuple[Array, Array]:
        shared = np.repeat(chance.normal(0, 1, tasks // size), size)
        return special.ndtr(shared), special.ndtr(-shared)

    return draw


@dataclass(frozen=True, slots=True)
class Design:
    """A run in which A and B do not differ."""

    name: str
    tasks: int
    replications: int
    probabilities: Probabilities
    cluster_size: int = 1

    def false_alarms(self, draws: int, seed: int = SEED) -> float:
        """The share of `draws` runs in which `compare` would show a difference (level 5 %)."""
        chance = np.random.default_rng(seed)
        clusters = None
        if self.cluster_size > 1:
            clusters = [str(task // self.cluster_size) for task in range(self.tasks)]
        rejected = 0
        for _ in range(draws):
            a, b = (
                (chance.random((self.tasks, self.replications)) < rates[:, np.newaxis])
                .astype(float)
                .tolist()
                for rates in self.probabilities(chance, self.tasks)
            )
            rejected += paired_rates.of_tasks(a, b, 0.95, clusters).p < 0.05
        return rejected / draws


def designs() -> Iterator[Design]:
    """Return the models of the table."""
    kinds: dict[str, Probabilities] = {"equal tasks": equal_tasks}
    for shape in (0.5, 1, 5):
        kinds[f"shared beta({shape:g}, {shape:g})"] = shared_difficulty(shape)
        kinds[f"own beta({shape:g}, {shape:g})"] = own_difficulty(shape)
    for name, probabilities in kinds.items():
        for tasks in (20, 50, 100):
            for replications in (1, 2, 3, 5):
                yield Design(name, tasks, replications, probabilities)
    for clusters in (10, 30):
        for replications in (1, 3):
            name = f"{clusters} clusters of 10"
            yield Design(name, 10 * clusters, replications, clustered(10), cluster_size=10)


def print_replications() -> None:
    """Print a line for each design: how often a true null is rejected at the level 5 %."""
    for design in designs():
        share = design.false_alarms(DRAWS)
        print(f"{design.name:<18} tasks {design.tasks:<4}", end=" ")
        print(f"replications {design.replications} false alarms {share:.4f}", flush=True)


if __name__ == "__main__":
    main()
