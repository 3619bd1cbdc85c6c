"""Budgets: limits of what a run may spend, which every coordinator of the run keeps to.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "budget",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("amount", sa.REAL(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "kind", name="pk_budget"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_budget_run"),
        sa.CheckConstraint("kind IN ('cost_usd', 'tokens')", name="ck_budget_kind"),
        sa.CheckConstraint("amount >= 0", name="ck_budget_amount"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
