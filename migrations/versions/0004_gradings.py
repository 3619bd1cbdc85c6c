"""Gradings: which generation of scores a run is, and which grading is current.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "grading",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("root_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", name="pk_grading"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_grading_run"),
        sa.UniqueConstraint("root_id", "generation", name="uq_grading_generation"),
        sa.CheckConstraint("generation >= 1", name="ck_grading_generation"),
        sqlite_strict=True,
    )
    op.create_table(
        "counted",
        sa.Column("root_no", sa.Integer(), nullable=False),
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("root_no", name="pk_counted"),
        sa.ForeignKeyConstraint(["root_no"], ["run.run_no"], name="fk_counted_root"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_counted_run"),
        sa.UniqueConstraint("run_no", name="uq_counted_run_no"),
        sqlite_strict=True,
    )
    # No ledger of an earlier revision holds a regrading.
    op.execute("INSERT INTO grading SELECT run_no, run_id, 1 FROM run ORDER BY run_no")
    op.execute("INSERT INTO counted SELECT run_no, run_no FROM run ORDER BY run_no")
