"""Probes: tiny requests by which a gateway sees whether a failure depends on what an agent sent.

All attempts share them: after a failure there is one for each provider, key, API and model, and no
more than one in ten seconds. A failure that comes sooner waits, so that its probe is later than the
failure itself. Probes keep out of the pace of a key, and hold no call back.

A probe that is answered costs some twenty tokens. It is no call of an agent: neither the ledger nor
a cap counts it. Instead, each attempt can cause only so many of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field

import aiohttp

from labledger.gateway.tiny_requests import TinyAnswer, ask_model
from labledger.records.canonical_json import sha256_hex
from labledger.records.model_calls import Api
from labledger.records.model_grants import ProviderConfig

_INTERVAL_S = 10.0
"""How long after a probe the next one of the same place may begin, in seconds."""
_ANSWER_S = 20.0
"""How long a probe may take. One that takes longer shows nothing."""
_FRESH_S = 2.0
"""How long before a failure a probe may have ended that speaks for the failure, too."""
_ANSWERED_PROBES = 20
"""How many probes an attempt can cause that are answered, and so cost something."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a probe asks: a model by an API of a provider, with a key."""

    provider: ProviderConfig
    api: Api
    model: str
    key: str | None = field(repr=False)


_Name = tuple[str, str, Api, str]
"""A place without its key: address, digest of the key, API and model."""


@dataclass(slots=True)
class ProbeAllowance:
    """How many probes an attempt can still cause that are answered."""

    left: int = _ANSWERED_PROBES


@dataclass(slots=True)
class _Shared:
    """The newest probe of a place, for all attempts."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    answer: TinyAnswer | None = None
    ended_at: float = float("-inf")


class Probes:
    """The probes of a gateway. For one event loop."""

    def __init__(self, session: aiohttp.ClientSession, interval_s: float = _INTERVAL_S) -> None:
        self._session, self._interval_s = session, interval_s
        self._shared: dict[_Name, _Shared] = {}
        self._answered: set[_Name] = set()
        self._answered_variants: defaultdict[tuple[str, str], set[_Name]] = defaultdict(set)

    def note_answer(self, place: Place, variant: tuple[str, str]) -> None:
        """Note that a call of an agent was answered there. A variant has its run's id, too."""
        self._answered.add(_name(place))
        self._answered_variants[variant].add(_name(place))

    def has_answered(self, place: Place) -> bool:
        """Return whether a call of any agent was answered there, since this gateway runs."""
        return _name(place) in self._answered

    def only_others_answered(self, place: Place, variant: tuple[str, str]) -> bool:
        """Return whether agents of a variant were answered elsewhere, and never there."""
        places = self._answered_variants.get(variant, set())
        return bool(places) and _name(place) not in places

    async def after(
        self, place: Place, failed_at: float, allowance: ProbeAllowance
    ) -> TinyAnswer | None:
        """Return what a probe of a place found since a call failed there.

        None if the attempt has used up what it can cause. `failed_at` is by `time.monotonic`.
        """
        shared = self._shared.setdefault(_name(place), _Shared())
        async with shared.lock:
            if shared.ended_at >= failed_at - _FRESH_S:
                return shared.answer
            if allowance.left <= 0:
                return None
            await asyncio.sleep(max(0.0, shared.ended_at + self._interval_s - time.monotonic()))
            shared.answer = answer = await ask_model(
                self._session, place.provider, place.key, place.api, place.model, _ANSWER_S
            )
            shared.ended_at = time.monotonic()
            allowance.left -= answer.is_answer
            return answer


def _name(place: Place) -> _Name:
    key = sha256_hex((place.key or "").encode())
    return place.provider.upstream, key, place.api, place.model
