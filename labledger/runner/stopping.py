"""Stopping a run: a first request lets running trials finish, a second ends their containers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """How urgently the run is asked to stop: 0 not at all, 1 after running trials, 2 now.

    Pressing it does nothing but count, so that a signal handler may, in the middle of anything.
    """

    def __init__(self) -> None:
        self.level = 0

    def press(self) -> None:
        self.level = min(self.level + 1, 2)


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
