"""What a call to a model was set to, why it failed, and what it cost beyond its tokens.

Revision ID: 0018
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name, kind in (
        ("detail", sa.Text()),
        ("fault", sa.Text()),
        ("effort", sa.Text()),
        ("temperature", sa.REAL()),
        ("service_tier", sa.Text()),
        ("fees", sa.Integer()),
        ("cost_unknown", sa.Text()),
    ):
        op.add_column("model_call", sa.Column(name, kind, nullable=True))
