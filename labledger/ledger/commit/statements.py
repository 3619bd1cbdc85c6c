"""The SQL that the writer runs, as text that SQLite compiles once a connection."""

from __future__ import annotations

from labledger.ledger.commit import rows
from labledger.ledger.database import row_digests


def _insert(table: str, row: type[tuple[object, ...]]) -> str:
    columns: tuple[str, ...] = row._fields  # type: ignore[attr-defined]
    return _insert_columns(table, *columns)


def _insert_columns(table: str, *columns: str) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' for _ in columns)})"  # noqa: S608


INSERT_TRIAL = _insert("trial", rows.TrialRow)
INSERT_ATTEMPT = _insert("attempt", rows.AttemptRow)
INSERT_METRIC = _insert("metric", rows.MetricRow)
INSERT_EVENT = _insert("event", rows.EventRow)
INSERT_PREDICTION = _insert("prediction", rows.PredictionRow)
INSERT_SCORE = _insert("score", rows.ScoreRow)
INSERT_EVIDENCE = _insert("evidence_record", rows.EvidenceRow)

INSERT_SLOT_COMMIT = _insert_columns(
    "slot_commit",
    "run_no",
    "schedule_idx",
    "slot_commit_id",
    "status",
    "reason",
    "epoch",
    "committed_at",
    "payload_digest",
    "chain_digest",
)
INSERT_ARTIFACT = (
    "INSERT INTO artifact (sha256, size, content) VALUES (?, ?, ?) ON CONFLICT (sha256) DO NOTHING"
)
UPSERT_BUDGET = row_digests.upsert("budget", "run_no", "kind")
DELETE_BUDGET = "DELETE FROM budget WHERE run_no = ? AND kind = ?"
INSERT_DISPATCH = row_digests.insert("dispatch")
INSERT_STAGED = row_digests.insert("staged_result")
DELETE_STAGED = "DELETE FROM staged_result WHERE run_no = ? AND schedule_idx = ?"
SELECT_STAGED = f"{row_digests.select('staged_result')} AND schedule_idx = ? ORDER BY attempt"

ADVANCE = (
    row_digests.update("schedule_progress", next_schedule_idx="?1", updated_at="?2")
    + " WHERE run_no = ?3 AND next_schedule_idx = ?4 AND epoch = ?5"
)
SELECT_PROGRESS = "SELECT epoch, next_schedule_idx FROM schedule_progress WHERE run_no = ?"

SELECT_SLOT = """
SELECT run_variant.variant_id, run_task.task_id, slot.repl_idx,
  coalesce(
    (SELECT chain_digest FROM slot_commit
     WHERE slot_commit.run_no = slot.run_no
       AND slot_commit.schedule_idx = slot.schedule_idx - 1),
    (SELECT genesis_digest FROM schedule WHERE schedule.run_no = slot.run_no))
FROM slot
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE slot.run_no = ? AND slot.schedule_idx = ?"""
"""A slot's variant, task and replication, and the chain's head before it is committed."""

SELECT_LEASE = (
    "SELECT run.run_id, lease.epoch, lease.host, lease.pid, lease.process_token, "
    "lease.acquired_at, lease.renewed_at, lease.expires_at "
    "FROM lease JOIN run ON run.run_no = lease.run_no WHERE lease.run_no = ?"
)
UPSERT_LEASE = row_digests.upsert("lease", "run_no")
RENEW_LEASE = (
    row_digests.update("lease", renewed_at="?1", expires_at="?2")
    + " WHERE run_no = ?3 AND epoch = ?4"
)
SELECT_CLAIM = "SELECT host, pid, process_token, claimed_at, expires_at FROM claim WHERE run_no = ?"
UPSERT_CLAIM = row_digests.upsert("claim", "run_no")
DELETE_CLAIM = "DELETE FROM claim WHERE run_no = ? AND host = ? AND pid = ? AND process_token = ?"
DELETE_LEASE = "DELETE FROM lease WHERE run_no = ? AND epoch = ?"
BEGIN_EPOCH = (
    row_digests.update(
        "schedule_progress",
        epoch="?1",
        status="'running'",
        updated_at="?2",
        ended_at="NULL",
        stop_cause="NULL",
        stop_message="NULL",
    )
    + " WHERE run_no = ?3"
)
END_EPOCH = (
    row_digests.update(
        "schedule_progress",
        status="?1",
        updated_at="?2",
        ended_at="?3",
        stop_cause="?4",
        stop_message="?5",
    )
    + " WHERE run_no = ?6"
)

RUN_COLUMNS = (
    "run_id",
    "experiment_id",
    "name",
    "created_at",
    "resolved",
    "authored",
    "digest",
    "source_path",
    "images",
    "labledger_version",
)
"""A run's own row, but for its number: what the genesis digest covers first."""

INSERT_RUN = _insert_columns("run", "run_no", *RUN_COLUMNS)
INSERT_SCHEDULE = _insert_columns("schedule", "run_no", "total_slots", "genesis_digest")
INSERT_VARIANT = _insert_columns(
    "run_variant", "run_no", "variant_idx", "variant_id", "role", "bindings"
)
INSERT_PAYLOAD = (
    "INSERT INTO task_payload (payload_digest, body) VALUES (?, ?) "
    "ON CONFLICT (payload_digest) DO NOTHING"
)
INSERT_TASK = _insert_columns(
    "run_task", "run_no", "task_idx", "task_id", "digest", "payload_digest"
)
INSERT_SLOT = _insert_columns(
    "slot", "run_no", "schedule_idx", "variant_idx", "task_idx", "repl_idx"
)
INSERT_PROGRESS = row_digests.insert("schedule_progress")
