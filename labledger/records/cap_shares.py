"""The shares that the gateways of several hosts have in the caps of a run and of its variants.

The coordinator divides each cap among the hosts. A gateway uses its share and no more; a call for
which that does not suffice waits until the coordinator has taken something from a host that does
not need it. Amounts are those since the beginning of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from labledger.records.json_codec import Section
from labledger.records.model_grants import CallLimits
from labledger.records.model_prices import PICODOLLARS

CAP_SHARES = "cap-shares.json"
"""The file in the folder of a run that has the shares of its hosts."""


@dataclass(frozen=True, slots=True)
class Amounts(Section):
    """So much of a budget."""

    requests: int = 0
    tokens: int = 0
    cost: int = 0
    """In picodollars."""

    def is_within(self, other: Amounts) -> bool:
        """Return whether no number is larger than that of another."""
        return self.combined(min, other) == self

    def combined(self, function: Callable[..., int], *others: Amounts) -> Amounts:
        """Return what a function makes of each of the three numbers, with those of others."""
        return Amounts(
            function(self.requests, *(each.requests for each in others)),
            function(self.tokens, *(each.tokens for each in others)),
            function(self.cost, *(each.cost for each in others)),
        )


NOTHING = Amounts()
ENDLESS = Amounts(1 << 100, 1 << 100, 1 << 100)
"""More than any call can use."""


def cap_of(limits: CallLimits | None) -> Amounts:
    """Return what limits allow."""
    limits = limits or CallLimits()
    return Amounts(
        ENDLESS.requests if limits.requests is None else limits.requests,
        ENDLESS.tokens if limits.tokens is None else limits.tokens,
        ENDLESS.cost if limits.usd is None else int(limits.usd * PICODOLLARS),
    )


@dataclass(frozen=True, slots=True)
class CapShare(Section):
    """What a host may use of one cap."""

    variant_id: str | None
    """The variant, None for the whole run."""
    amount: Amounts
    most: Amounts | None = None
    """What it could get if no other host used any more: a call beyond that is refused. None if that
    is not known."""


@dataclass(frozen=True, slots=True)
class ShareUse(Section):
    """What became of a share."""

    variant_id: str | None
    amount: Amounts
    """What the gateway goes by now: never less than it uses."""
    spent: Amounts
    """What ended calls have used, or may have used."""
    used: Amounts
    """The same, with the most that calls under way can use."""
    wanted: Amounts = NOTHING
    """What the first call needs that waits for more; nothing if none does."""

    @property
    def is_possible(self) -> bool:
        """Whether a gateway can have said it."""
        order = (NOTHING, self.spent, self.used, self.amount)
        return NOTHING.is_within(self.wanted) and all(
            less.is_within(more) for less, more in pairwise(order)
        )
