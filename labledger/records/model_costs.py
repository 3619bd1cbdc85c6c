"""What providers charge for tokens, and the metrics of an attempt that its calls to models give.

A price is in micro-dollars for a million tokens; tokens times price is a cost in picodollars. These
are integers, so that a cost is exact here and in SQL. What is not known is None, and never 0.
Prices come from the experiment, and from the package genai-prices for models of which it says
nothing.

Where the gateway counted, it alone says what an attempt used: `cost_usd`, `tokens_in` and
`tokens_out` are its metrics. What the experiment takes under these names from the agent's result or
events is the agent's claim, and is stored as `claimed_cost_usd` and so on, so that budgets, views
and comparisons never mistake one for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from labledger.records.attempt_result import Metric
from labledger.records.canonical_json import digest
from labledger.records.json_codec import Section
from labledger.records.model_calls import ModelCall, Usage

if TYPE_CHECKING:
    from datetime import datetime

    from labledger.records.model_grants import ProviderConfig

PICODOLLARS = 10**12
"""How many picodollars a dollar has."""
PRICED = ("input", "output", "cache_read", "cache_write", "cache_write_1h")
"""The kinds of tokens that have a price: fields of `Usage` and of `ModelPrice`."""


@dataclass(frozen=True, slots=True)
class ModelPrice(Section):
    """What a model's tokens cost in requests of a certain size, in micro-dollars for a million."""

    provider: str
    model: str
    """The name that requests ask for."""
    from_tokens: int = 0
    """It holds for requests of at least so many tokens, up to the next price of the model."""
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"from_tokens", *PRICED})

    def cost_of(self, usage: Usage) -> int | None:
        """Return the cost in picodollars; None if a kind of tokens was used that has no price."""
        cost = 0
        for kind in PRICED:
            tokens, price = getattr(usage, kind), getattr(self, kind)
            if tokens and price is None:
                return None
            cost += tokens * (price or 0)
        return cost


@dataclass(frozen=True)
class PriceTable:
    """The prices that a run goes by."""

    prices: tuple[ModelPrice, ...] = ()
    source: str = ""
    """Where they come from, such as a package and its version."""

    @cached_property
    def digest(self) -> str:
        """The digest of the prices, in any order."""
        return digest([price.as_json() for price in sorted(self.prices, key=price_order)])

    def price_of(self, provider: str, model: str, request_tokens: int = 0) -> ModelPrice | None:
        """Return the price for a request of so many tokens; None if the model has none."""
        price = None
        for one in self._by_model.get((provider, model), ()):
            if one.from_tokens <= request_tokens:
                price = one
        return price

    def cost_of(self, provider: str, model: str, usage: Usage) -> int | None:
        """Return the cost of a call in picodollars; None if it is not known.

        No tokens cost nothing, whatever the model.
        """
        if not usage.total:
            return 0
        price = self.price_of(provider, model, usage.request)
        return None if price is None else price.cost_of(usage)

    def of_models(self, models: Iterable[tuple[str, str]]) -> PriceTable:
        """Return the prices of some models, each a provider and a name, from the same source."""
        wanted = set(models)
        kept = (price for price in self.prices if (price.provider, price.model) in wanted)
        return PriceTable(tuple(sorted(kept, key=price_order)), self.source)

    @cached_property
    def _by_model(self) -> dict[tuple[str, str], list[ModelPrice]]:
        """The prices of each model, those of small requests first."""
        by_model: dict[tuple[str, str], list[ModelPrice]] = {}
        for price in sorted(self.prices, key=price_order):
            by_model.setdefault((price.provider, price.model), []).append(price)
        return by_model


NO_PRICES = PriceTable()


def price_order(price: ModelPrice) -> tuple[str, str, int]:
    """Return by what prices are sorted: those of small requests come first."""
    return price.provider, price.model, price.from_tokens


SOURCE = "gateway"
"""The `source` of metrics that the gateway counted."""
USUAL_METRICS = ("tokens_in", "tokens_out", "cost_usd")
"""Metrics that mean the same in every experiment; the gateway counts them where there is one."""
CLAIMED = "claimed_"
"""Prefix of the id of a metric that the agent claims and the gateway counts, too."""


