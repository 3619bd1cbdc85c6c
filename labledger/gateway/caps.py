"""Caps on what calls may use: of a trial, of its variant and of its run.

Before a call its worst case is reserved in every account. One that would exceed a cap even if no
other call were under way is refused; one that would exceed it only together with those under way
waits until one of them has ended. A call whose usage stays unknown counts with its worst case,
so that a cap holds to the last request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labledger.gateway.families.family import Asked
from labledger.gateway.status import CallTotals
from labledger.records.model_calls import NO_TOKENS, ModelCall, Usage
from labledger.records.model_grants import CallLimits
from labledger.records.model_metrics import call_cost
from labledger.records.model_prices import PICODOLLARS, PriceTable


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The most that a call can use."""

    usage: Usage
    cost: int | None
    """In picodollars; None if the model has no price."""


def worst_case(asked: Asked, provider: str, unstated_output: int, prices: PriceTable) -> WorstCase:
    """Return the most that a request can use and cost."""
    if asked.counts_tokens:
        return WorstCase(NO_TOKENS, 0)
    output = (asked.max_output or unstated_output) * asked.answers
    request = asked.request_tokens
    price = prices.price_of(provider, asked.model, request)
    worst = WorstCase(Usage(request, output=output), None)
    for usage in (
        worst.usage,
        Usage(cache_write=request, output=output),
        Usage(cache_write_1h=request, output=output),
    ):
        cost = None if price is None else price.cost_of(usage)
        if cost is not None and cost > (worst.cost or -1):
            worst = WorstCase(usage, cost)
    return worst


class CapReached(Exception):
    """A call would exceed a cap. The text is for the agent's log."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class Account:
    """What some attempts used together, and what their calls under way may still use."""

    def __init__(self, name: str, totals: CallTotals | None = None) -> None:
        self.name = name
        self.totals = totals or CallTotals()
        self.in_flight = 0
        self._tokens = 0
        self._cost = 0
        self._waiting: dict[asyncio.Event, None] = {}
        """Those who wait, in their order."""

    def add(self, call: ModelCall, cost: int | None, most: int | None) -> None:
        """Count a call that has ended."""
        self.totals = self.totals.plus_call(call, cost, most)

    def hold(self, worst: WorstCase, sign: int) -> None:
        """Reserve a worst case, or with `sign` -1 release it."""
        self.in_flight += sign
        self._tokens += sign * worst.usage.total
        self._cost += sign * (worst.cost or 0)
        if sign < 0:
            for event in self._waiting:
                event.set()

    def excess(self, limits: CallLimits, worst: WorstCase, *, alone: bool) -> CapReached | None:
        """Return which cap a call would exceed, `alone` or with the calls under way."""
        tokens, cost = (0, 0) if alone else (self._tokens, self._cost)
        if limits.requests is not None and self.totals.calls + self.in_flight >= limits.requests:
            return self._reached("requests", f"{limits.requests:,} requests")
        tokens += self.totals.spent_tokens + worst.usage.total
        if limits.tokens is not None and tokens > limits.tokens:
            return self._reached("tokens", f"{limits.tokens:,} tokens")
        if limits.usd is not None and worst.cost is not None:
            cost += self.totals.spent_cost + worst.cost
            if cost > limits.usd * PICODOLLARS:
                return self._reached("usd", f"${limits.usd:g}")
        return None

    def _reached(self, kind: str, cap: str) -> CapReached:
        message = f"the next request may exceed the cap of {cap} of this {self.name}"
        return CapReached(f"cap_{kind}", message)

    @contextmanager
    def changes(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set when a call under way has ended."""
        event = asyncio.Event()
        self._waiting[event] = None
        try:
            yield event
        finally:
            del self._waiting[event]


class Caps:
    """The caps of one attempt, in the accounts that it shares with others."""

    def __init__(self, accounts: Iterable[tuple[Account, CallLimits]], prices: PriceTable) -> None:
        self._accounts = tuple(accounts)
        self._prices = prices

    async def reserve(self, worst: WorstCase) -> None:
        """Reserve a worst case, as soon as calls under way leave room. Raises `CapReached`."""
        while (full := self._full(worst)) is not None:
            with full.changes() as changed:
                await changed.wait()
        for account, _ in self._accounts:
            account.hold(worst, 1)

    def _full(self, worst: WorstCase) -> Account | None:
        """Return an account that has no room now. Raises `CapReached` if one will have none."""
        for account, limits in self._accounts:
            if limits.usd is not None and worst.cost is None:
                raise CapReached("no_price", "the model has no price, so that no cap in $ holds")
            if reached := account.excess(limits, worst, alone=True):
                raise reached
        return next(
            (
                account
                for account, limits in self._accounts
                if account.excess(limits, worst, alone=False)
            ),
            None,
        )

    def release(self, worst: WorstCase) -> None:
        """Give a reservation back."""
        for account, _ in self._accounts:
            account.hold(worst, -1)

    def add(self, call: ModelCall) -> None:
        """Count a call that has ended, in all accounts.

        A replayed one counts against caps with what it cost when it was recorded: the agent is to
        meet the same caps.
        """
        counted = call.charged if call.replayed else None
        counted = call.reserved or NO_TOKENS if counted is None else counted
        cost = call_cost(call, self._prices)
        most = self._prices.cost_of(call.provider, call.model, counted)
        for account, _ in self._accounts:
            account.add(call, cost, most)
