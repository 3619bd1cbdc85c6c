"""The function that Dask runs on workers.

It is sent by value, so that a scheduler needs no labledger. So it imports what it needs itself, and
uses no name of this module.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function that no module has, so that Dask sends its code."""
    original = cast("FunctionType", function)
    own_names = {"__builtins__": builtins}
    copy = FunctionType(original.__code__, own_names, original.__name__, original.__defaults__)
    copy.__module__ = "__main__"
    return copy


def answer(request: bytes) -> bytes:
    """Run on a worker: have its host answer a request. Empty if the worker is no host."""
    from distributed import get_worker, secede

    worker = get_worker()
    plugin: Any = worker.plugins.get("labledger-host")
    if plugin is None or plugin.service is None:
        return b""
    # The call may wait for something to happen, and must not take a place from other calls.
    secede()  # type: ignore[no-untyped-call]
    reply: bytes = plugin.service.answer(request)
    return reply
