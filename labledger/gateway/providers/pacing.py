"""The pace of requests with one key, shared fairly among the attempts that use it.

The number of open requests grows by one for each answered round, and falls to seven tenths at a
limit (additive increase, multiplicative decrease). `Pace` explains how attempts share it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

LIMITED = frozenset({429, 503, 529})
"""Statuses by which a provider asks for fewer requests."""
_LONGEST_WAIT_S = 3600.0
"""The longest wait that a provider can ask for, in seconds."""
_RECENT_S = 60.0
"""How long the last outcome of a lane is evidence about the key, in seconds."""


@dataclass(frozen=True, slots=True)
class PaceSettings:
    """Limits on open requests and, in seconds, on waits."""

    first: float = 256.0
    most: float = 1024.0
    pause_s: float = 0.5
    """The first pause after a limit. Each further pause in a row is twice as long."""
    longest_pause_s: float = 10.0
    longest_backoff_s: float = 30.0
    jitter: float = 0.25
    """The largest random extension of a pause, as a fraction of the pause."""
    patience_s: float = 240.0
    """How long a request waits for limits in total. Then the agent gets the provider's refusal.

    Agents give up a request after five to ten minutes.
    """
    unreachable_s: float = 30.0
    """How long the gateway retries a provider that cannot be reached."""
    probe_interval_s: float = 10.0
    """The shortest time between two probes for the same model."""
    journal_s: float = 120.0
    """How long a call waits for a journal that cannot be written."""


@dataclass
class _Slowdown:
    """The effect of limits in a row on one lane, or on all lanes."""

    settings: PaceSettings
    limits_met: int = 0
    """How many limits were met in a row."""
    slowed_at: float = float("-inf")
    paused_until: float = float("-inf")
    careful_until: float = float("-inf")

    def meet(self, sent_at: float, now: float, retry_after_s: float | None, chance: float) -> None:
        """Note a limit. Requests that were sent before the last slowdown do not count again."""
        if sent_at >= self.slowed_at:
            self.slowed_at = now
            self.limits_met += 1
        backoff = self.settings.pause_s * 2.0 ** min(self.limits_met - 1, 20)
        wait_s = min(backoff, self.settings.longest_backoff_s)
        wait_s = max(wait_s, min(retry_after_s or 0.0, _LONGEST_WAIT_S))
        wait_s *= 1 + self.settings.jitter * chance
        pause_s = min(wait_s, self.settings.longest_pause_s)
        self.paused_until = max(self.paused_until, now + pause_s)
        self.careful_until = max(self.careful_until, now + wait_s)

    def answered(self, sent_at: float) -> None:
        """Note that a request met no limit."""
        if sent_at >= self.slowed_at:
            self.limits_met = 0
            self.careful_until = float("-inf")

    def has_room(self, now: float, in_flight: int) -> bool:
        """Return whether one more request may go out."""
        if now < self.paused_until:
            return False
        return in_flight < 1 or now >= self.careful_until

    def next_change(self, now: float) -> float:
        """Return when more requests may be allowed; infinity if waiting changes nothing."""
        times = (t for t in (self.paused_until, self.careful_until) if t > now)
        return min(times, default=float("inf"))


@dataclass
class _Lane:
    """The requests of one attempt with the key."""

    slowdown: _Slowdown
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    in_flight: int = 0
    was_limited: bool | None = None
    """Whether its last outcome was a limit; None before the first."""
    outcome_at: float = float("-inf")
    since: float = 0.0
    """When it began to wait for its next request."""

    def note_outcome(self, now: float, *, limited: bool) -> None:
        self.was_limited, self.outcome_at = limited, now


class Pace:
    """The requests of one key. For one event loop.

    Each attempt has a lane, named by any object that lives as long as the attempt.

    - A lane whose request meets a limit pauses for a backoff that doubles with each limit in a row,
      or for as long as the provider asks, but at most ten seconds. Then, until the provider's time
      is over, it sends one request at a time, to notice a limit that ended earlier.
    - Other lanes continue, because a request can provoke a limit of its own. If more lanes met a
      limit than got answers, the key itself is at its limit, and all lanes slow down together. A
      lane that has met no limit may still try, with one request at a time.
    - Lanes alternate, however many requests each has. A lane without a place that met no limit gets
      one if another lane has several, and never waits longer than ten seconds.
    """

    def __init__(
        self,
        settings: PaceSettings,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._clock, self._chance = settings, clock, chance
        self.concurrency = settings.first
        self.in_flight = 0
        self._busy_lanes = 0
        """How many lanes have requests in progress."""
        self._all = _Slowdown(settings)
        self._lanes: WeakKeyDictionary[Hashable, _Lane] = WeakKeyDictionary()
        self._turns: deque[_Lane] = deque()
        """The lanes that wait. The first one is served next."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return sum(not future.done() for lane in self._turns for future in lane.waiting)

    @property
    def paused_s(self) -> float:
        """The seconds for which no request is sent, or only one at a time."""
        until = max(self._all.paused_until, self._all.careful_until)
        return max(0.0, until - self._clock())

    def _lane(self, attempt: Hashable) -> _Lane:
        lane = self._lanes.get(attempt)
        if lane is None:
            lane = self._lanes[attempt] = _Lane(_Slowdown(self._settings))
        return lane

    async def enter(self, attempt: Hashable) -> float:
        """Wait until a request of an attempt may be sent. Return the time, by the clock."""
        lane = self._lane(attempt)
        future = asyncio.get_running_loop().create_future()
        if not lane.waiting:
            self._turns.append(lane)
            lane.since = self._clock()
        lane.waiting.append(future)
        self.wake()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave(attempt)
            elif future in lane.waiting:
                lane.waiting.remove(future)
                if not lane.waiting:
                    self._turns.remove(lane)
            raise
        return self._clock()

    def leave(self, attempt: Hashable) -> None:
        """Note that a request has ended, with or without success."""
        lane = self._lane(attempt)
        self.in_flight -= 1
        lane.in_flight -= 1
        self._busy_lanes -= lane.in_flight == 0
        self.wake()

    def answered(self, attempt: Hashable, sent_at: float) -> None:
        """Note that a request met no limit."""
        lane = self._lane(attempt)
        lane.note_outcome(self._clock(), limited=False)
        lane.slowdown.answered(sent_at)
        if sent_at >= self._all.slowed_at:
            self._all.answered(sent_at)
            self._all.paused_until = float("-inf")
            if 2 * self.in_flight >= self.concurrency:
                grown = self.concurrency + 1 / self.concurrency
                self.concurrency = min(grown, self._settings.most)
        self.wake()

    def limited(self, attempt: Hashable, sent_at: float, retry_after_s: float | None) -> None:
        """Note that a request met a limit. The provider may ask to wait `retry_after_s`."""
        now, lane, chance = self._clock(), self._lane(attempt), self._chance()
        lane.note_outcome(now, limited=True)
        lane.slowdown.meet(sent_at, now, retry_after_s, chance)
        if self._is_shared(now):
            if sent_at >= self._all.slowed_at:
                self.concurrency = max(1.0, 0.7 * min(self.concurrency, self.in_flight))
            self._all.meet(sent_at, now, retry_after_s, chance)
        self.wake()

    def _is_shared(self, now: float) -> bool:
        """Return whether, by their last outcomes, more lanes met a limit than got an answer."""
        recent = [
            lane.was_limited for lane in self._lanes.values() if now - lane.outcome_at < _RECENT_S
        ]
        return recent.count(True) > recent.count(False)

    def _has_room(self, lane: _Lane, now: float) -> bool:
        if not lane.slowdown.has_room(now, lane.in_flight):
            return False
        tries_alone = not lane.was_limited and lane.in_flight == 0
        if tries_alone and now >= lane.since + self._settings.longest_pause_s:
            return True
        if self.in_flight >= int(self.concurrency):
            # No lane has several places while this one has none.
            return tries_alone and self.in_flight > self._busy_lanes
        # Long answers of one attempt must not take all places.
        if len(self._lanes) > 1 and lane.in_flight >= max(1.0, self.concurrency / 2):
            return False
        return tries_alone or self._all.has_room(now, self.in_flight)

    def wake(self) -> None:
        """Send the requests that may be sent, one of each lane in turn. Check again later."""
        now = self._clock()
        passed = 0
        while passed < len(self._turns):
            lane = self._turns[0]
            if not self._has_room(lane, now):
                self._turns.rotate(-1)
                passed += 1
                continue
            passed = 0
            future = lane.waiting.popleft()
            self._turns.popleft()
            if lane.waiting:
                self._turns.append(lane)
            if not future.done():
                self._busy_lanes += lane.in_flight == 0
                self.in_flight += 1
                lane.in_flight += 1
                lane.since = now
                future.set_result(None)
        self._look_again(now)

    def _look_again(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        until = self._all.next_change(now)
        for lane in self._turns:
            patient_until = lane.since + self._settings.longest_pause_s
            times = (lane.slowdown.next_change(now), patient_until)
            until = min(until, *(t for t in times if t > now), float("inf"))
        if self._turns and until < float("inf"):
            delay_s = max(0.001, until - now)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.wake)
