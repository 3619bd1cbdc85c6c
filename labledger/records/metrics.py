"""A metric: a named number or text of a trial."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    metric_id: str
    source: str
    """`result`, `events`, `score` or `runner`."""
    value: float | int | str
