"""The SQL with which the writer, leases and imports change the ledger.

The texts never change, so that SQLite compiles each of them only once for a connection.
"""

from __future__ import annotations

from labledger.ledger.database import row_sql
from labledger.ledger.database.sql_fragments import expand
from labledger.ledger.database.table_rows import COLUMNS

INSERT_TRIAL = row_sql.insert("trial")
INSERT_ATTEMPT = row_sql.insert("attempt")
INSERT_METRIC = row_sql.insert("metric")
INSERT_EVENT = row_sql.insert("event")
INSERT_PREDICTION = row_sql.insert("prediction")
INSERT_SCORE = row_sql.insert("score")
INSERT_EVIDENCE = row_sql.insert("evidence_record")
INSERT_SLOT_COMMIT = row_sql.insert("slot_commit")
INSERT_ARTIFACT = row_sql.insert("artifact", unless_exists="sha256")
UPSERT_BUDGET = row_sql.upsert("budget")
DELETE_BUDGET = "DELETE FROM budget WHERE run_no = ? AND kind = ?"
INSERT_DISPATCH = row_sql.insert("dispatch")
INSERT_STAGED = row_sql.insert("staged_result")
DELETE_STAGED = "DELETE FROM staged_result WHERE run_no = ? AND schedule_idx = ?"
SELECT_STAGED = (
    f"{row_sql.select_with_digest('staged_result')} AND schedule_idx = ? ORDER BY attempt"
)

NEXT_RUN_NO = """
SELECT coalesce(max(number), 0) + 1 FROM (
  SELECT max(run_no) AS number FROM run UNION ALL SELECT max(former_run_no) FROM deleted_run)"""
"""The number of the next run: greater than that of every run, deleted ones included."""
SELECT_TOMBSTONE = "SELECT 1 FROM deleted_run WHERE run_id = ?"

ADVANCE = (
    row_sql.update("schedule_progress", next_schedule_idx="?1", updated_at="?2")
    + " WHERE run_no = ?3 AND next_schedule_idx = ?4 AND epoch = ?5"
)
SELECT_PROGRESS = "SELECT epoch, next_schedule_idx FROM schedule_progress WHERE run_no = ?"

SELECT_SLOT = expand("""
SELECT run_variant.variant_id, run_task.task_id, slot.repl_idx,
  coalesce(
    (SELECT chain_digest FROM slot_commit
     WHERE slot_commit.run_no = slot.run_no
       AND slot_commit.schedule_idx = slot.schedule_idx - 1),
    (SELECT genesis_digest FROM schedule WHERE schedule.run_no = slot.run_no)),
  (SELECT digest FROM run_part
   WHERE run_part.run_no = slot.run_no AND run_part.first_idx = slot.schedule_idx)
FROM slot
{slot_names}
WHERE slot.run_no = ? AND slot.schedule_idx = ?""")
"""A slot's variant, task and replication, the chain's head before it is committed, and the digest
of the part that it begins, if it begins one."""

SELECT_LEASE = (
    f"SELECT run.run_id, {row_sql.columns('lease', start=1, qualified=True)} "  # noqa: S608
    "FROM lease JOIN run ON run.run_no = lease.run_no WHERE lease.run_no = ?"
)
UPSERT_LEASE = row_sql.upsert("lease")
RENEW_LEASE = (
    row_sql.update("lease", renewed_at="?1", expires_at="?2") + " WHERE run_no = ?3 AND epoch = ?4"
)
SELECT_CLAIM = row_sql.select("claim", start=1)
UPSERT_CLAIM = row_sql.upsert("claim")
DELETE_CLAIM = "DELETE FROM claim WHERE run_no = ? AND host = ? AND pid = ? AND process_token = ?"
DELETE_LEASE = "DELETE FROM lease WHERE run_no = ? AND epoch = ?"
BEGIN_EPOCH = (
    row_sql.update(
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
    row_sql.update(
        "schedule_progress",
        status="?1",
        updated_at="?2",
        ended_at="?3",
        stop_cause="?4",
        stop_message="?5",
    )
    + " WHERE run_no = ?6"
)

RUN_COLUMNS = COLUMNS["run"][1:]
"""The columns of a run's own row without its number: what the genesis digest covers first."""

PART_COLUMNS = COLUMNS["run_part"][1:-1]
"""The columns of a part's row without the run's number and `digest`, which covers them."""

INSERT_PART = row_sql.insert("run_part")
INSERT_RUN = row_sql.insert("run")
INSERT_SCHEDULE = row_sql.insert("schedule")
INSERT_VARIANT = row_sql.insert("run_variant")
INSERT_PAYLOAD = row_sql.insert("task_payload", unless_exists="payload_digest")
INSERT_TASK = row_sql.insert("run_task")
INSERT_SLOT = row_sql.insert("slot")
INSERT_PROGRESS = row_sql.insert("schedule_progress")
