"""Whether a figure is worse than nominal, or far better."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from scipy import special

from bench.statistics_table.cells import Result

TOLERANCE = 0.01
"""One point, in addition to the simulation error."""
_BY_CHANCE = 0.0228
"""The chance to be beyond two standard errors on one side."""
_FAR = 0.5
"""A share of errors below this part of the nominal share is far better."""
_UNSEEN = 3
"""An event with this expected count does not occur at all in one sample of twenty."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A share that a cell counted, with its nominal limit."""

    name: str
    hits: int
    draws: int

    @property
    def share(self) -> float:
        return self.hits / self.draws

    @property
    def error(self) -> float | None:
        """The nominal share of errors, or None if the figure promises nothing."""
        kind = self.name.partition("_")[0]
        return {"coverage": 0.05, "type": 0.05, "gate": 0.025, "planned": 0.2}.get(kind)

    @property
    def errors(self) -> float:
        """The share of errors, such as intervals that miss and plans that fail."""
        is_promise = self.name.startswith(("coverage", "planned"))
        return 1 - self.share if is_promise else self.share

    @property
    def is_worse(self) -> bool:
        """Whether so many errors are unlikely by chance at one point above the nominal share.

        `_BY_CHANCE` corresponds to two standard errors.
        """
        if self.error is None:
            return False
        errors = self.hits if self.errors == self.share else self.draws - self.hits
        tail = special.bdtrc(errors - 1, self.draws, self.error + TOLERANCE) if errors else 1.0
        return float(tail) < _BY_CHANCE

    @property
    def is_far_better(self) -> bool:
        """Whether it errs less than half as often as allowed, as far as the draws show."""
        seen = self.errors * self.draws
        largest = seen + max(_UNSEEN, 2 * math.sqrt(seen))
        return self.error is not None and largest < _FAR * self.error * self.draws


def figures(result: Result) -> Iterator[Figure]:
    """Yield the figures of a cell."""
    for name, (hits, draws) in result.counts.items():
        yield Figure(name, hits, draws)
