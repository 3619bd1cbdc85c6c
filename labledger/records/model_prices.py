"""What providers charge for tokens, in integers, so that a cost is exact here and in SQL.

A price is in micro-dollars for a million tokens; tokens times price is a cost in picodollars. A
price or a cost that is not known is None, and never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from labledger.records.canonical_json import digest
from labledger.records.json_codec import Section
from labledger.records.model_calls import Usage

PICODOLLARS = 10**12
"""How many picodollars a dollar has."""


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

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"from_tokens", "input", "output", "cache_read", "cache_write", "cache_write_1h"}
    )

    def cost_of(self, usage: Usage) -> int | None:
        """Return the cost in picodollars; None if a kind of tokens was used that has no price."""
        cost = 0
        for tokens, price in (
            (usage.input, self.input),
            (usage.output, self.output),
            (usage.cache_read, self.cache_read),
            (usage.cache_write, self.cache_write),
            (usage.cache_write_1h, self.cache_write_1h),
        ):
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
