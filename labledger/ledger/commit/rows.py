"""From the results of a slot's attempts to the rows that keep them: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

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
from labledger.records.attempt_result import AttemptResult, Phase
from labledger.records.events import EventFile
from labledger.records.metrics import Metric


@dataclass(frozen=True, slots=True)
class EventRows:
    """The rows of events that lie in a file, made one by one whenever they are iterated."""

    run_no: int
    schedule_idx: int
    file: EventFile

    def __len__(self) -> int:
        return len(self.file)

    def __iter__(self) -> Iterator[EventRow]:
        for row_seq, body in enumerate(self.file.bodies()):
            yield EventRow(self.run_no, self.schedule_idx, row_seq, body)

    def __contains__(self, row: object) -> bool:
        return any(row == own for own in self)


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
    """The rows of a slot from the results of its attempts, in order; the last one is final."""
    final = results[-1]
    idx = final.schedule_idx
    return SlotRows(
        trial=_trial_row(run_no, final),
        attempts=[_attempt_row(run_no, result) for result in results],
        metrics=[
            MetricRow(run_no, idx, seq, metric.metric_id, metric.source, _plain_value(metric))
            for seq, metric in enumerate(final.metrics)
        ],
        events=_event_rows(run_no, final),
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


def _event_rows(run_no: int, result: AttemptResult) -> Collection[EventRow]:
    idx = result.schedule_idx
    if isinstance(result.events, EventFile):
        return EventRows(run_no, idx, result.events)
    return [
        EventRow(run_no, idx, event.row_seq, canonical_json.dumps(event.body))
        for event in sorted(result.events, key=lambda event: event.row_seq)
    ]


def _trial_row(run_no: int, result: AttemptResult) -> TrialRow:
    return TrialRow(
        run_no,
        result.schedule_idx,
        result.attempt,
        result.status.value,
        result.reason,
        result.message,
        result.verdict,
        result.outcome,
        result.exit_status,
        result.started_at,
        result.ended_at,
        result.duration_ms,
        *_phase_columns(result.phases.get("setup")),
        *_phase_columns(result.phases.get("agent")),
        *_phase_columns(result.phases.get("grader")),
        result.image_ref,
        result.image_id,
        result.events_dropped,
    )


def _phase_columns(phase: Phase | None) -> tuple[int | None, int | None, int | None]:
    if phase is None:
        return None, None, None
    return phase.exit_status, phase.duration_ms, int(phase.timed_out)


def _attempt_row(run_no: int, result: AttemptResult) -> AttemptRow:
    return AttemptRow(
        run_no,
        result.schedule_idx,
        result.attempt,
        result.status.value,
        result.reason,
        result.message,
        result.exit_status,
        result.started_at,
        result.ended_at,
        result.duration_ms,
        result.container,
        result.image_id,
    )


def prediction_row(run_no: int, idx: int, seq: int, text: str, record: JsonObject) -> PredictionRow:
    return PredictionRow(run_no, idx, seq, record["prediction"]["kind"], text)


def score_row(run_no: int, idx: int, seq: int, text: str, record: JsonObject) -> ScoreRow:
    value = float(record["primary_metric_value"])
    return ScoreRow(run_no, idx, seq, record["verdict"], record["primary_metric_name"], value, text)


def evidence_row(run_no: int, idx: int, seq: int, text: str, record: JsonObject) -> EvidenceRow:
    return EvidenceRow(run_no, idx, record["attempt"], seq, text)


def _plain_value(metric: Metric) -> float | int | str:
    """SQLite has no booleans: one would come back as another JSON value."""
    return int(metric.value) if isinstance(metric.value, bool) else metric.value
