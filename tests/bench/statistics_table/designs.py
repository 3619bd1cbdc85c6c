"""The grid: which output is simulated at which numbers of tasks, replications and rates."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.statistics_table.populations import Chance

TASKS = (5, 12, 50, 200, 500)
SHAPES = ((1, "equal"), (3, "equal"), (3, "unequal"), (10, "equal"), (10, "unequal"))
"""Replications, and whether each task and side counts all of them or from one up to that number."""
RATES = (0.03, 0.1, 0.5, 0.9, 0.97)
ENDS_AND_MIDDLE = (0.03, 0.5, 0.97)

RATE_OUTPUTS = {
    "rate": (RATES, 1000),
    "pair": (RATES, 1000),
    "suite": (ENDS_AND_MIDDLE, 300),
    "family3": (ENDS_AND_MIDDLE, 400),
    "family8": (ENDS_AND_MIDDLE, 300),
    "clusters": (ENDS_AND_MIDDLE, 1000),
    "clusters-alike": (ENDS_AND_MIDDLE, 400),
    "rate-clusters": (ENDS_AND_MIDDLE, 1000),
}
"""The rates and the number of draws of each output of pass rates."""
GROWTH_OUTPUTS = {
    "more-tasks": 200,
    "more-trials": 200,
    "planned-tasks": 200,
    "planned-trials": 200,
    "plan": 300,
    "plan-effect": 300,
    "suite-plan": 300,
}
"""The number of draws of runs that are extended, and of plans."""
METRICS = ("normal", "skewed", "rare", "one-sided")
PASS_AT = (
    (3, 2, "equal"),
    (3, 3, "equal"),
    (10, 2, "equal"),
    (3, 2, "unequal"),
    (10, 2, "unequal"),
    (10, 5, "equal"),
    (10, 5, "unequal"),
    (10, 10, "equal"),
)
"""Replications, k and trials."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One design, named as `output:TASKSxREPLICATIONS:population:trials`."""

    output: str
    tasks: int
    replications: int
    population: str
    """The pass rate or the kind of metric, with `pass@K` before it if K matters."""
    trials: str
    draws: int

    @property
    def name(self) -> str:
        shape = f"{self.tasks}x{self.replications}"
        return f"{self.output}:{shape}:{self.population}:{self.trials}"

    @property
    def rate(self) -> float:
        return float(self.population)

    @property
    def is_even(self) -> bool:
        return self.trials == "equal"

    def chance(self, purpose: str = "") -> Chance:
        """Return the cell's random source, which is the same in every run."""
        return np.random.default_rng(zlib.crc32(f"{self.name}{purpose}".encode()))


def grid() -> Iterator[Cell]:
    """Yield every cell of the table, in its order."""
    yield from _of_rates()
    yield from _of_pass_at()
    yield from _of_metrics()
    yield from _of_extensions_and_plans()


def _of_rates() -> Iterator[Cell]:
    for output, (rates, draws) in RATE_OUTPUTS.items():
        for tasks in TASKS:
            for replications, trials in SHAPES:
                is_short = output.startswith(("family", "clusters-")) and trials == "unequal"
                if (output == "suite" and replications == 1) or (is_short and replications == 3):
                    continue
                for rate in rates:
                    yield Cell(output, tasks, replications, f"{rate:g}", trials, draws)


def _of_pass_at() -> Iterator[Cell]:
    for output in ("pass@", "suite-pass@"):
        for replications, k, trials in PASS_AT:
            if output == "suite-pass@" and (replications == k or trials == "unequal"):
                continue  # A task with k trials has a single estimate, and so no interval.
            for tasks in TASKS:
                for rate in ENDS_AND_MIDDLE:
                    yield Cell(f"{output}{k}", tasks, replications, f"{rate:g}", trials, 400)


def _of_metrics() -> Iterator[Cell]:
    for output in ("metric", "suite-metric"):
        for kind in METRICS:
            if output == "suite-metric" and kind == "one-sided":
                continue
            for tasks in TASKS:
                for replications, trials in SHAPES:
                    if output == "metric" or replications > 1:
                        yield Cell(output, tasks, replications, kind, trials, 300)


def _of_extensions_and_plans() -> Iterator[Cell]:
    for output, draws in GROWTH_OUTPUTS.items():
        for tasks in TASKS:
            for replications, trials in SHAPES:
                if replications == 1 and output.endswith(("-trials", "suite-plan")):
                    continue
                for rate in ENDS_AND_MIDDLE:
                    yield Cell(output, tasks, replications, f"{rate:g}", trials, draws)
