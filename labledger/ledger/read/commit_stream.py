"""Turn committed rows back into records, one slot at a time.

The lines are byte for byte those from which the commit's digest was computed. Memory grows neither
with the run nor with the events of a slot. Mirrors, exports and verification read through this
module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Protocol

from labledger.ledger.commit_rows import metric_and_event_rows, trial_rows
from labledger.ledger.database import row_sql
from labledger.ledger.database.table_rows import AttemptRow, EventRow, MetricRow, TrialRow
from labledger.records.identity import Slot, Stamp, TrialIds, slot_commit_id
from labledger.records.outcomes import SlotStatus
from labledger.records.slot_records import RECORD_KINDS, SlotRecords

_STAMP = "trial.attempt, trial.ended_at, run_variant.variant_id, run_task.task_id, slot.repl_idx"


def _stamped_sql(table: str, order: str, *column_lists: str) -> str:
    """Return SQL that reads rows of `table`, each with its slot's stamp, in record order."""
    return f"""
SELECT {table}.schedule_idx, {", ".join((_STAMP, *column_lists))}
FROM {table}
CROSS JOIN trial ON trial.run_no = {table}.run_no AND trial.schedule_idx = {table}.schedule_idx
CROSS JOIN slot ON slot.run_no = trial.run_no AND slot.schedule_idx = trial.schedule_idx
CROSS JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
CROSS JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE {table}.run_no = ? AND {table}.schedule_idx >= ? AND {table}.schedule_idx < ?
ORDER BY {table}.run_no, {table}.schedule_idx, {order}"""  # noqa: S608


def _verbatim_sql(table: str, order: str) -> str:
    """Return SQL that reads the records of `table`, which are stored as text."""
    return f"""
SELECT schedule_idx, record FROM {table}
WHERE run_no = ? AND schedule_idx >= ? AND schedule_idx < ?
ORDER BY run_no, schedule_idx, {order}"""  # noqa: S608


_SQL = {
    "predictions": _verbatim_sql("prediction", "row_seq"),
    "scores": _verbatim_sql("score", "row_seq"),
    "evidence": _verbatim_sql("evidence_record", "attempt, row_seq"),
    "trials": _stamped_sql(
        "attempt",
        "attempt.attempt",
        row_sql.columns("trial", qualified=True),
        row_sql.columns("attempt", qualified=True),
    ),
    "metrics": _stamped_sql("metric", "metric.row_seq", row_sql.columns("metric", qualified=True)),
    "events": _stamped_sql("event", "event.row_seq", row_sql.columns("event", qualified=True)),
}
_COMMITS_SQL = f"""
SELECT {row_sql.columns("slot_commit", start=1, qualified=True)}, run_variant.variant_id,
  trial.verdict, trial.run_no IS NOT NULL
FROM slot_commit
JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
LEFT JOIN trial
  ON trial.run_no = slot_commit.run_no AND trial.schedule_idx = slot_commit.schedule_idx
WHERE slot_commit.run_no = ? AND slot_commit.schedule_idx >= ? AND slot_commit.schedule_idx < ?
ORDER BY slot_commit.run_no, slot_commit.schedule_idx"""  # noqa: S608

_AFTER_LAST_SLOT = 2**62
_MANY_EVENTS = 5_000
"""Events of a slot beyond this number are read when they are iterated, and not held."""
_STAMP_END = 6
"""The number of columns before those of the table: `schedule_idx` and `_STAMP`."""


class RowSource(Protocol):
    """The part of a connection that this module uses."""

    def exec_driver_sql(self, sql: str, params: tuple[Any, ...], /) -> Iterable[Any]:
        """Return the rows of a query."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A row of `slot_commit`, and the records made from the slot's rows."""

    slot_commit_id: str
    epoch: int
    committed_at: str
    payload_digest: str
    chain_digest: str
    has_trial: bool
    """Whether there is a row of `trial`; if so, `records` contain a trial record."""
    records: SlotRecords


def commits(
    connection: RowSource,
    run_id: str,
    run_no: int,
    start: int,
    stop: int | None,
    *,
    holds_events: bool = True,
) -> Iterator[Commit]:
    """Yield the commits of a run's slots `start` to `stop` (exclusive), in order.

    Without `holds_events`, the records of very many events are read when they are iterated, which
    must be before the next commit is requested.
    """
    end = _AFTER_LAST_SLOT if stop is None else stop
    lines_by_kind: dict[str, Any] = {
        kind: _LinesInOrder(
            lines_by_slot(connection, kind, run_id, run_no, start, stop, holds_events=holds_events)
        )
        for kind in RECORD_KINDS
    }
    for row in connection.exec_driver_sql(_COMMITS_SQL, (run_no, start, end)):
        idx, commit_id, status, reason, epoch, committed_at, payload_digest, chain_digest = row[:8]
        variant_id, verdict, has_trial = row[8:]
        records = SlotRecords(
            schedule_idx=idx,
            variant_id=variant_id,
            status=SlotStatus(status),
            reason=reason,
            verdict=verdict,
            **{kind: lines.of_slot(idx) for kind, lines in lines_by_kind.items()},
        )
        yield Commit(
            commit_id, epoch, committed_at, payload_digest, chain_digest, bool(has_trial), records
        )


