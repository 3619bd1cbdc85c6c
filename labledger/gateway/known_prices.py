"""What the package genai-prices knows of prices, as a table for the models of an experiment.

Where a model has a price for its input but none for cached tokens, providers charge them as input;
where it has no price at all, none is made up. What an experiment says replaces what the package
knows of a model. What a call costs is computed in `records.model_costs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from importlib.metadata import version
from typing import Any

from labledger.records.model_costs import ModelPrice, PriceTable
from labledger.records.model_grants import ProviderConfig

_KEYS = {
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
    values = {kind: _micros(prices, keys, start) for kind, keys in _KEYS.items()}
    return ModelPrice(provider, model, start, **values)


def _micros(prices: Mapping[str, Any], keys: tuple[str, ...], start: int) -> int | None:
    """Return the first price that there is, in micro-dollars for a million tokens."""
    price = next((prices[key] for key in keys if prices.get(key) is not None), None)
    if price is None:
        return None
    if hasattr(price, "tiers"):
        held = [tier.price for tier in price.tiers if tier.start < start]
        price = held[-1] if held else price.base
    return int((Decimal(price) * 1_000_000).to_integral_value())
