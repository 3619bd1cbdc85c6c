"""How each slot counts for the pass rate, why a run stopped, digests of rows that change.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("schedule_progress", sa.Column("stop_cause", sa.Text(), nullable=True))
    op.add_column("schedule_progress", sa.Column("stop_message", sa.Text(), nullable=True))
    for table in ("schedule_progress", "lease", "claim", "budget", "dispatch", "staged_result"):
        op.add_column(table, sa.Column("row_digest", sa.Text(), nullable=True))
    # The table repeats other tables: creating it again is simpler than altering a clustered one.
    op.drop_table("slot_outcome")
    op.create_table(
        "slot_outcome",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("variant_idx", sa.Integer(), nullable=False),
        sa.Column("task_idx", sa.Integer(), nullable=False),
        sa.Column("repl_idx", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("passed", sa.Integer(), nullable=True),
        sa.Column("metric_name", sa.Text(), nullable=True),
        sa.Column("metric_value", sa.REAL(), nullable=True),
        sa.Column("duration_ms", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint(
            "run_no", "variant_idx", "task_idx", "repl_idx", name="pk_slot_outcome"
        ),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx"],
            ["slot_commit.run_no", "slot_commit.schedule_idx"],
            name="fk_slot_outcome_slot_commit",
        ),
        sa.CheckConstraint("passed IN (0, 1)", name="ck_slot_outcome_passed"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.execute(
        """
        INSERT INTO slot_outcome
        SELECT slot.run_no, slot.variant_idx, slot.task_idx, slot.repl_idx, slot.schedule_idx,
            slot_commit.status, score.verdict,
            CASE
                WHEN slot_commit.status = 'completed' THEN score.verdict = 'pass'
                WHEN slot_commit.status IN ('agent_error', 'agent_timeout')
                    THEN coalesce(score.verdict = 'pass', 0)
                WHEN slot_commit.status = 'grade_error' AND trial.agent_exit_status <> 0 THEN 0
            END,
            score.primary_metric_name, score.primary_metric_value, trial.duration_ms
        FROM slot
        JOIN slot_commit
          ON slot_commit.run_no = slot.run_no AND slot_commit.schedule_idx = slot.schedule_idx
        LEFT JOIN trial
          ON trial.run_no = slot.run_no AND trial.schedule_idx = slot.schedule_idx
        LEFT JOIN score
          ON score.run_no = slot.run_no AND score.schedule_idx = slot.schedule_idx
          AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'
        ORDER BY slot.run_no, slot.variant_idx, slot.task_idx, slot.repl_idx
        """
    )
