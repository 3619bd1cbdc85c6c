"""The tables of the first ledger.

Revision ID: 0001
Revises:
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import UserDefinedType

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


_STATUS = (
    "status IN ('completed', 'agent_error', 'agent_timeout', 'setup_error', 'grade_error', "
    "'infra_error', 'cancelled', 'skipped_pruned')"
)
_EVENT_TYPE = "CASE json_type(body, '$.type') WHEN 'text' THEN body ->> '$.type' END"


class AnyValue(UserDefinedType[Any]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "ANY"


def upgrade() -> None:
    op.create_table(
        "ledger_meta",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_ledger_meta"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("experiment_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("resolved", sa.Text(), nullable=False),
        sa.Column("authored", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("source_path", sa.Text(), nullable=False),
        sa.Column("images", sa.Text(), nullable=False),
        sa.Column("labledger_version", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", name="pk_run"),
        sa.UniqueConstraint("run_id", name="uq_run_run_id"),
        sqlite_strict=True,
    )
    op.create_table(
        "run_variant",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("variant_idx", sa.Integer(), nullable=False),
        sa.Column("variant_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("bindings", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "variant_idx", name="pk_run_variant"),
        sa.UniqueConstraint("run_no", "variant_id", name="uq_run_variant_variant_id"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_run_variant_run"),
        sa.CheckConstraint("role IN ('baseline', 'treatment')", name="ck_run_variant_role"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "task_payload",
        sa.Column("payload_digest", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("payload_digest", name="pk_task_payload"),
        sqlite_strict=True,
    )
    op.create_table(
        "run_task",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("task_idx", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("payload_digest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "task_idx", name="pk_run_task"),
        sa.UniqueConstraint("run_no", "task_id", name="uq_run_task_task_id"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_run_task_run"),
        sa.ForeignKeyConstraint(
            ["payload_digest"], ["task_payload.payload_digest"], name="fk_run_task_task_payload"
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "slot",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("variant_idx", sa.Integer(), nullable=False),
        sa.Column("task_idx", sa.Integer(), nullable=False),
        sa.Column("repl_idx", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", name="pk_slot"),
        sa.UniqueConstraint("run_no", "variant_idx", "task_idx", "repl_idx", name="uq_slot_cell"),
        sa.ForeignKeyConstraint(
            ["run_no", "variant_idx"],
            ["run_variant.run_no", "run_variant.variant_idx"],
            name="fk_slot_run_variant",
        ),
        sa.ForeignKeyConstraint(
            ["run_no", "task_idx"],
            ["run_task.run_no", "run_task.task_idx"],
            name="fk_slot_run_task",
        ),
        sa.CheckConstraint("schedule_idx >= 0", name="ck_slot_schedule_idx"),
        sa.CheckConstraint("repl_idx >= 0", name="ck_slot_repl_idx"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "schedule",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("total_slots", sa.Integer(), nullable=False),
        sa.Column("genesis_digest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", name="pk_schedule"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_schedule_run"),
        sqlite_strict=True,
    )
    op.create_table(
        "schedule_progress",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("next_schedule_idx", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_no", name="pk_schedule_progress"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_schedule_progress_run"),
        sa.CheckConstraint(
            "status IN ('running', 'interrupted', 'completed')", name="ck_schedule_progress_status"
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "lease",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_token", sa.Text(), nullable=False),
        sa.Column("acquired_at", sa.Text(), nullable=False),
        sa.Column("renewed_at", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", name="pk_lease"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_lease_run"),
        sqlite_strict=True,
    )
    op.create_table(
        "dispatch",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("container", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("dispatched_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", "attempt", "epoch", name="pk_dispatch"),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["slot.run_no", "slot.schedule_idx"],
            name="fk_dispatch_slot",
        ),
        sa.CheckConstraint("attempt >= 1", name="ck_dispatch_attempt"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "staged_result",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("final", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("staged_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", "attempt", name="pk_staged_result"),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["slot.run_no", "slot.schedule_idx"],
            name="fk_staged_result_slot",
        ),
        sa.CheckConstraint("final IN (0, 1)", name="ck_staged_result_final"),
        sqlite_strict=True,
    )
    op.create_table(
        "slot_commit",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("slot_commit_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("committed_at", sa.Text(), nullable=False),
        sa.Column("payload_digest", sa.Text(), nullable=False),
        sa.Column("chain_digest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", name="pk_slot_commit"),
        sa.UniqueConstraint("slot_commit_id", name="uq_slot_commit_slot_commit_id"),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["slot.run_no", "slot.schedule_idx"],
            name="fk_slot_commit_slot",
        ),
        sa.CheckConstraint(
            _STATUS,
            name="ck_slot_commit_status",
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "trial",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("exit_status", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Text(), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column("setup_exit_status", sa.Integer(), nullable=True),
        sa.Column("setup_duration_ms", sa.Integer(), nullable=True),
        sa.Column("setup_timed_out", sa.Integer(), nullable=True),
        sa.Column("agent_exit_status", sa.Integer(), nullable=True),
        sa.Column("agent_duration_ms", sa.Integer(), nullable=True),
        sa.Column("agent_timed_out", sa.Integer(), nullable=True),
        sa.Column("grader_exit_status", sa.Integer(), nullable=True),
        sa.Column("grader_duration_ms", sa.Integer(), nullable=True),
        sa.Column("grader_timed_out", sa.Integer(), nullable=True),
        sa.Column("image_ref", sa.Text(), nullable=False),
        sa.Column("image_id", sa.Text(), nullable=False),
        sa.Column("events_dropped", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", name="pk_trial"),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["slot_commit.run_no", "slot_commit.schedule_idx"],
            name="fk_trial_slot_commit",
        ),
        sa.CheckConstraint(
            _STATUS,
            name="ck_trial_status",
        ),
        sa.CheckConstraint(
            "verdict IN ('pass', 'fail', 'missing', 'error')", name="ck_trial_verdict"
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "attempt",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("exit_status", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Text(), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column("container", sa.Text(), nullable=False),
        sa.Column("image_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", "attempt", name="pk_attempt"),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["trial.run_no", "trial.schedule_idx"],
            name="fk_attempt_trial",
        ),
        sa.CheckConstraint("attempt >= 1", name="ck_attempt_attempt"),
        sa.CheckConstraint(
            _STATUS,
            name="ck_attempt_status",
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metric",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("row_seq", sa.Integer(), nullable=False),
        sa.Column("metric_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("value", AnyValue(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", "row_seq", name="pk_metric"),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["trial.run_no", "trial.schedule_idx"],
            name="fk_metric_trial",
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "event",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("row_seq", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), sa.Computed(_EVENT_TYPE, persisted=False), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", "row_seq", name="pk_event"),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["trial.run_no", "trial.schedule_idx"],
            name="fk_event_trial",
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "prediction",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("row_seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", "row_seq", name="pk_prediction"),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["trial.run_no", "trial.schedule_idx"],
            name="fk_prediction_trial",
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "score",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("row_seq", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("primary_metric_name", sa.Text(), nullable=False),
        sa.Column("primary_metric_value", sa.REAL(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", "row_seq", name="pk_score"),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["trial.run_no", "trial.schedule_idx"],
            name="fk_score_trial",
        ),
        sa.CheckConstraint(
            "verdict IN ('pass', 'fail', 'missing', 'error')", name="ck_score_verdict"
        ),
        sqlite_strict=True,
    )
    op.create_index(
        "ix_score_outcome",
        "score",
        [
            "run_no",
            "schedule_idx",
            "row_seq",
            "verdict",
            "primary_metric_name",
            "primary_metric_value",
        ],
    )
    op.create_table(
        "evidence_record",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("row_seq", sa.Integer(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "run_no", "schedule_idx", "attempt", "row_seq", name="pk_evidence_record"
        ),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["trial.run_no", "trial.schedule_idx"],
            name="fk_evidence_record_trial",
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "artifact",
        sa.Column("artifact_no", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("artifact_no", name="pk_artifact"),
        sa.UniqueConstraint("sha256", name="uq_artifact_sha256"),
        sa.CheckConstraint("length(sha256) = 32", name="ck_artifact_sha256"),
        sa.CheckConstraint("content IS NULL OR length(content) = size", name="ck_artifact_size"),
        sqlite_strict=True,
    )
