"""Notes and tags of runs. A run begins with the tags of its experiment.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_note",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("note_no", sa.Integer(), nullable=False),
        sa.Column("noted_at", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("row_digest", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "note_no", name="pk_run_note"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_run_note_run"),
        sa.CheckConstraint("note_no >= 1", name="ck_run_note_note_no"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_tag",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("tagged_at", sa.Text(), nullable=False),
        sa.Column("row_digest", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "tag", name="pk_run_tag"),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_run_tag_run"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.execute(
        """
        INSERT OR IGNORE INTO run_tag (run_no, tag, tagged_at)
        SELECT run.run_no, tag.value, run.created_at
        FROM run, json_each(run.resolved, '$.experiment.tags') AS tag
        WHERE tag.type = 'text'
        """
    )
