"""Costs of calls that another model served, and errors whose stated usage cannot be right.

Only views change. An upgrade creates every view again.

Revision ID: 0019
Revises: 0018
"""

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change no table."""
