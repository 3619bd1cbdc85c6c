"""The columns and keys of the ledger's tables, without SQLAlchemy, which takes long to import.

Generated from `tables.py` by `python scripts/table_rows.py`: do not edit. Columns are in the order
of the table, without those that SQLite fills in and without `row_digest`. `statements` makes
SQL of them.
"""

from __future__ import annotations

from typing import NamedTuple


class SlotCommitRow(NamedTuple):
    """A row of `slot_commit`."""

    run_no: int
    schedule_idx: int
    slot_commit_id: str
    status: str
    reason: str | None
    epoch: int
    committed_at: str
    payload_digest: str
    chain_digest: str


class TrialRow(NamedTuple):
    """A row of `trial`."""

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


class AttemptRow(NamedTuple):
    """A row of `attempt`."""

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
    """A row of `metric`."""

    run_no: int
    schedule_idx: int
    row_seq: int
    metric_id: str
    source: str
    value: float | int | str


class EventRow(NamedTuple):
    """A row of `event`."""

    run_no: int
    schedule_idx: int
    row_seq: int
    body: str


class PredictionRow(NamedTuple):
    """A row of `prediction`."""

    run_no: int
    schedule_idx: int
    row_seq: int
    kind: str
    record: str


class ScoreRow(NamedTuple):
    """A row of `score`."""

    run_no: int
    schedule_idx: int
    row_seq: int
    verdict: str
    primary_metric_name: str
    primary_metric_value: float
    record: str


class EvidenceRow(NamedTuple):
    """A row of `evidence_record`."""

    run_no: int
    schedule_idx: int
    attempt: int
    row_seq: int
    record: str


class ModelCallRow(NamedTuple):
    """A row of `model_call`."""

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


COLUMNS: dict[str, tuple[str, ...]] = {
    "ledger_meta": ("key", "value"),
    "run": (
        *("run_no", "run_id", "experiment_id", "name", "created_at", "resolved", "authored"),
        *("digest", "source_path", "images", "labledger_version"),
    ),
    "grading": ("run_no", "root_id", "generation"),
    "counted": ("root_no", "run_no"),
    "run_variant": ("run_no", "variant_idx", "variant_id", "role", "bindings"),
    "task_payload": ("payload_digest", "body"),
    "run_task": ("run_no", "task_idx", "task_id", "digest", "payload_digest"),
    "slot": ("run_no", "schedule_idx", "variant_idx", "task_idx", "repl_idx", "supersedes"),
    "model_price": (
        *("run_no", "price_idx", "part", "provider", "model", "from_tokens", "input", "output"),
        *("cache_read", "cache_write", "cache_write_1h", "source", "digest"),
    ),
    "schedule": ("run_no", "total_slots", "genesis_digest"),
    "run_part": (
        *("run_no", "part", "kind", "first_idx", "variant_count", "task_count", "slot_count"),
        *("resolved", "authored", "run_digest", "source_path", "images", "because", "selection"),
        *("labledger_version", "created_at", "digest"),
    ),
    "schedule_progress": (
        *("run_no", "next_schedule_idx", "epoch", "status", "updated_at", "ended_at", "stop_cause"),
        *("stop_message",),
    ),
    "lease": (
        *("run_no", "epoch", "host", "pid", "process_token", "acquired_at", "renewed_at"),
        *("expires_at",),
    ),
    "claim": ("run_no", "host", "pid", "process_token", "claimed_at", "expires_at"),
    "budget": ("run_no", "kind", "amount"),
    "run_note": ("run_no", "note_no", "noted_at", "note"),
    "run_tag": ("run_no", "tag", "tagged_at"),
    "run_setting": ("run_no", "name", "value"),
    "run_receiver": ("run_no", "source", "receiver"),
    "notification": (
        *("run_no", "notification_no", "receiver", "event", "subject", "happened_at", "payload"),
        *("attempts", "due_at", "delivered_at", "problem"),
    ),
    "host_fence": ("run_no", "host", "declared_at", "because"),
    "control_request": (
        *("run_no", "request_no", "requested_at", "requested_by", "kind", "what", "because"),
        *("asked_epoch", "applied_at", "applied_epoch", "outcome"),
    ),
    "deleted_run": (
        *("deletion_no", "former_run_no", "run_id", "experiment_id", "created_at"),
        *("genesis_digest", "committed", "chain_head", "deleted_at", "because", "digest"),
    ),
    "dispatch": (
        *("run_no", "schedule_idx", "attempt", "epoch", "container", "host", "dispatched_at"),
    ),
    "staged_result": ("run_no", "schedule_idx", "attempt", "final", "payload", "staged_at"),
    "run_tally": ("run_no", "table_name", "row_count", "content"),
    "slot_commit": SlotCommitRow._fields,
    "trial": TrialRow._fields,
    "attempt": AttemptRow._fields,
    "metric": MetricRow._fields,
    "event": EventRow._fields,
    "prediction": PredictionRow._fields,
    "score": ScoreRow._fields,
    "evidence_record": EvidenceRow._fields,
    "model_call": ModelCallRow._fields,
    "slot_outcome": (
        *("run_no", "variant_idx", "task_idx", "repl_idx", "schedule_idx", "status", "verdict"),
        *("passed", "metric_name", "metric_value", "duration_ms"),
    ),
    "artifact": ("sha256", "size", "content"),
}
"""The columns that a statement writes, by table."""

