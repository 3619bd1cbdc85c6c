"""Tombstones of runs that were deleted.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deleted_run",
        sa.Column("deletion_no", sa.Integer(), nullable=False),
        sa.Column("former_run_no", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("experiment_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("genesis_digest", sa.Text(), nullable=False),
        sa.Column("committed", sa.Integer(), nullable=False),
        sa.Column("chain_head", sa.Text(), nullable=False),
        sa.Column("deleted_at", sa.Text(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("deletion_no", name="pk_deleted_run"),
        sa.UniqueConstraint("former_run_no", name="uq_deleted_run_former_run_no"),
        sa.CheckConstraint("deletion_no >= 1", name="ck_deleted_run_deletion_no"),
        sa.CheckConstraint("committed >= 0", name="ck_deleted_run_committed"),
        sqlite_strict=True,
    )
    op.create_index("ix_deleted_run_run_id", "deleted_run", ["run_id"])
