"""What a run and its caller tell each other while it runs: events, and requests to stop.

Run events are small JSON objects that report a run's progress. They go to the listener of
`RunOptions.on_event`; the command line's display and its `--json` stream are such listeners. An
event only reports: nothing in a run depends on one. docs/reference/run-events.md describes every
kind.

Ctrl-C, TERM and HUP reach a run as stop requests. The first lets running trials finish, the second
kills their containers. A request only sets a level, so that a signal handler may make one at any
point. The coordinator polls the level, and the session installs the signal handlers.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

from labledger.records import JsonObject

EventKind = Literal[
    "image_build_started",
    "image_build_progress",
    "image_build_ended",
    "agent_installation",
    "run_started",
    "slot_dispatched",
    "trial_finished",
    "slot_committed",
    "budget_spent",
    "tick",
    "warning",
    "waiting_for_lease",
    "run_wanted",
    "dispatch_paused",
    "dispatch_resumed",
    "control_applied",
    "stopping",
    "run_ended",
]
"""The kinds of event: the values of `event["event"]`."""

Listener = Callable[[JsonObject], None]
"""Called with each event, in the thread that called `run`, `resume` or `regrade`.

The `put` method of a `queue.Queue` is a listener too. What a listener raises interrupts the run.
"""

VERSION = 1


def run_event(kind: EventKind, **fields: Any) -> JsonObject:
    """Return an event of this kind with the fields that docs/reference/run-events.md lists."""
    return {"event": kind, "version": VERSION, **fields}


def ignore_events(_event: JsonObject) -> None:
    """Do nothing: the listener of a caller that needs no events."""


class StopRequest:
    """A request that a run stop. It may be raised from any thread and from a signal handler.

    `level` is 0 without a request, 1 to stop once running trials have finished, and 2 to kill their
    containers and stop now. The run polls it a few times a second. A stopped run can be resumed,
    with a new stop request.

    Example:
        >>> import labledger
        >>> options = labledger.RunOptions()
        >>> options.stop_request.raise_level("a button")
        >>> options.stop_request.level
        1
    """

    def __init__(self) -> None:
        self.level = 0
        self.source = ""
        """What made the first request, for a person."""
        self._killing_source = ""
        """What made the request to kill the containers."""
        self._was_urgent = False
        """Whether the first request was to kill the containers."""

    def raise_level(self, source: str = "a request") -> None:
        """Request a stop, or a more urgent one."""
        self.raise_to(min(self.level + 1, 2), source)

    def raise_to(self, level: int, source: str) -> None:
        """Request a stop of at least this level. To repeat it changes nothing."""
        self._was_urgent |= self.level == 0 and level > 1
        if level > 1:
            self._killing_source = self._killing_source or source
        self.level = max(self.level, level)
        self.source = self.source or source

    @property
    def killer(self) -> str:
        """What killed the containers of a run with the level 2."""
        if self._was_urgent:
            return self.source
        if self._killing_source == self.source:
            return f"a second {self.source}"
        return f"{self._killing_source} after {self.source}"

    @property
    def message(self) -> str:
        """Why the run stopped, as stored in the ledger."""
        if self._was_urgent:
            return f"stopped by {self.source}, which killed the containers"
        if self.level > 1:
            is_same = self._killing_source == self.source
            second = "a second one" if is_same else self._killing_source
            return f"stopped by {self.source}, and {second} killed the containers"
        return f"stopped by {self.source}; running trials finished"


_SOURCES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "TERM"}


@contextmanager
def on_signals(stop: StopRequest) -> Iterator[None]:
    """Pass Ctrl-C, TERM and HUP to `stop` while the context lasts.

    A HUP that is ignored, as under `nohup`, stays ignored. A handler that Python did not install
    stays. Outside the main thread, where Python allows no signal handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_level(number: int, _frame: FrameType | None) -> None:
        stop.raise_level(_SOURCES[signal.Signals(number)])

    def hang_up(_number: int, _frame: FrameType | None) -> None:
        stop.raise_to(1, "a closed terminal (HUP)")

    handlers = {signal.SIGINT: raise_level, signal.SIGTERM: raise_level, signal.SIGHUP: hang_up}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # As `nohup` leaves it.
        del handlers[signal.SIGHUP]
    previous = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not None  # None cannot be restored.
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
