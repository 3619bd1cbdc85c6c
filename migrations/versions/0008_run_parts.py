"""Parts that extend a run's schedule, and slots that supersede earlier ones of the same cell.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_part",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("first_idx", sa.Integer(), nullable=False),
        sa.Column("variant_count", sa.Integer(), nullable=False),
        sa.Column("task_count", sa.Integer(), nullable=False),
        sa.Column("slot_count", sa.Integer(), nullable=False),
        sa.Column("resolved", sa.Text(), nullable=True),
        sa.Column("authored", sa.Text(), nullable=True),
        sa.Column("run_digest", sa.Text(), nullable=True),
        sa.Column("source_path", sa.Text(), nullable=True),
        sa.Column("images", sa.Text(), nullable=True),
        sa.Column("because", sa.Text(), nullable=True),
        sa.Column("selection", sa.Text(), nullable=True),
        sa.Column("labledger_version", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "part", name="pk_run_part"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_run_part_run"),
        sa.CheckConstraint("part >= 2", name="ck_run_part_part"),
        sa.CheckConstraint("kind IN ('extended', 'rerun')", name="ck_run_part_kind"),
        sa.CheckConstraint("slot_count >= 1", name="ck_run_part_slot_count"),
        sa.CheckConstraint("variant_count >= 0 AND task_count >= 0", name="ck_run_part_counts"),
        sa.CheckConstraint(
            "(kind = 'extended') = (resolved IS NOT NULL) "
            "AND (resolved IS NULL) = (authored IS NULL) "
            "AND (resolved IS NULL) = (run_digest IS NULL) "
            "AND (resolved IS NULL) = (source_path IS NULL) "
            "AND (resolved IS NULL) = (images IS NULL)",
            name="ck_run_part_revision",
        ),
        sqlite_strict=True,
    )
    # SQLite cannot change a constraint: a new table takes the old one's place. Foreign keys are
    # off during an upgrade, and references to `slot` are by name.
    op.create_table(
        "new_slot",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("schedule_idx", sa.Integer(), nullable=False),
        sa.Column("variant_idx", sa.Integer(), nullable=False),
        sa.Column("task_idx", sa.Integer(), nullable=False),
        sa.Column("repl_idx", sa.Integer(), nullable=False),
        sa.Column("supersedes", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "schedule_idx", name="pk_slot"),
        sa.UniqueConstraint(
            "run_no", "variant_idx", "task_idx", "repl_idx", "supersedes", name="uq_slot_cell"
        ),
        sa.ForeignKeyConstraint(
            ["run_no", "supersedes"], ["slot.run_no", "slot.schedule_idx"], name="fk_slot_slot"
        ),
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
        sa.CheckConstraint("supersedes < schedule_idx", name="ck_slot_supersedes"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO new_slot "
        "SELECT run_no, schedule_idx, variant_idx, task_idx, repl_idx, NULL FROM slot "
        "ORDER BY run_no, schedule_idx"
    )
    op.drop_table("slot")
    op.execute("ALTER TABLE new_slot RENAME TO slot")
