"""The pace of requests with one key, and the time for which it holds an attempt's agent back.

How many requests may be under way grows by one for each round that the provider answers, and falls
to seven tenths when it says that a limit is met (additive increase, multiplicative decrease). Then
all requests pause, for as long as the provider says, but ten seconds at most: until the
time that it named is over, one request at a time goes out, so that a limit that ended earlier is
noticed, and a long `Retry-After` never stops everything.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LIMITED = frozenset({429, 503, 529})
"""Statuses by which a provider says that it has to be asked more slowly."""
_WRITTEN_EVERY_S = 0.5
"""How often the waited time is written while it runs, in seconds."""


@dataclass(frozen=True, slots=True)
class PaceSettings:
    """How fast requests go, in requests under way and in seconds."""

    first: float = 256.0
    most: float = 1024.0
    pause_s: float = 0.5
    """The first pause where the provider does not say how long; each further one is twice it."""
    longest_pause_s: float = 10.0
    longest_backoff_s: float = 30.0
    jitter: float = 0.25
    """By how much of itself a pause may be longer, at random."""
    patience_s: float = 240.0
    """How long a request waits for limits in all before the agent gets the provider's refusal.

    Agents give a request up after five to ten minutes.
    """
    unreachable_s: float = 30.0
    """How long a provider that cannot be reached is tried again."""
    probe_interval_s: float = 10.0
    """How long after a probe of the gateway's own the next one for the same model may begin."""


class Pace:
    """The requests of one key. For one event loop."""

    def __init__(
        self,
        settings: PaceSettings,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._clock, self._chance = settings, clock, chance
        self.concurrency = settings.first
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._limits_met = 0
        """In a row."""
        self._slowed_at = float("-inf")
        self._paused_until = float("-inf")
        self._careful_until = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(not future.done() for future in self._waiting)

    @property
    def paused_s(self) -> float:
        """For how many seconds no request goes out, or only one at a time."""
        until = max(self._paused_until, self._careful_until)
        return max(0.0, until - self._clock())

    async def enter(self, *, again: bool = False) -> float:
        """Wait until a request may go out, and return when it does, by the clock.

        `again` is for one that met a limit, and goes before those that have not been sent.
        """
        if not self._waiting and self._has_room():
            self.in_flight += 1
            return self._clock()
        future = asyncio.get_running_loop().create_future()
        if again:
            self._waiting.appendleft(future)
        else:
            self._waiting.append(future)
        self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave()
            elif future in self._waiting:
                self._waiting.remove(future)
            raise
        return self._clock()

    def leave(self) -> None:
        """Note that a request has ended, in whichever way."""
        self.in_flight -= 1
        self._wake()

    def answered(self, sent_at: float) -> None:
        """Note that a request that was sent at a time met no limit."""
        if sent_at < self._slowed_at:
            return
        self._limits_met = 0
        self._careful_until = float("-inf")
        if 2 * self.in_flight >= self.concurrency:
            grown = self.concurrency + 1 / self.concurrency
            self.concurrency = min(grown, self._settings.most)
        self._wake()

    def limited(self, sent_at: float, retry_after_s: float | None) -> None:
        """Note that a limit was met by a request that was sent at a time."""
        now = self._clock()
        if sent_at >= self._slowed_at:
            # Requests that were sent together meet a limit together, which is one event.
            self.concurrency = max(1.0, 0.7 * min(self.concurrency, self.in_flight))
            self._slowed_at = now
            self._limits_met += 1
        backoff = self._settings.pause_s * 2.0 ** min(self._limits_met - 1, 20)
        wait_s = min(backoff, self._settings.longest_backoff_s)
        if retry_after_s is not None:
            wait_s = retry_after_s
        wait_s *= 1 + self._settings.jitter * self._chance()
        pause_s = min(wait_s, self._settings.longest_pause_s)
        self._paused_until = max(self._paused_until, now + pause_s)
        self._careful_until = max(self._careful_until, now + wait_s)
        self._wake()

    def _has_room(self) -> bool:
        now = self._clock()
        if now < self._paused_until:
            return False
        return self.in_flight < (1 if now < self._careful_until else int(self.concurrency))

    def _wake(self) -> None:
        """Let out what may go, and look again when a pause is over."""
        while self._waiting and self._has_room():
            future = self._waiting.popleft()
            if not future.done():
                self.in_flight += 1
                future.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        until = min(
            (t for t in (self._paused_until, self._careful_until) if t > self._clock()),
            default=None,
        )
        if self._waiting and until is not None:
            delay_s = max(0.001, until - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)


class WaitedTime:
    """The time for which limits of providers held an attempt's agent back. For one event loop.

    It runs while a call waits and no other call of the attempt is under way: an agent that works on
    several things at once is held back only when all of them wait. While it runs, it is written to
    a file of the trial every half second, so that a time limit can leave it out.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`path` is the file, whose time is counted on; with None nothing is written."""
        self._path, self._clock = path, clock
        self._before_s = _read(path)
        self._waiting = self._working = 0
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._written = int(self._before_s * 100)
        self.problem: str | None = None

    @property
    def seconds(self) -> float:
        """The time so far."""
        return self._before_s + (0.0 if self._since is None else self._clock() - self._since)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a call as waiting."""
        self._waiting += 1
        self._update()
        try:
            yield
        finally:
            self._waiting -= 1
            self._update()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a call as under way."""
        self._working += 1
        self._update()
        try:
            yield
        finally:
            self._working -= 1
            self._update()

    def _update(self) -> None:
        runs = self._waiting > 0 and self._working == 0
        if runs and self._since is None:
            self._since = self._clock()
            self._timer = asyncio.get_running_loop().call_later(_WRITTEN_EVERY_S, self._write_again)
        elif not runs and self._since is not None:
            self._before_s, self._since = self.seconds, None
            if self._timer is not None:
                self._timer.cancel()
            self._write()

    def _write_again(self) -> None:
        self._write()
        self._timer = asyncio.get_running_loop().call_later(_WRITTEN_EVERY_S, self._write_again)

    def _write(self) -> None:
        """Replace the file. It need not survive a crash of the machine, which ends the trial."""
        hundredths = int(self.seconds * 100)
        if self._path is None or hundredths == self._written:
            return
        beside = self._path.with_name(f".{self._path.name}")
        try:
            beside.write_text(f"{hundredths}\n", "ascii")
            beside.replace(self._path)
            self._written = hundredths
        except OSError as error:
            self.problem = f"could not write {self._path}: {error.strerror}"


def _read(path: Path | None) -> float:
    try:
        return 0.0 if path is None else int(path.read_text("ascii")) / 100
    except (OSError, ValueError):
        return 0.0
