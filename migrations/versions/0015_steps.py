"""The view steps says what agents did. No table changes.

Revision ID: 0015
Revises: 0014
"""

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing: every upgrade creates the views again."""
