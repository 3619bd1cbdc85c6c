"""From committed rows to the records that are exported, as lines of canonical JSON: pure functions.

They serve when a slot is committed and when it is read back, so that a record is the same text,
byte for byte, both times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from labledger.ledger.commit.rows import EventRows, SlotRows
from labledger.ledger.database.table_rows import AttemptRow, EventRow, MetricRow, TrialRow
from labledger.records import JsonObject, canonical_json
from labledger.records.identity import TrialIds
from labledger.records.outcomes import SlotStatus
from labledger.records.slot_records import SlotRecords


class Stamp(NamedTuple):
    """What every record of a slot carries."""

    ids: TrialIds
    schedule_idx: int
    slot_commit_id: str
    attempt: int
    ts: str


def slot_records(status: SlotStatus, stamp: Stamp, rows: SlotRows) -> SlotRecords:
    """The records that an executed slot publishes."""
    return SlotRecords(
        schedule_idx=stamp.schedule_idx,
        variant_id=stamp.ids.variant_id,
        status=status,
        reason=rows.trial.reason,
        verdict=rows.trial.verdict,
        trials=(trial_line(stamp, rows.trial, rows.attempts),),
        predictions=tuple(row.record for row in rows.predictions),
        scores=tuple(row.record for row in rows.scores),
        evidence=tuple(row.record for row in rows.evidence),
        metrics=tuple(metric_lines(stamp, rows.metrics)),
        events=_event_lines(stamp, rows.events),
    )


def trial_line(stamp: Stamp, trial: TrialRow, attempts: Sequence[AttemptRow]) -> str:
    """A `trial_record_v1`."""
    return canonical_json.dumps(
        {
            "schema_version": "trial_record_v1",
            "schedule_idx": stamp.schedule_idx,
            "slot_commit_id": stamp.slot_commit_id,
            "attempt": trial.attempt,
            "row_seq": 0,
            "ts": stamp.ts,
            "ids": stamp.ids.as_json(),
            "status": trial.status,
            "reason": trial.reason,
            "message": trial.message,
            "verdict": trial.verdict,
            "outcome": trial.outcome,
            "exit_status": trial.exit_status,
            "started_at": trial.started_at,
            "ended_at": trial.ended_at,
            "duration_ms": trial.duration_ms,
            "phases": {
                "setup": _phase(
                    trial.setup_exit_status, trial.setup_duration_ms, trial.setup_timed_out
                ),
                "agent": _phase(
                    trial.agent_exit_status, trial.agent_duration_ms, trial.agent_timed_out
                ),
                "grader": _phase(
                    trial.grader_exit_status, trial.grader_duration_ms, trial.grader_timed_out
                ),
            },
            "image": {"ref": trial.image_ref, "id": trial.image_id},
            "events_dropped": trial.events_dropped,
            "attempts": [_attempt(row) for row in attempts],
        }
    )


def _phase(exit_status: int | None, duration_ms: int | None, timed_out: int | None) -> Any:
    if duration_ms is None:
        return None
    return {
        "exit_status": exit_status,
        "duration_ms": duration_ms,
        "timed_out": bool(timed_out),
    }


def _attempt(row: AttemptRow) -> JsonObject:
    fields = row._asdict()
    del fields["run_no"], fields["schedule_idx"]
    return fields


def metric_lines(stamp: Stamp, rows: Iterable[MetricRow]) -> list[str]:
    """Each a `metric_record_v1`: what the slot's records share is made into text once."""
    head, tail = _shared(stamp)
    return [
        f'{head}"metric_id":{canonical_json.dumps(row.metric_id)},"row_seq":{row.row_seq},'
        f'{tail[0]}"schema_version":"metric_record_v1",{tail[1]}'
        f'"source":{canonical_json.dumps(row.source)},{tail[2]},"value":{canonical_json.dumps(row.value)}}}'
        for row in rows
    ]


def event_lines(stamp: Stamp, rows: Iterable[EventRow]) -> Iterator[str]:
    """Each an `event_record_v1`; a row's body is canonical text already."""
    ids = canonical_json.dumps(stamp.ids.as_json())
    _, tail = _shared(stamp)
    return (
        f'{{"attempt":{stamp.attempt},"event":{row.body},"ids":{ids},"row_seq":{row.row_seq},'
        f'{tail[0]}"schema_version":"event_record_v1",{tail[1]}{tail[2]}}}'
        for row in rows
    )


@dataclass(frozen=True, slots=True)
class _EventLines:
    """The records of events that lie in a file, made one by one whenever they are iterated."""

    stamp: Stamp
    rows: EventRows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[str]:
        return event_lines(self.stamp, self.rows)

    def __contains__(self, line: object) -> bool:
        return any(line == own for own in self)


def _event_lines(stamp: Stamp, rows: Collection[EventRow]) -> Collection[str]:
    if isinstance(rows, EventRows):
        return _EventLines(stamp, rows)
    return tuple(event_lines(stamp, rows))


def _shared(stamp: Stamp) -> tuple[str, tuple[str, str, str]]:
    """The text before the first key that differs, and the shared pairs after `row_seq`."""
    head = f'{{"attempt":{stamp.attempt},"ids":{canonical_json.dumps(stamp.ids.as_json())},'
    return head, (
        f'"schedule_idx":{stamp.schedule_idx},',
        f'"slot_commit_id":{canonical_json.dumps(stamp.slot_commit_id)},',
        f'"ts":{canonical_json.dumps(stamp.ts)}',
    )
