"""The view skipped_tasks, and how many tasks each run leaves out. No table changes.

Revision ID: 0020
Revises: 0019
"""

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing: every upgrade creates the views again."""
