"""Counts of how often something happened in the draws of a cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from labledger.compare.statistics.samples import Estimate

Counts = dict[str, tuple[int, int]]
"""For each figure, how often it happened, and in how many draws."""


@dataclass(slots=True)
class Tally:
    """The counts of one cell."""

    _hits: dict[str, int] = field(default_factory=dict)
    _draws: dict[str, int] = field(default_factory=dict)

    def add(self, figure: str, happened: bool) -> None:
        self._hits[figure] = self._hits.get(figure, 0) + bool(happened)
        self._draws[figure] = self._draws.get(figure, 0) + 1

    def add_interval(self, figure: str, estimate: Estimate | None, truth: float) -> None:
        """Count whether an interval holds the truth; without bounds there is nothing to count."""
        if estimate is not None and estimate.bounds is not None:
            low, high = estimate.bounds
            self.add(figure, low - 1e-9 <= truth <= high + 1e-9)

    @property
    def counts(self) -> Counts:
        return dict(self._items())

    def _items(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for figure, draws in self._draws.items():
            yield figure, (self._hits[figure], draws)
