"""Which trials count as not passed although they have no verdict: the view `outcome`.

A trial's evidence may say so since this revision. Views are created again by every upgrade, and no
table changes: slots of earlier revisions count as before.

Revision ID: 0021
Revises: 0020
"""

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change no table."""
