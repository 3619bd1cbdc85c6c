"""Limit the bytes of requests that a gateway holds in memory, shared fairly among its attempts.

Each attempt has room of its own for a usual request. Larger bodies use a common budget, which
attempts get in turn. A body that does not fit waits, and no later body passes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

OWN_BYTES = 2 << 20
"""The bytes that each attempt has for itself."""
TOTAL_BYTES = 256 << 20
"""The common budget of all attempts, in bytes."""
MOST_BYTES = TOTAL_BYTES // 4
"""The most bytes of the common budget that one attempt may hold."""


class BodyBudget:
    """The budget of a gateway. For one event loop."""

    def __init__(
        self, total: int = TOTAL_BYTES, most: int = MOST_BYTES, own_bytes: int = OWN_BYTES
    ):
        self.total, self.most, self.own_bytes = total, most, own_bytes
        self.used = 0
        self.turns: deque[BodyShare] = deque()
        """The attempts that wait. The first one is served next."""

    def wake(self) -> None:
        """Serve waiting attempts while there is room, one request of each in turn."""
        passed = 0
        while passed < len(self.turns):
            share = self.turns[0]
            size, granted = share.waiting[0]
            if not share.may_hold(size):
                # The attempt waits for one of its own requests to end.
                self.turns.rotate(-1)
                passed += 1
                continue
            if self.used and self.used + share.cost_of(size) > self.total:
                return
            passed = 0
            share.waiting.popleft()
            self.turns.popleft()
            if share.waiting:
                self.turns.append(share)
            if not granted.done():
                share.change(size)
                granted.set_result(None)


class BodyShare:
    """One attempt's part of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held = 0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def cost_of(self, size: int) -> int:
        """Return how many bytes of the common budget `size` more bytes would use."""
        free_bytes = self._budget.own_bytes
        return max(0, self._held + size - free_bytes) - max(0, self._held - free_bytes)

    def may_hold(self, size: int) -> bool:
        """Return whether the limit of one attempt allows `size` more bytes."""
        return not self._held or self._held + size <= self._budget.own_bytes + self._budget.most

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes fit without waiting."""
        return self.cost_of(size) == 0 and not self.waiting

    def change(self, size: int) -> None:
        """Count `size` more bytes. A negative size releases bytes."""
        self._budget.used += self.cost_of(size)
        self._held += size
        if size < 0:
            self._budget.wake()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[HeldBody]:
        """Reserve memory for a body of `size` bytes, as soon as there is room."""
        if self.has_room(size):
            self.change(size)
        else:
            await self._wait(size)
        held = HeldBody(self, size)
        try:
            yield held
        finally:
            held.release()

    async def _wait(self, size: int) -> None:
        granted = asyncio.get_running_loop().create_future()
        entry = (size, granted)
        if not self.waiting:
            self._budget.turns.append(self)
        self.waiting.append(entry)
        self._budget.wake()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.change(-size)
            elif entry in self.waiting:
                self.waiting.remove(entry)
                if not self.waiting:
                    self._budget.turns.remove(self)
                self._budget.wake()
            raise


class HeldBody:
    """A body in memory, and its part of the budget."""

    def __init__(self, share: BodyShare, size: int) -> None:
        self._share, self._size = share, size
        self._copy = 0
        self._data = b""

    @property
    def data(self) -> bytes:
        """The body; empty before it arrives and after it is released."""
        return self._data

    def take(self, data: bytes) -> None:
        """Keep a body, and release reserved memory beyond its size."""
        self._data = data
        self._resize()

    def note_copy(self, size: int) -> None:
        """Count a copy of `size` bytes beside the body, until the end."""
        self._copy = size
        self._resize()

    def forget(self) -> None:
        """Release the body, which is no longer needed."""
        self._data = b""
        self._resize()

    def release(self) -> None:
        """Release the body and its copy."""
        self._copy = 0
        self.forget()

    def _resize(self) -> None:
        size = len(self._data) + self._copy
        change, self._size = size - self._size, size
        if change:
            self._share.change(change)
