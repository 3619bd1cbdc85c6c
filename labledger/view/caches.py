"""Caches that bound the work for pages, however many are open and however often a run commits.

`KeptValues` keeps a value for a multiple of the time that it took to compute. `SharedAnswers`
shares an answer among pages until the watcher reports a change, for half a second at most.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from labledger import clock

_T = TypeVar("_T")
_MULTIPLE = 100
"""An outdated value is kept for this many times the duration of making it."""
_MAX_VALUES = 200
_MAX_AGE_S = 0.5
"""How long an answer is shared, in seconds."""


@dataclass(frozen=True, slots=True)
class Kept(Generic[_T]):
    """A value, the version for which it was made, when it was made, and how long that took."""

    value: _T
    version: Hashable
    made_at: float
    took_s: float

    @property
    def may_be_made_again(self) -> bool:
        return clock.monotonic() - self.made_at >= _MULTIPLE * self.took_s


class KeptValues:
    """The newest value of each key, thread-safe. Only one thread at a time makes a value.

    A function that makes a value must not ask for another value.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Kept[Any]] = OrderedDict()
        self._making: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()
        """The locks of keys whose value is being made."""
        self._begun: set[Hashable] = set()
        """The keys whose value a background thread is making."""

    def get(
        self, key: Hashable, version: Hashable, make: Callable[[], _T], *, is_final: bool = False
    ) -> Kept[_T]:
        """Return the value of a key for `version`, or a value that was made shortly before.

        With `is_final`, which means that the version will not change soon, the value is always the
        one for `version`. Raises what `make` raises.
        """
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            kept: Kept[_T] | None = self._values.get(key)
            is_old = kept is not None and kept.version != version
            if kept is None or (is_old and (is_final or kept.may_be_made_again)):
                began = clock.monotonic()
                value = make()
                ended = clock.monotonic()
                kept = Kept(value, version, ended, ended - began)
                self._keep(key, kept)
            return kept

    def get_soon(
        self, key: Hashable, version: Hashable, make: Callable[[], _T], *, is_final: bool = False
    ) -> _T | None:
        """Return the newest value of a key, or None if there is none yet, without waiting.

        If the value is outdated, a background thread makes a new one. `is_final` is as for `get`.
        """
        kept: Kept[_T] | None = self._values.get(key)
        if kept is None or (kept.version != version and (is_final or kept.may_be_made_again)):
            with self._lock:
                is_begun = key in self._begun
                self._begun.add(key)
            if not is_begun:
                call = (key, version, make, is_final)
                threading.Thread(target=self._make, args=call, daemon=True).start()
        return None if kept is None else kept.value

    def _make(
        self, key: Hashable, version: Hashable, make: Callable[[], Any], is_final: bool
    ) -> None:
        try:
            self.get(key, version, make, is_final=is_final)
        finally:
            with self._lock:
                self._begun.discard(key)

    def _keep(self, key: Hashable, kept: Kept[Any]) -> None:
        with self._lock:
            self._values[key] = kept
            self._values.move_to_end(key)
            while len(self._values) > _MAX_VALUES:
                self._values.popitem(last=False)


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """A response to a page."""

    body: bytes
    content_type: str
    status: int


@dataclass(frozen=True, slots=True)
class _Shared:
    task: asyncio.Task[PageAnswer]
    changes: int
    made_at: float


class SharedAnswers:
    """The latest answers by request, for one event loop.

    After a commit, all open pages of a run send the same request, and share one answer. A page that
    was notified of a change never gets an answer from before that change.
    """

    def __init__(self, changes: Callable[[], int]) -> None:
        self._changes = changes
        """Returns how many changes have been reported so far."""
        self._shared: dict[str, _Shared] = {}

    async def get(self, request: str, make: Callable[[], Awaitable[PageAnswer]]) -> PageAnswer:
        """Return the answer to a request. Raises what `make` raises."""
        self._forget_old()
        shared = self._shared.get(request)
        if shared is None:
            task = asyncio.ensure_future(make())
            shared = self._shared[request] = _Shared(task, self._changes(), clock.monotonic())
        # If this page is closed now, the others still get the answer.
        return await asyncio.shield(shared.task)

    def _forget_old(self) -> None:
        oldest, changes = clock.monotonic() - _MAX_AGE_S, self._changes()
        self._shared = {
            request: shared
            for request, shared in self._shared.items()
            if shared.changes == changes and shared.made_at > oldest
        }
