"""Answers that several pages share: ten pages of a run that are told of a commit ask the same.

An answer is shared until the watcher tells of another change, and for half a second at most. So a
page that was told of a commit never gets an answer from before it. Where one page alone is open,
nothing is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from labledger import clock

_MAX_AGE_S = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page is answered."""

    body: bytes
    content_type: str
    status: int


@dataclass(frozen=True, slots=True)
class _Shared:
    task: asyncio.Task[Answer]
    changes: int
    made_at: float


class SharedAnswers:
    """The answers of the last moments by what was asked. For one event loop."""

    def __init__(self, changes: Callable[[], int]) -> None:
        self._changes = changes
        """Returns how many changes were told so far."""
        self._shared: dict[str, _Shared] = {}

    async def get(self, asked: str, make: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer to what is asked. Raises what `make` raises."""
        self._forget_old()
        shared = self._shared.get(asked)
        if shared is None:
            task = asyncio.ensure_future(make())
            shared = self._shared[asked] = _Shared(task, self._changes(), clock.monotonic())
        # A page that is closed meanwhile does not end what others wait for.
        return await asyncio.shield(shared.task)

    def _forget_old(self) -> None:
        oldest, changes = clock.monotonic() - _MAX_AGE_S, self._changes()
        self._shared = {
            asked: shared
            for asked, shared in self._shared.items()
            if shared.changes == changes and shared.made_at > oldest
        }
