"""Calls of agents to models, and the prices that a run reckons them with.

Revision ID: 0014
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

PRICES = ("input", "output", "cache_read", "cache_write", "cache_write_1h")
TOKENS = (
    *("input_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens"),
    *("output_tokens", "reasoning_tokens"),
)


def integers(*names, null=False):
    return [sa.Column(name, sa.Integer(), nullable=null) for name in names]


def texts(*names, null=False):
    return [sa.Column(name, sa.Text(), nullable=null) for name in names]


def upgrade() -> None:
    op.create_table(
        "model_price",
        *integers("run_no", "price_idx", "part"),
        *texts("provider", "model"),
        *integers("from_tokens"),
        *integers(*PRICES, null=True),
        *texts("source", "digest"),
        sa.PrimaryKeyConstraint("run_no", "price_idx", name="pk_model_price"),
        sa.UniqueConstraint(
            *("run_no", "provider", "model", "from_tokens"), name="uq_model_price_model"
        ),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_model_price_run"),
        sa.CheckConstraint("part >= 1", name="ck_model_price_part"),
        sa.CheckConstraint("from_tokens >= 0", name="ck_model_price_from_tokens"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "model_call",
        *integers("run_no", "schedule_idx", "attempt", "call"),
        *texts("started_at", "provider", "api", "model"),
        *texts("model_served", null=True),
        *texts("state"),
        *integers("status", null=True),
        *texts("reason", null=True),
        *integers(*TOKENS, null=True),
        *texts("raw_usage", null=True),
        *integers("first_byte_ms", "duration_ms", null=True),
        *integers("waited_ms"),
        *texts("request_id", "reserved", null=True),
        *integers("replayed"),
        sa.PrimaryKeyConstraint(
            *("run_no", "schedule_idx", "attempt", "call"), name="pk_model_call"
        ),
        sa.ForeignKeyConstraint(
            ["run_no", "schedule_idx", "attempt"],
            ["attempt.run_no", "attempt.schedule_idx", "attempt.attempt"],
            name="fk_model_call_attempt",
        ),
        sa.CheckConstraint("call >= 1", name="ck_model_call_call"),
        sa.CheckConstraint(
            "state IN ('answered', 'failed', 'cut', 'refused', 'unknown')",
            name="ck_model_call_state",
        ),
        sa.CheckConstraint("replayed IN (0, 1)", name="ck_model_call_replayed"),
        sa.CheckConstraint(
            " AND ".join(f"(input_tokens IS NULL) = ({name} IS NULL)" for name in TOKENS[1:]),
            name="ck_model_call_usage",
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
