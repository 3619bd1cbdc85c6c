"""All rows of a committed slot, and the records that its commit makes of them.

`trial_rows` and `metric_and_event_rows` make the records that are stored as columns. Predictions,
scores and evidence are stored as the text of their record, with some of its values in columns.
All functions are pure: a record is the same text when a slot is committed and when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from labledger.ledger.commit_rows import metric_and_event_rows, trial_rows
from labledger.ledger.database.table_rows import (
    AttemptRow,
    EventRow,
    EvidenceRow,
    MetricRow,
    PredictionRow,
    ScoreRow,
    TrialRow,
)
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import AttemptResult
from labledger.records.identity import Stamp
from labledger.records.outcomes import SlotStatus
from labledger.records.slot_records import SlotRecords


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of an executed slot, each list in the order of its records."""

    trial: TrialRow
    attempts: Sequence[AttemptRow]
    metrics: Sequence[MetricRow]
    events: Collection[EventRow]
    predictions: Sequence[PredictionRow]
    scores: Sequence[ScoreRow]
    evidence: Sequence[EvidenceRow]


def slot_rows(run_no: int, results: Sequence[AttemptResult]) -> SlotRows:
    """Return the rows of a slot for the results of its attempts, in order; the last is final."""
    final = results[-1]
    idx = final.schedule_idx
    return SlotRows(
        trial=trial_rows.trial_row(run_no, final),
        attempts=[trial_rows.attempt_row(run_no, result) for result in results],
        metrics=metric_and_event_rows.metric_rows(run_no, final),
        events=metric_and_event_rows.event_rows(run_no, final),
        predictions=[
            prediction_row(run_no, idx, seq, canonical_json.dumps(record), record)
            for seq, record in enumerate(final.predictions)
        ],
        scores=[
            score_row(run_no, idx, seq, canonical_json.dumps(record), record)
            for seq, record in enumerate(final.scores)
        ],
        evidence=[
            evidence_row(run_no, idx, seq, canonical_json.dumps(record), record)
            for result in results
            for seq, record in enumerate(result.evidence)
        ],
    )


def slot_records(status: SlotStatus, stamp: Stamp, rows: SlotRows) -> SlotRecords:
    """Return the records that an executed slot publishes."""
    return SlotRecords(
        schedule_idx=stamp.schedule_idx,
        variant_id=stamp.ids.variant_id,
        status=status,
        reason=rows.trial.reason,
        verdict=rows.trial.verdict,
        agent_exit_status=rows.trial.agent_exit_status,
        trials=(trial_rows.trial_record(stamp, rows.trial, rows.attempts),),
        predictions=tuple(row.record for row in rows.predictions),
        scores=tuple(row.record for row in rows.scores),
        evidence=tuple(row.record for row in rows.evidence),
        metrics=metric_and_event_rows.metric_records(stamp, rows.metrics),
        events=metric_and_event_rows.event_records(stamp, rows.events),
    )


def prediction_row(run_no: int, idx: int, seq: int, text: str, record: JsonObject) -> PredictionRow:
    """Return the row of `prediction` for a record, whose canonical text is `text`."""
    return PredictionRow(run_no, idx, seq, record["prediction"]["kind"], text)


def score_row(run_no: int, idx: int, seq: int, text: str, record: JsonObject) -> ScoreRow:
    """Return the row of `score` for a record, whose canonical text is `text`."""
    value = float(record["primary_metric_value"])
    return ScoreRow(run_no, idx, seq, record["verdict"], record["primary_metric_name"], value, text)


def evidence_row(run_no: int, idx: int, seq: int, text: str, record: JsonObject) -> EvidenceRow:
    """Return the row of `evidence_record` for a record, whose canonical text is `text`."""
    return EvidenceRow(run_no, idx, record["attempt"], seq, text)


RowOfRecord = Callable[[int, int, int, str, JsonObject], tuple[Any, ...]]
"""Makes a row from its run number, slot, `row_seq`, the record's text, and the record."""

TEXT_TABLES: dict[str, tuple[str, RowOfRecord]] = {
    "predictions": ("prediction", prediction_row),
    "scores": ("score", score_row),
    "evidence": ("evidence_record", evidence_row),
}
"""The table of each kind of record that is stored as text, which is the last column of a row."""

ROW_TABLES: dict[str, tuple[str, RowOfRecord]] = {
    **TEXT_TABLES,
    "metrics": ("metric", metric_and_event_rows.metric_row_of_record),
    "events": ("event", metric_and_event_rows.event_row_of_record),
}
"""The table of each kind of record that is stored as one row: every kind but `trials`."""
