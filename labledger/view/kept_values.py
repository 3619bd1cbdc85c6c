"""Values that take long to make, kept for a multiple of that time.

However many pages are open and however fast a run commits, to make one kind of value takes at most
a small share of a processor. A value that is kept longer than what it was made from says so: it
comes with the version for which it was made.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from labledger import clock

_T = TypeVar("_T")
_MULTIPLE = 100
"""A value that is out of date is kept for so many times as long as it took to make."""
_MAX_VALUES = 200


@dataclass(frozen=True, slots=True)
class Kept(Generic[_T]):
    """A value, the version for which it was made, when, and in how many seconds."""

    value: _T
    version: Hashable
    made_at: float
    took_s: float

    @property
    def may_be_made_again(self) -> bool:
        return clock.monotonic() - self.made_at >= _MULTIPLE * self.took_s


class KeptValues:
    """The newest values by their keys. For any thread; each is made by one thread at a time.

    What makes a value must ask for no other one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Kept[Any]] = OrderedDict()
        self._making: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()
        """The lock of each key whose value is made or waited for."""
        self._begun: set[Hashable] = set()
        """The keys whose value is made in a thread of its own."""

    def get(
        self, key: Hashable, version: Hashable, make: Callable[[], _T], *, is_final: bool = False
    ) -> Kept[_T]:
        """Return the value of a key for `version`, or one that was made shortly before it.

        With `is_final`, where no other version follows soon, it is that of `version`. Raises what
        `make` raises.
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
        """Return the newest value of a key, None if there is none yet; a newer one is made soon.

        It is made in a thread of its own, so that nobody waits for it. `is_final` is as for `get`.
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
