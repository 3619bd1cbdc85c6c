"""What a call to a model was set to, why it failed, and what it cost beyond its tokens.

Prices get a condition, such as the tier that served a call, which is a part of their key: SQLite
changes a constraint only with a new table.

Revision ID: 0018
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_PRICES = ("input", "output", "cache_read", "cache_write", "cache_write_1h")


def upgrade() -> None:
    for name, kind in (
        ("detail", sa.Text()),
        ("fault", sa.Text()),
        ("effort", sa.Text()),
        ("temperature", sa.REAL()),
        ("service_tier", sa.Text()),
        ("price_condition", sa.Text()),
        ("fees", sa.Integer()),
        ("stated_cost", sa.Integer()),
        ("cost_unknown", sa.Text()),
    ):
        op.add_column("model_call", sa.Column(name, kind, nullable=True))
    _add_conditions_of_prices()


def _add_conditions_of_prices() -> None:
    op.rename_table("model_price", "earlier_model_price")
    op.create_table(
        "model_price",
        *_columns(sa.Integer(), "run_no", "price_idx", "part"),
        *_columns(sa.Text(), "provider", "model"),
        *_columns(sa.Integer(), "from_tokens"),
        *_columns(sa.Integer(), *_PRICES, null=True),
        *_columns(sa.Text(), "source", "digest"),
        *_columns(sa.Integer(), "web_search", null=True),
        *_columns(sa.Text(), "condition"),
        sa.PrimaryKeyConstraint("run_no", "price_idx", name="pk_model_price"),
        sa.UniqueConstraint(
            *("run_no", "provider", "model", "condition", "from_tokens"),
            name="uq_model_price_model",
        ),
        sa.ForeignKeyConstraint(["run_no"], ["run.run_no"], name="fk_model_price_run"),
        sa.CheckConstraint("part >= 1", name="ck_model_price_part"),
        sa.CheckConstraint("from_tokens >= 0", name="ck_model_price_from_tokens"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    kept = ", ".join(
        [
            *("run_no", "price_idx", "part", "provider", "model", "from_tokens"),
            *(*_PRICES, "source", "digest"),
        ]
    )
    op.execute(
        f"INSERT INTO model_price ({kept}, condition) "  # noqa: S608
        f"SELECT {kept}, '' FROM earlier_model_price"
    )
    op.drop_table("earlier_model_price")


def _columns(kind: sa.types.TypeEngine, *names: str, null: bool = False) -> list[sa.Column]:
    return [sa.Column(name, kind, nullable=null) for name in names]
