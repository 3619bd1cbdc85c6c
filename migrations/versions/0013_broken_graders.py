"""A slot whose agent broke its grader counts in the views as not passed. No table changes.

Revision ID: 0013
Revises: 0012
"""

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing: every upgrade creates the views again."""
