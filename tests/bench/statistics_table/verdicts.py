"""Whether a figure is worse than nominal, or better by far."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bench.statistics_table.cells import Result

TOLERANCE = 0.01
"""One point, in addition to twice the simulation error."""
_FAR = 0.5
"""A share of errors that is less than this part of the nominal one is better by far."""
_UNSEEN = 3
"""What happens so often in the mean is not seen at all in one sample of twenty."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A share that a cell counted, with what it should be at most, or at least."""

    name: str
    hits: int
    draws: int

    @property
    def share(self) -> float:
        return self.hits / self.draws

    @property
    def error(self) -> float | None:
        """The nominal share of errors; None where a figure promises nothing."""
        kind = self.name.partition("_")[0]
        return {"coverage": 0.05, "type": 0.05, "gate": 0.025, "planned": 0.2}.get(kind)

    @property
    def errors(self) -> float:
        """The share of errors: of intervals that miss, and of plans that fail."""
        is_promise = self.name.startswith(("coverage", "planned"))
        return 1 - self.share if is_promise else self.share

    @property
    def simulation_error(self) -> float:
        """The standard error of the share if the true one is nominal."""
        nominal = self.error or 0.5
        return math.sqrt(nominal * (1 - nominal) / self.draws)

    @property
    def excess(self) -> float:
        """How much worse than nominal it is beyond twice its simulation error; below 0 if not."""
        if self.error is None:
            return -1.0
        return self.errors - self.error - 2 * self.simulation_error

    @property
    def is_worse(self) -> bool:
        return self.excess > TOLERANCE

    @property
    def is_far_better(self) -> bool:
        """Whether it errs less than half as often as it may, as far as the draws tell."""
        seen = self.errors * self.draws
        largest = seen + max(_UNSEEN, 2 * math.sqrt(seen))
        return self.error is not None and largest < _FAR * self.error * self.draws


def figures(result: Result) -> Iterator[Figure]:
    """Yield the figures of a cell."""
    for name, (hits, draws) in result.counts.items():
        yield Figure(name, hits, draws)
