"""The rows of the ledger's tables, without SQLAlchemy, which takes long to import.

The rows of a committed slot are declared here, with names and types. For the other tables,
`python scripts/table_rows.py` generates `table_rows.json` from `tables.py`: columns in the order of
the table, without columns that SQLite fills in and without `row_digest`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from labledger.records.resource_use import NUMBERS

_RowType = TypeVar("_RowType", bound=type[tuple[Any, ...]])


def _with_resource_use(row_type: _RowType) -> _RowType:
    """Return the type with a nullable column for each number of `ResourceUse` at its end."""
    columns: dict[str, Any] = dict(row_type.__annotations__)
    columns |= {name: number.type | None for name, number in NUMBERS.items()}
    named_tuple: Any = NamedTuple
    row: _RowType = named_tuple(row_type.__name__, [*columns.items()])
    return row


class SlotCommitRow(NamedTuple):
    run_no: int
    schedule_idx: int
    slot_commit_id: str
    status: str
    reason: str | None
    epoch: int
    committed_at: str
    payload_digest: str
    chain_digest: str


@_with_resource_use
class TrialRow(NamedTuple):
    run_no: int
    schedule_idx: int
    attempt: int
    status: str
    reason: str | None
    message: str | None
    verdict: str | None
    outcome: str | None
    exit_status: int | None
    started_at: str
    ended_at: str
    duration_ms: int
    setup_exit_status: int | None
    setup_duration_ms: int | None
    setup_timed_out: int | None
    agent_exit_status: int | None
    agent_duration_ms: int | None
    agent_timed_out: int | None
    grader_exit_status: int | None
    grader_duration_ms: int | None
    grader_timed_out: int | None
    image_ref: str
    image_id: str
    events_dropped: int


@_with_resource_use
class AttemptRow(NamedTuple):
    run_no: int
    schedule_idx: int
    attempt: int
    status: str
    reason: str | None
    message: str | None
    exit_status: int | None
    started_at: str
    ended_at: str
    duration_ms: int
    container: str
    image_id: str


class MetricRow(NamedTuple):
    run_no: int
    schedule_idx: int
    row_seq: int
    metric_id: str
    source: str
    value: float | int | str


class EventRow(NamedTuple):
    run_no: int
    schedule_idx: int
    row_seq: int
    body: str


class PredictionRow(NamedTuple):
    run_no: int
    schedule_idx: int
    row_seq: int
    kind: str
    record: str


class ScoreRow(NamedTuple):
    run_no: int
    schedule_idx: int
    row_seq: int
    verdict: str
    primary_metric_name: str
    primary_metric_value: float
    record: str


class EvidenceRow(NamedTuple):
    run_no: int
    schedule_idx: int
    attempt: int
    row_seq: int
    record: str


class ModelCallRow(NamedTuple):
    run_no: int
    schedule_idx: int
    attempt: int
    call: int
    started_at: str
    provider: str
    api: str
    model: str
    model_served: str | None
    state: str
    status: int | None
    reason: str | None
    input_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    cache_write_1h_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    raw_usage: str | None
    first_byte_ms: int | None
    duration_ms: int | None
    waited_ms: int
    request_id: str | None
    reserved: str | None
    replayed: int
    detail: str | None
    fault: str | None
    effort: str | None
    temperature: float | None
    service_tier: str | None
    price_condition: str | None
    fees: int | None
    stated_cost: int | None
    cost_unknown: str | None


SLOT_ROWS: dict[str, Any] = {
    "slot_commit": SlotCommitRow,
    "trial": TrialRow,
    "attempt": AttemptRow,
    "metric": MetricRow,
    "event": EventRow,
    "prediction": PredictionRow,
    "score": ScoreRow,
    "evidence_record": EvidenceRow,
    "model_call": ModelCallRow,
}
"""The types of the rows that a commit writes, by table, in the order of writing."""

SLOT_TABLES = tuple(SLOT_ROWS)
"""Tables that a commit writes, in this order."""

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))

COLUMNS: dict[str, tuple[str, ...]] = {
    name: SLOT_ROWS[name]._fields if name in SLOT_ROWS else tuple(table["columns"])
    for name, table in _TABLES.items()
}
"""The columns that a statement writes, by table."""

KEYS: dict[str, tuple[str, ...]] = {name: tuple(table["key"]) for name, table in _TABLES.items()}
"""The columns of the primary key, by table."""

DIGESTED = tuple(name for name, table in _TABLES.items() if table["digested"])
"""Tables with a column `row_digest`: their rows change, or are deleted."""
