"""An index of superseding slots. Outcomes and views leave out slots that a rerun superseded.

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_slot_supersedes",
        "slot",
        ["run_no", "supersedes"],
        sqlite_where=sa.text("supersedes IS NOT NULL"),
    )