def lines_by_slot(
    connection: RowSource,
    kind: str,
    run_id: str,
    run_no: int,
    start: int,
    stop: int | None = None,
    *,
    holds_events: bool = False,
) -> Iterator[tuple[int, Collection[str]]]:
    """Yield (schedule_idx, lines) of one of `RECORD_KINDS` for each slot that has any.

    The lines are a tuple, unless they are very many events and these are not held.
    """
    end = _AFTER_LAST_SLOT if stop is None else stop
    result = connection.exec_driver_sql(_SQL[kind], (run_no, start, end))
    for idx, group in groupby(result, key=itemgetter(0)):
        if kind != "events":
            yield idx, _LINES[kind](run_id, list(group))
            continue
        rest = iter(group)
        first = list(islice(rest, _MANY_EVENTS))
        rows = chain(first, rest)
        if holds_events or len(first) < _MANY_EVENTS:
            yield idx, tuple(_event_lines(run_id, rows))
            continue
        many = _ManyEvents(connection, run_id, run_no, idx, rows)
        yield idx, many
        many.is_past = True


@dataclass(slots=True)
class _ManyEvents(Collection[str]):
    """The lines of a slot's events, read whenever they are iterated.

    The first iteration goes on with the rows of the query that found them, and must end before the
    next slot is requested.
    """

    connection: RowSource
    run_id: str
    run_no: int
    schedule_idx: int
    rows: Iterator[Any] | None
    is_past: bool = False

    def __iter__(self) -> Iterator[str]:
        rows, self.rows = self.rows, None
        if rows is not None and not self.is_past:
            yield from _event_lines(self.run_id, rows)
            if self.is_past:
                raise RuntimeError("the next slot was requested while events were being read")
            return
        key = (self.run_no, self.schedule_idx, self.schedule_idx + 1)
        again = self.connection.exec_driver_sql(_SQL["events"], key)
        yield from _event_lines(self.run_id, again)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, line: object) -> bool:
        return any(line == own_line for own_line in self)


class _LinesInOrder:
    """The lines of one kind of record by slot, which must be requested in slot order."""

    def __init__(self, source: Iterator[tuple[int, Collection[str]]]) -> None:
        self._source = source
        self._next = next(source, None)

    def of_slot(self, idx: int) -> Collection[str]:
        while self._next is not None and self._next[0] < idx:
            self._next = next(self._source, None)
        if self._next is None or self._next[0] != idx:
            return ()
        return self._next[1]


def _stamp(run_id: str, row: Any) -> Stamp:
    return _make_stamp(run_id, *row[:_STAMP_END])


@lru_cache(maxsize=4)
def _make_stamp(
    run_id: str, idx: int, attempt: int, ended_at: str, variant_id: str, task_id: str, repl_idx: int
) -> Stamp:
    """Return the fields that a slot's records share.

    Cached, because the kinds of a slot's records are read one after the other.
    """
    ids = TrialIds.of(run_id, Slot(idx, variant_id, task_id, repl_idx))
    return Stamp(ids, idx, slot_commit_id(run_id, idx), attempt, ended_at)


def _verbatim_lines(_run_id: str, group: list[Any]) -> tuple[str, ...]:
    return tuple(row[1] for row in group)


def _trial_lines(run_id: str, group: list[Any]) -> tuple[str, ...]:
    end = _STAMP_END + len(TrialRow._fields)
    trial = TrialRow._make(group[0][_STAMP_END:end])
    attempts = [AttemptRow._make(row[end:]) for row in group]
    return (trial_rows.trial_record(_stamp(run_id, group[0]), trial, attempts),)


def _metric_lines(run_id: str, group: list[Any]) -> tuple[str, ...]:
    metrics = [MetricRow._make(row[_STAMP_END:]) for row in group]
    return metric_and_event_rows.metric_records(_stamp(run_id, group[0]), metrics)


def _event_lines(run_id: str, rows: Iterable[Any]) -> Iterator[str]:
    rows = iter(rows)
    first = next(rows)
    events = (EventRow._make(row[_STAMP_END:]) for row in chain((first,), rows))
    return metric_and_event_rows.event_lines(_stamp(run_id, first), events)


_LINES = {
    "predictions": _verbatim_lines,
    "scores": _verbatim_lines,
    "evidence": _verbatim_lines,
    "trials": _trial_lines,
    "metrics": _metric_lines,
}
