"""Where the trials of a run run: its settings, the hosts declared lost, `host` in two views.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_setting",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("row_digest", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "name", name="pk_run_setting"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_run_setting_run"),
        sa.CheckConstraint("name IN ('on', 'window')", name="ck_run_setting_name"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "host_fence",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("declared_at", sa.Text(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("row_digest", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "host", name="pk_host_fence"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_host_fence_run"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
