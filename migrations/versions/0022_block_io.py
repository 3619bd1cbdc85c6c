"""Bytes that trials and attempts read from block devices and wrote to them.

The columns of rows of earlier revisions are null, so that their records keep their text.

Revision ID: 0022
Revises: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("trial", "attempt"):
        for name in ("block_read_bytes", "block_write_bytes"):
            op.add_column(table, sa.Column(name, sa.Integer(), nullable=True))
