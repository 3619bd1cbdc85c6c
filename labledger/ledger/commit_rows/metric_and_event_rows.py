"""The rows of `metric` and `event`, and their records `metric_record_v1` and `event_record_v1`.

A slot may have many of them, so that their records are put together as text; the parts that the
records of a slot share are made once. The events of a file are never all in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from labledger.ledger.database.table_rows import EventRow, MetricRow
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import AttemptResult
from labledger.records.events import EventFile
from labledger.records.identity import Stamp


def metric_rows(run_no: int, result: AttemptResult) -> list[MetricRow]:
    """Return the rows of `metric` for a result, in order."""
    return [
        # SQLite has no booleans: true would be read back as 1, which is another JSON value.
        MetricRow(
            *(run_no, result.schedule_idx, seq, metric.metric_id, metric.source),
            int(metric.value) if isinstance(metric.value, bool) else metric.value,
        )
        for seq, metric in enumerate(result.metrics)
    ]


def metric_records(stamp: Stamp, rows: Iterable[MetricRow]) -> tuple[str, ...]:
    """Return the `metric_record_v1` of each row, as canonical text."""
    head, ids, schedule_idx, slot_commit_id, ts = _shared_parts(stamp)
    return tuple(
        f'{head}{ids}"metric_id":{canonical_json.dumps(row.metric_id)},"row_seq":{row.row_seq},'
        f'{schedule_idx}"schema_version":"metric_record_v1",{slot_commit_id}'
        f'"source":{canonical_json.dumps(row.source)},{ts},'
        f'"value":{canonical_json.dumps(row.value)}}}'
        for row in rows
    )


def metric_row_of_record(
    run_no: int, idx: int, _seq: int, _text: str, record: JsonObject
) -> MetricRow:
    """Return the row that a `metric_record_v1` was made of. Raises `KeyError`."""
    return MetricRow(run_no, idx, *(record[name] for name in MetricRow._fields[2:]))


def event_rows(run_no: int, result: AttemptResult) -> Collection[EventRow]:
    """Return the rows of `event` for a result, in order; those of a file are made when iterated."""
    idx = result.schedule_idx
    if isinstance(result.events, EventFile):
        return _FileRows(run_no, idx, result.events)
    return [
        EventRow(run_no, idx, event.row_seq, canonical_json.dumps(event.body))
        for event in sorted(result.events, key=lambda event: event.row_seq)
    ]


def event_records(stamp: Stamp, rows: Collection[EventRow]) -> Collection[str]:
    """Return the `event_record_v1` of each row, as canonical text.

    They are a tuple, unless the rows are those of a file.
    """
    if isinstance(rows, _FileRows):
        return _FileRecords(stamp, rows)
    return tuple(event_lines(stamp, rows))


def event_row_of_record(
    run_no: int, idx: int, _seq: int, _text: str, record: JsonObject
) -> EventRow:
    """Return the row that an `event_record_v1` was made of. Raises `KeyError`."""
    return EventRow(run_no, idx, record["row_seq"], canonical_json.dumps(record["event"]))


@dataclass(frozen=True, slots=True)
class _FileRows:
    """The rows of events of a file, made one by one whenever they are iterated."""

    run_no: int
    schedule_idx: int
    file: EventFile

    def __len__(self) -> int:
        return len(self.file)

    def __iter__(self) -> Iterator[EventRow]:
        for row_seq, body in enumerate(self.file.bodies()):
            yield EventRow(self.run_no, self.schedule_idx, row_seq, body)

    def __contains__(self, row: object) -> bool:
        return any(row == own_row for own_row in self)


@dataclass(frozen=True, slots=True)
class _FileRecords:
    """The records of events of a file, made one by one whenever they are iterated."""

    stamp: Stamp
    rows: _FileRows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[str]:
        return event_lines(self.stamp, self.rows)

    def __contains__(self, record: object) -> bool:
        return any(record == own_record for own_record in self)


def event_lines(stamp: Stamp, rows: Iterable[EventRow]) -> Iterator[str]:
    """Yield the record of each row, whose body is canonical text already."""
    head, ids, schedule_idx, slot_commit_id, ts = _shared_parts(stamp)
    return (
        f'{head}"event":{row.body},{ids}"row_seq":{row.row_seq},'
        f'{schedule_idx}"schema_version":"event_record_v1",{slot_commit_id}{ts}}}'
        for row in rows
    )


@lru_cache(maxsize=1)
def _shared_parts(stamp: Stamp) -> tuple[str, str, str, str, str]:
    """Return the pairs that all records of a slot share, the first with the opening bracket.

    Cached, because a slot's metrics and events are made one after the other.
    """
    return (
        f'{{"attempt":{stamp.attempt},',
        f'"ids":{canonical_json.dumps(stamp.ids.as_json())},',
        f'"schedule_idx":{stamp.schedule_idx},',
        f'"slot_commit_id":{canonical_json.dumps(stamp.slot_commit_id)},',
        f'"ts":{canonical_json.dumps(stamp.ts)}',
    )
