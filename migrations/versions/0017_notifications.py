"""Who is told what happens to a run, and what is to be told.

Revision ID: 0017
Revises: 0016
"""

import sqlalchemy as sa
from alembic import op

from labledger.ledger.database import statements

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

TALLIED = ("run_receiver", "notification")


def texts(*names, null=False):
    return [sa.Column(name, sa.Text(), nullable=null) for name in names]


def upgrade() -> None:
    op.create_table(
        "run_receiver",
        sa.Column("run_no", sa.Integer(), nullable=False),
        *texts("source", "receiver"),
        *texts("row_digest", null=True),
        sa.PrimaryKeyConstraint("run_no", "source", "receiver", name="pk_run_receiver"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_run_receiver_run"),
        sa.CheckConstraint("source IN ('run', 'lab')", name="ck_run_receiver_source"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "notification",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("notification_no", sa.Integer(), nullable=False),
        *texts("receiver", "event", "subject", "happened_at", "payload"),
        sa.Column("attempts", sa.Integer(), nullable=False),
        *texts("due_at", "delivered_at", "problem", "row_digest", null=True),
        sa.PrimaryKeyConstraint("run_no", "notification_no", name="pk_notification"),
        sa.UniqueConstraint(
            *("run_no", "receiver", "event", "subject"), name="uq_notification_receiver"
        ),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_notification_run"),
        sa.CheckConstraint("notification_no >= 1", name="ck_notification_notification_no"),
        sa.CheckConstraint("attempts >= 0", name="ck_notification_attempts"),
        sa.CheckConstraint(
            "due_at IS NULL OR delivered_at IS NULL", name="ck_notification_delivered"
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_notification_waiting",
        "notification",
        ["run_no", "receiver", "notification_no"],
        sqlite_where=sa.text("due_at IS NOT NULL"),
    )
    connection = op.get_bind()
    for run_no in connection.execute(sa.text("SELECT run_no FROM run")).scalars().all():
        for table in TALLIED:
            row = (run_no, table, 0, statements.NO_ROWS)
            names = ("run_no", "table_name", "row_count", "content")
            connection.execute(
                sa.text(
                    "INSERT INTO run_tally (run_no, table_name, row_count, content, row_digest) "
                    "VALUES (:run_no, :table_name, :row_count, :content, :row_digest)"
                ),
                dict(zip(names, row, strict=True))
                | {"row_digest": statements.row_digest("run_tally", *row)},
            )
