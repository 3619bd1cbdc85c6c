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
        self.source = ""
        """What asked first, for a person."""

    def press(self, source: str = "a request") -> None:
        self.level = min(self.level + 1, 2)
        self.source = self.source or source

    def hang_up(self) -> None:
        """A terminal that closes is a first request, however often it says so."""
        self.level = max(self.level, 1)
        self.source = self.source or "a closed terminal (HUP)"

    @property
    def message(self) -> str:
        """Why the run stopped, for those who look at it later."""
        if self.level > 1:
            return f"stopped by {self.source}, and a second one ended the containers"
        return f"stopped by {self.source}; running trials finished"


_SOURCES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "TERM"}


@contextmanager
def on_signals(stop: StopRequest) -> Iterator[None]:
    """While this lasts, Ctrl-C and TERM press `stop`, and a HUP that is not ignored hangs up.

    Outside the main thread, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def press(number: int, _frame: FrameType | None) -> None:
        stop.press(_SOURCES[signal.Signals(number)])

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
