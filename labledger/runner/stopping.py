"""Stopping a run: a first request lets running trials finish, a second ends their containers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """How urgently the run is asked to stop: 0 not at all, 1 after running trials, 2 now.

    Asking does nothing but count, so that a signal handler may, in the middle of anything.
    """

    def __init__(self) -> None:
        self.level = 0

    def press(self) -> None:
        self.level = min(self.level + 1, 2)

    def hang_up(self) -> None:
        """A terminal that closes is a first request, however often it says so."""
        self.level = max(self.level, 1)


@contextmanager
def on_signals(stop: StopRequest) -> Iterator[None]:
    """While this lasts, Ctrl-C and TERM press `stop`, and a HUP that is not ignored hangs up.

    Outside the main thread, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def press(_number: int, _frame: FrameType | None) -> None:
        stop.press()

    def hang_up(_number: int, _frame: FrameType | None) -> None:
        stop.hang_up()

    before = {number: signal.signal(number, press) for number in (signal.SIGINT, signal.SIGTERM)}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As `nohup` leaves it.
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
