"""What people ask of a run: requests that its owner applies.

Revision ID: 0016
Revises: 0015
"""

import sqlalchemy as sa
from alembic import op

from labledger.ledger.database import statements

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "control_request",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("request_no", sa.Integer(), nullable=False),
        sa.Column("requested_at", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("because", sa.Text(), nullable=True),
        sa.Column("asked_epoch", sa.Integer(), nullable=False),
        sa.Column("applied_at", sa.Text(), nullable=True),
        sa.Column("applied_epoch", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("row_digest", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "request_no", name="pk_control_request"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_control_request_run"),
        sa.CheckConstraint(
            "kind IN ('pause', 'unpause', 'set', 'stop', 'cancel')",
            name="ck_control_request_kind",
        ),
        sa.CheckConstraint("request_no >= 1", name="ck_control_request_request_no"),
        sa.CheckConstraint(
            "(applied_at IS NULL) = (applied_epoch IS NULL) "
            "AND (applied_at IS NULL) = (outcome IS NULL)",
            name="ck_control_request_applied",
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_control_request_waiting",
        "control_request",
        ["run_no", "request_no"],
        sqlite_where=sa.text("applied_at IS NULL"),
    )
    connection = op.get_bind()
    for run_no in connection.execute(sa.text("SELECT run_no FROM run")).scalars().all():
        row = (run_no, "control_request", 0, statements.NO_ROWS)
        connection.execute(
            sa.text(
                "INSERT INTO run_tally (run_no, table_name, row_count, content, row_digest) "
                "VALUES (:run_no, :table_name, :row_count, :content, :row_digest)"
            ),
            dict(zip(("run_no", "table_name", "row_count", "content"), row, strict=True))
            | {"row_digest": statements.row_digest("run_tally", *row)},
        )
