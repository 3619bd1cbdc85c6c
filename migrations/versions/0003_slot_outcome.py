"""The table `slot_outcome` and three indexes, which make the analysis views fast.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "slot_outcome",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("variant_idx", sa.Integer(), nullable=False),
        sa.Column("task_idx", sa.Integer(), nullable=False),
        sa.Column("repl_idx", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
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
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.execute(
        """
        INSERT INTO slot_outcome
        SELECT slot.run_no, slot.variant_idx, slot.task_idx, slot.repl_idx, slot.schedule_idx,
            slot_commit.status, score.verdict, score.primary_metric_name,
            score.primary_metric_value, trial.duration_ms
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
    op.create_index("ix_run_experiment_id", "run", ["experiment_id"])
    op.create_index("ix_run_task_task_id", "run_task", ["task_id"])
    op.create_index(
        "ix_metric_usual",
        "metric",
        ["run_no", "metric_id", "schedule_idx", "value"],
        sqlite_where=sa.text(
            "metric_id = 'tokens_in' OR metric_id = 'tokens_out' OR metric_id = 'cost_usd'"
        ),
    )
