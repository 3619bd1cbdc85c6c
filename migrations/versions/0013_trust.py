"""How many rows a run has in the tables that the chain of commits does not cover.

The views, which every upgrade creates again, count a slot whose agent broke its grader as not
passed.

Revision ID: 0013
Revises: 0012
"""

import sqlalchemy as sa
from alembic import op

from labledger.ledger.database import statements

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


TALLIED = (
    "lease",
    "budget",
    "run_note",
    "run_tag",
    "run_setting",
    "host_fence",
    "dispatch",
    "staged_result",
)


def upgrade() -> None:
    op.create_table(
        "run_tally",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column("row_count", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("row_digest", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "table_name", name="pk_run_tally"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_run_tally_run"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    connection = op.get_bind()
    runs = connection.execute(sa.text("SELECT run_no FROM run")).scalars().all()
    for run_no in runs:
        for table in TALLIED:
            digests = connection.execute(
                sa.text(f"SELECT row_digest FROM {table} WHERE run_no = :run_no"),  # noqa: S608
                {"run_no": run_no},
            ).scalars()
            row = (run_no, table, *statements.tally(digests))
            names = ("run_no", "table_name", "row_count", "content")
            connection.execute(
                sa.text(
                    "INSERT INTO run_tally (run_no, table_name, row_count, content, row_digest) "
                    "VALUES (:run_no, :table_name, :row_count, :content, :row_digest)"
                ),
                dict(zip(names, row, strict=True))
                | {"row_digest": statements.row_digest("run_tally", *row)},
            )
