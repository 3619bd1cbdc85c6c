"""Read what a run's agents used of models, and the prices that it reckons with.

All queries run inside the caller's snapshot. Calls and prices are those of the run whose agents
ran, also for a regrading. The view `variant_usage` counts the committed trials that count; what
trials used that are not committed yet is added from their calls, by the same rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from labledger.ledger.database.connection import Connection
from labledger.records.json_codec import JsonForm
from labledger.records.json_schemas import Count, NonNegative, Text
from labledger.records.model_calls import CallState, ModelCall
from labledger.records.model_costs import PICODOLLARS, ModelPrice, PriceTable, call_cost

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

    variant_id: Text
    provider: Text
    model: Text
    """The model that was asked for."""
    trials: Count = 0
    calls: Count = 0
    """Calls that the provider was asked."""
    refused: Count = 0
    """Calls that the gateway refused."""
    failed: Count = 0
    """Calls that got no answer, a part of one, or an error."""
    unknown: Count = 0
    """Calls that may have been charged, and whose tokens are not known."""
    tokens_in: Count | None = None
    """All tokens of the requests, cached ones too; None if none are known."""
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    tokens_out: Count | None = None
    reasoning_tokens: Count | None = None
    """The part of `tokens_out` that is reasoning."""
    cost_usd: NonNegative | None = None
    """What is known of the cost; None if nothing is."""
    cost_unknown: Count = 0
    """Calls whose cost is not known."""
    waited_s: NonNegative = 0
    """How long the gateway held calls back for limits of the provider."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.variant_id, self.provider, self.model


_NAMES = tuple(field.name for field in fields(ModelUse))
_SUMMED = _NAMES[3:]
USAGE_SQL = f"SELECT {', '.join(_NAMES)} FROM variant_usage WHERE run_id = :run"  # noqa: S608
"""The SQL of what the variants of a run used, as the columns of `ModelUse`."""
_ROOT_SQL = "SELECT root_id FROM grading WHERE run_no = ?"
_STAGED_SQL = """
SELECT schedule_idx, payload FROM staged_result
WHERE run_no = ? AND payload LIKE '%"model_calls":%' ORDER BY schedule_idx, attempt"""


def read_model_usage(connection: Connection, run_no: int) -> list[ModelUse]:
    """Return what each variant of a run used of each model, in the order of the variants."""
    root_id = connection.execute(_ROOT_SQL, (run_no,)).scalar_one()
    return [ModelUse(*row) for row in connection.execute(USAGE_SQL, {"run": root_id})]


def read_staged_calls(connection: Connection, run_no: int) -> dict[int, list[ModelCall]]:
    """Return the calls of the results that wait for their commit, by slot."""
    rows = connection.execute(_STAGED_SQL, (run_no,))
    return {
        idx: [
            ModelCall.from_json(call)
            for _, payload in group
            for call in json.loads(payload).get("model_calls", ())
        ]
        for idx, group in groupby(rows, key=itemgetter(0))
    }


def use_of_trial(
    variant_id: str, calls: Iterable[ModelCall], prices: PriceTable
) -> Iterator[ModelUse]:
    """Yield what one trial of a variant used of each model."""
    of_model: dict[tuple[str, str], ModelUse] = {}
    for call in calls:
        key = call.provider, call.model
        use = ModelUse(variant_id, *key, **_of_call(call, call_cost(call, prices)))
        of_model[key] = _plus(of_model[key], use) if key in of_model else use
    yield from (replace(use, trials=1) for use in of_model.values())


def _of_call(call: ModelCall, cost: int | None) -> dict[str, Any]:
    is_error = call.state is CallState.ANSWERED and (call.status or 0) >= 400
    columns: dict[str, Any] = {
        "calls": int(call.asked),
        "refused": int(not call.asked),
        "failed": int(is_error or call.state in {CallState.FAILED, CallState.CUT}),
        "unknown": int(call.charged is None),
        "cost_usd": None if cost is None else cost / PICODOLLARS,
        "cost_unknown": int(cost is None),
        "waited_s": call.waited_ms / 1000,
    }
    if (usage := call.usage) is not None:
        columns |= {
            "tokens_in": usage.request,
            "cache_read_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write + usage.cache_write_1h,
            "tokens_out": usage.output,
            "reasoning_tokens": usage.reasoning,
        }
    return columns


def together(uses: Iterable[ModelUse]) -> list[ModelUse]:
    """Return what was used of each model by each variant, in the order of the first of each."""
    sums: dict[tuple[str, str, str], ModelUse] = {}
    for use in uses:
        sums[use.key] = _plus(sums[use.key], use) if use.key in sums else use
    return list(sums.values())


def _plus(one: ModelUse, other: ModelUse) -> ModelUse:
    sums: dict[str, Any] = {
        name: _sum(getattr(one, name), getattr(other, name)) for name in _SUMMED
    }
    return replace(one, **sums)


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
