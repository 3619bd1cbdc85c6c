"""Stopping a run: a first request lets running trials finish, a second ends their containers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """How urgently the run is asked to stop: 0 not at all, 1 after running trials, 2 now."""

    def __init__(self, on_change: Callable[[int], None] | None = None) -> None:
        self.level = 0
        self._on_change = on_change

    def press(self) -> None:
        if self.level < 2:
            self.level += 1
            if self._on_change is not None:
                self._on_change(self.level)


@contextmanager
def on_signals(stop: StopRequest) -> Iterator[None]:
    """While this lasts, Ctrl-C and TERM press `stop`. Outside the main thread, it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def press(_number: int, _frame: FrameType | None) -> None:
        stop.press()

    before = {number: signal.signal(number, press) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
