"""The trials of two sides, paired by task and replication, and what cannot be paired."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from labledger.analysis.query import query
from labledger.analysis.question import CompareOptions, Errors
from labledger.errors import InvalidInput, Problem
from labledger.records import SlotStatus, Verdict

_CELLS_SQL = """
SELECT
    asked.key, run_variant.variant_id, run_task.task_id, slot.repl_idx,
    run_task.digest, slot_commit.status, score.verdict,
    CASE WHEN score.primary_metric_name = :metric THEN score.primary_metric_value ELSE (
        SELECT metric.value FROM metric
        WHERE metric.run_no = slot.run_no AND metric.schedule_idx = slot.schedule_idx
          AND metric.metric_id = :metric AND typeof(metric.value) IN ('integer', 'real')
          AND NOT (metric.source = 'score' AND slot_commit.status = 'grade_error')
        ORDER BY metric.row_seq LIMIT 1
    ) END AS number
FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN slot ON slot.run_no = run.run_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
LEFT JOIN slot_commit
  ON slot_commit.run_no = slot.run_no AND slot_commit.schedule_idx = slot.schedule_idx
LEFT JOIN score
  ON score.run_no = slot_commit.run_no AND score.schedule_idx = slot_commit.schedule_idx
  AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'"""
_NAMES_SQL = """
SELECT DISTINCT metric.metric_id FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN metric ON metric.run_no = run.run_no AND typeof(metric.value) IN ('integer', 'real')
UNION
SELECT DISTINCT score.primary_metric_name FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN score ON score.run_no = run.run_no
ORDER BY 1"""

_LARGEST = 1e290
"""Sums of larger numbers could be more than a double holds."""

_NEVER_RUN = {SlotStatus.CANCELLED.value, SlotStatus.SKIPPED_PRUNED.value}
_NOT_THE_AGENT = {SlotStatus.INFRA_ERROR.value, SlotStatus.SETUP_ERROR.value}
_BY_THE_AGENT = {SlotStatus.AGENT_ERROR.value, SlotStatus.AGENT_TIMEOUT.value, "verdict_error"}


class Side(NamedTuple):
    """One side of a comparison: a variant of a run."""

    run_id: str
    """As it was asked for: a run, of which counts what counts, or one of its gradings."""
    variant_id: str

    def __str__(self) -> str:
        return f"{self.run_id}:{self.variant_id}"


class Place(NamedTuple):
    """What is paired: the same replication of the same task."""

    task_id: str
    repl_idx: int


class Cell(NamedTuple):
    """What the ledger holds of a slot, as far as a comparison asks."""

    digest: str
    """Of the task."""
    status: str | None
    """None where the slot is not committed."""
    verdict: str | None
    """None also where the grader failed: such a score is kept, not counted."""
    number: float | None
    """The metric's value."""


class Pair(NamedTuple):
    place: Place
    a: float
    b: float


class LeftOut(NamedTuple):
    place: Place
    side: str
    """`a`, `b` or `both`: where the reason lies."""
    reason: str


@dataclass(frozen=True, slots=True)
class Paired:
    """All places of two sides, ordered by task and replication."""

    pairs: tuple[Pair, ...]
    left_out: tuple[LeftOut, ...]


Cells = Mapping[Side, Mapping[Place, Cell]]


Holders = Mapping[str, str]
"""The run that holds the rows, by what sides call it."""


def read_cells(path: Path, sides: Collection[Side], holders: Holders, metric: str) -> Cells:
    """Every slot of some sides, read in one pass and from one state of the ledger."""
    found: dict[Side, dict[Place, Cell]] = {side: {} for side in sides}
    _, rows = query(path, _CELLS_SQL, {"metric": metric, "runs": json.dumps(dict(holders))})
    for run_id, variant_id, task_id, repl_idx, digest, status, verdict, number in rows:
        cells = found.get(Side(run_id, variant_id))
        if cells is not None:
            value = None if number is None else float(number)
            cells[Place(task_id, repl_idx)] = Cell(digest, status, verdict, value)
    return found


def require_metric(path: Path, cells: Cells, holders: Holders, metric: str) -> None:
    """Raise `InvalidInput`, naming what there is, where no slot has a number called `metric`."""
    if any(cell.number is not None for places in cells.values() for cell in places.values()):
        return
    _, rows = query(path, _NAMES_SQL, {"runs": json.dumps(dict(holders))})
    names = ["pass_rate", *(name for (name,) in rows)]
    message = f"no trial compared has a number called {metric!r}; there is {', '.join(names)}"
    raise InvalidInput("the metric to compare", [Problem("--metric", message)])


def pair(a: Mapping[Place, Cell], b: Mapping[Place, Cell], options: CompareOptions) -> Paired:
    """Pair two sides. A pair that lacks a value on either side is left out, with the reason."""
    pairs, left_out = [], []
    for place in sorted(a.keys() | b.keys()):
        one, other = a.get(place), b.get(place)
        if one and other and one.digest != other.digest:
            left_out.append(LeftOut(place, "both", "task_changed"))
            continue
        values = [_value(cell, options) for cell in (one, other)]
        reasons = [value if isinstance(value, str) else None for value in values]
        match values:
            case [float() as first, float() as second]:
                pairs.append(Pair(place, first, second))
            case _:
                left_out.append(_left_out(place, *reasons))
    return Paired(tuple(pairs), tuple(left_out))


def _left_out(place: Place, a: str | None, b: str | None) -> LeftOut:
    if a and b:
        return LeftOut(place, "both", a if a == b else f"{a}, {b}")
    return LeftOut(place, "a" if a else "b", a or b or "")


def _value(cell: Cell | None, options: CompareOptions) -> float | str:
    """A slot's number, or why it has none."""
    if cell is None:
        return "not_scheduled"
    if cell.status is None:
        return "not_committed"
    if cell.status in _NEVER_RUN:
        return cell.status
    return _passed(cell, options.errors) if options.is_rate else _number(cell)


def _passed(cell: Cell, errors: Errors) -> float | str:
    if cell.verdict not in (None, Verdict.ERROR.value):
        return float(cell.verdict == Verdict.PASS.value)
    reason = "verdict_error" if cell.verdict else str(cell.status)
    counted = errors is Errors.ALL_AS_FAILURES or (
        errors is Errors.AS_FAILURES and reason in _BY_THE_AGENT
    )
    return 0.0 if counted else reason


def _number(cell: Cell) -> float | str:
    """A metric counts whatever the verdict, but not of a trial that the laboratory spoilt."""
    if cell.status in _NOT_THE_AGENT:
        return str(cell.status)
    if cell.number is None:
        return "no_value"
    return cell.number if abs(cell.number) <= _LARGEST else "number_too_large"