SLOT_TABLES = (
    *("slot_commit", "trial", "attempt", "metric", "event", "prediction", "score"),
    *("evidence_record", "model_call"),
)
"""Tables of what a commit publishes, in the order in which it is written."""

KEYS: dict[str, tuple[str, ...]] = {
    "ledger_meta": ("key",),
    "run": ("run_no",),
    "grading": ("run_no",),
    "counted": ("root_no",),
    "run_variant": ("run_no", "variant_idx"),
    "task_payload": ("payload_digest",),
    "run_task": ("run_no", "task_idx"),
    "slot": ("run_no", "schedule_idx"),
    "model_price": ("run_no", "price_idx"),
    "schedule": ("run_no",),
    "run_part": ("run_no", "part"),
    "schedule_progress": ("run_no",),
    "lease": ("run_no",),
    "claim": ("run_no",),
    "budget": ("run_no", "kind"),
    "run_note": ("run_no", "note_no"),
    "run_tag": ("run_no", "tag"),
    "run_setting": ("run_no", "name"),
    "run_receiver": ("run_no", "source", "receiver"),
    "notification": ("run_no", "notification_no"),
    "host_fence": ("run_no", "host"),
    "control_request": ("run_no", "request_no"),
    "deleted_run": ("deletion_no",),
    "dispatch": ("run_no", "schedule_idx", "attempt", "epoch"),
    "staged_result": ("run_no", "schedule_idx", "attempt"),
    "run_tally": ("run_no", "table_name"),
    "slot_commit": ("run_no", "schedule_idx"),
    "trial": ("run_no", "schedule_idx"),
    "attempt": ("run_no", "schedule_idx", "attempt"),
    "metric": ("run_no", "schedule_idx", "row_seq"),
    "event": ("run_no", "schedule_idx", "row_seq"),
    "prediction": ("run_no", "schedule_idx", "row_seq"),
    "score": ("run_no", "schedule_idx", "row_seq"),
    "evidence_record": ("run_no", "schedule_idx", "attempt", "row_seq"),
    "model_call": ("run_no", "schedule_idx", "attempt", "call"),
    "slot_outcome": ("run_no", "variant_idx", "task_idx", "repl_idx"),
    "artifact": ("artifact_no",),
}
"""The columns of the primary key, by table."""

DIGESTED = (
    *("schedule_progress", "lease", "claim", "budget", "run_note", "run_tag", "run_setting"),
    *("run_receiver", "notification", "host_fence", "control_request", "dispatch"),
    *("staged_result", "run_tally"),
)
"""Tables with a column `row_digest`: those whose rows change or go."""