def model_metrics(calls: Sequence[ModelCall], prices: PriceTable) -> tuple[Metric, ...]:
    """Return what an attempt used: the tokens of its requests and answers, and their cost in USD.

    Tokens are known if those of every call are, and the cost if every call's cost is; an unknown
    one gives no metric. An attempt without a call used nothing.
    """
    metrics = []
    charged = [call.charged for call in calls]
    known = [usage for usage in charged if usage is not None]
    if len(known) == len(charged):
        metrics.append(Metric("tokens_in", SOURCE, sum(usage.request for usage in known)))
        metrics.append(Metric("tokens_out", SOURCE, sum(usage.output for usage in known)))
    cost, is_complete = known_cost(calls, prices)
    if is_complete:
        metrics.append(Metric("cost_usd", SOURCE, cost / PICODOLLARS))
    return tuple(metrics)


def known_cost(calls: Iterable[ModelCall], prices: PriceTable) -> tuple[int, bool]:
    """Return what the calls cost in picodollars as far as it is known, and whether all of it is."""
    total, is_complete = 0, True
    for call in calls:
        cost = call_cost(call, prices)
        total += cost or 0
        is_complete &= cost is not None
    return total, is_complete


def call_cost(call: ModelCall, prices: PriceTable) -> int | None:
    """Return what a call cost in picodollars; None if that is not known. A replayed one cost 0."""
    if call.replayed:
        return 0
    usage = call.charged
    return None if usage is None else prices.cost_of(call.provider, call.model, usage)


def beside_counted(own: Iterable[Metric], counted: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics of an attempt whose calls the gateway counted: its own, then `counted`.

    Its own metrics under the names of `USUAL_METRICS` become claims.
    """
    claims = (
        replace(metric, metric_id=CLAIMED + metric.metric_id)
        if metric.metric_id in USUAL_METRICS
        else metric
        for metric in own
    )
    return (*claims, *counted)


# -- known prices

_PRICE_FIELDS = {
    "input": ("input_mtok",),
    "output": ("output_mtok",),
    "cache_read": ("cache_read_mtok", "input_mtok"),
    "cache_write": ("cache_write_mtok", "input_mtok"),
    "cache_write_1h": ("cache_write_1h_mtok", "cache_write_mtok", "input_mtok"),
}
"""For each kind of token, the package's price fields in order: the first that is set is used."""


def price_table(
    models: Iterable[tuple[ProviderConfig, str]], own: Iterable[ModelPrice], at: datetime
) -> PriceTable:
    """Return the prices of models at a time, from an experiment's own prices and the package.

    A provider is found by its name, and by its address if the package has no such name. It takes
    a tenth of a second to import the package. Raises nothing for a model without a price.
    """
    # Imported late: most runs have no models.
    from importlib.metadata import version

    own = tuple(own)
    replaced = {(price.provider, price.model) for price in own}
    wanted = [(p, model) for p, model in models if (p.name, model) not in replaced]
    known = [price for provider, model in wanted for price in _prices(provider, model, at)]
    source = f"genai-prices {version('genai-prices')}"
    return PriceTable((*own, *known), f"the experiment, {source}" if own else source)


def _prices(provider: ProviderConfig, model: str, at: datetime) -> list[ModelPrice]:
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    for name, address in ((provider.name, None), (None, provider.upstream)):
        try:
            _, info = snapshot.find_provider_model(model, None, name, address)
        except LookupError:
            continue
        # The snapshot is of a release: nothing here asks the network.
        prices = info.get_prices(at).__dict__
        return [_price(provider.name, model, prices, start) for start in _starts(prices)]
    return []


def _starts(prices: Mapping[str, Any]) -> list[int]:
    """Return the numbers of request tokens from which other prices apply."""
    tiers = (tier for price in prices.values() for tier in getattr(price, "tiers", ()))
    # The package's tiers begin above their start.
    return sorted({0, *(tier.start + 1 for tier in tiers)})


def _price(provider: str, model: str, prices: Mapping[str, Any], start: int) -> ModelPrice:
    values = {kind: _micros(prices, keys, start) for kind, keys in _PRICE_FIELDS.items()}
    return ModelPrice(provider, model, start, **values)


def _micros(prices: Mapping[str, Any], keys: tuple[str, ...], start: int) -> int | None:
    """Return the first price that there is, in micro-dollars for a million tokens."""
    price = next((prices[key] for key in keys if prices.get(key) is not None), None)
    if price is None:
        return None
    if hasattr(price, "tiers"):
        held = [tier.price for tier in price.tiers if tier.start < start]
        price = held[-1] if held else price.base
    from decimal import Decimal

    return int((Decimal(price) * 1_000_000).to_integral_value())
