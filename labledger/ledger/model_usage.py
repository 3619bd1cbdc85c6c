"""Read what a run's agents used of models, and the prices that it reckons with.

All queries run inside the caller's snapshot. Calls and prices are those of the run whose agents
ran, also for a regrading. The view `variant_usage` counts the calls of trials that count; spending
is all that was spent, also by trials that ran again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from labledger.ledger.database.connection import Connection
from labledger.records.json_codec import JsonForm
from labledger.records.model_prices import ModelPrice, PriceTable

_PRICES_SQL = (
    f"SELECT {', '.join(field.name for field in fields(ModelPrice))} FROM model_price "  # noqa: S608
    "WHERE run_no = ? ORDER BY price_idx"
)
_SOURCES_SQL = "SELECT source FROM model_price WHERE run_no = ? GROUP BY source ORDER BY min(part)"


def read_prices(connection: Connection, run_no: int) -> PriceTable:
    """Return the prices of a run; none for one whose agents ask no models."""
    prices = tuple(ModelPrice(*row) for row in connection.execute(_PRICES_SQL, (run_no,)))
    sources = connection.execute(_SOURCES_SQL, (run_no,)).scalars()
    return PriceTable(prices, "; ".join(sources))


@dataclass(frozen=True, slots=True)
class ModelUse(JsonForm):
    """What the trials of a variant used of a model, as the gateway counted it."""

    variant_id: str
    provider: str
    model: str
    trials: int = 0
    calls: int = 0
    """Calls that the provider was asked."""
    refused: int = 0
    """Calls that the gateway refused."""
    failed: int = 0
    """Calls that got no answer, half of one, or an error."""
    unknown: int = 0
    """Calls that may have been charged, and whose tokens are not known."""
    tokens_in: int | None = None
    """All tokens of the requests, those of caches included; None if none are known."""
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    tokens_out: int | None = None
    reasoning_tokens: int | None = None
    """The part of `tokens_out` that is reasoning."""
    cost_usd: float | None = None
    """What is known of the cost; None if nothing is."""
    cost_unknown: int = 0
    """Calls whose cost is not known."""
    waited_s: float = 0
    """How long the gateway held calls back for limits of the provider."""


_USAGE_SQL = (
    f"SELECT {', '.join(field.name for field in fields(ModelUse))} FROM variant_usage "  # noqa: S608
    "WHERE run_id = (SELECT root_id FROM grading WHERE run_no = ?)"
)


def read_model_usage(connection: Connection, run_no: int) -> list[ModelUse]:
    """Return what each variant of a run used of each model, in the order of the variants."""
    return [ModelUse(*row) for row in connection.execute(_USAGE_SQL, (run_no,))]


def by_variant(usage: Iterable[ModelUse]) -> dict[str, ModelUse]:
    """Return the sums over the models of each variant; `trials` is that of the most used one."""
    sums: dict[str, ModelUse] = {}
    for use in usage:
        known = sums.get(use.variant_id)
        sums[use.variant_id] = use if known is None else _plus(known, use)
    return sums


def _plus(one: ModelUse, other: ModelUse) -> ModelUse:
    sums: dict[str, Any] = {
        name: _sum(getattr(one, name), getattr(other, name)) for name in _SUMMED
    }
    return replace(one, model="", provider="", trials=max(one.trials, other.trials), **sums)


_SUMMED = tuple(field.name for field in fields(ModelUse)[4:])


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
