"""The view all_trials says on which host a trial ran. No table changes.

Revision ID: 0012
Revises: 0011
"""

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing: every upgrade creates the views again."""
