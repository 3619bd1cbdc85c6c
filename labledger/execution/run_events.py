"""Events and stop requests: the messages between a run and its caller.

Events are small JSON objects for the listener of `RunOptions.on_event`. They only report: nothing
in a run depends on them. docs/reference/run-events.md describes each kind. Stop requests come from
Ctrl-C, TERM, HUP or the caller.
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

The `put` method of a `queue.Queue` is a listener too. An exception of a listener interrupts the
run.
"""

VERSION = 1


def run_event(kind: EventKind, **fields: Any) -> JsonObject:
    """Return an event of this kind with the fields that docs/reference/run-events.md lists."""
    return {"event": kind, "version": VERSION, **fields}


def ignore_events(_event: JsonObject) -> None:
    """Do nothing. A listener for callers that need no events."""


class StopRequest:
    """A request that a run stop. Any thread or signal handler may raise it.

    `level` is 0 without a request, 1 to stop once running trials have finished, and 2 to kill their
    containers and stop now. A request only sets the level. The run polls it a few times a second. A
    stopped run can be resumed, with a new stop request.

    Example:
        >>> import labledger
        >>> options = labledger.RunOptions()
        >>> options.stop_request.raise_level("a button")
        >>> options.stop_request.level
        1
    """

    def __init__(self) -> None:
        self.level = 0
        self._sources: list[str] = []
        """The source of the first request for each level, for messages. If level 2 came at once,
        only that one."""

    @property
    def source(self) -> str:
        """The source of the first request, for messages."""
        return self._sources[0] if self._sources else ""

    def raise_level(self, source: str = "a request") -> None:
        """Request a stop, or a more urgent one."""
        self.raise_to(min(self.level + 1, 2), source)

    def raise_to(self, level: int, source: str) -> None:
        """Request a stop of at least this level. Repeating the request changes nothing."""
        if level > self.level:
            self._sources.append(source)
            self.level = level

    @property
    def killer(self) -> str:
        """The request that killed a run's containers at level 2."""
        first, last = self._sources[0], self._sources[-1]
        if len(self._sources) == 1:
            return first
        return f"a second {first}" if last == first else f"{last} after {first}"

    @property
    def message(self) -> str:
        """Why the run stopped, as stored in the ledger."""
        first, last = self._sources[0], self._sources[-1]
        if self.level < 2:
            return f"stopped by {first}; running trials finished"
        if len(self._sources) == 1:
            return f"stopped by {first}, which killed the containers"
        second = "a second one" if last == first else last
        return f"stopped by {first}, and {second} killed the containers"


_SOURCES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "TERM"}


@contextmanager
def on_signals(stop: StopRequest) -> Iterator[None]:
    """Pass Ctrl-C, TERM and HUP to `stop` during the context.

    An ignored HUP, as under `nohup`, stays ignored. Handlers that Python did not install stay.
    Outside the main thread, where Python allows no signal handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_level(number: int, _frame: FrameType | None) -> None:
        stop.raise_level(_SOURCES[signal.Signals(number)])

    def hang_up(_number: int, _frame: FrameType | None) -> None:
        stop.raise_to(1, "a closed terminal (HUP)")

    handlers = {signal.SIGINT: raise_level, signal.SIGTERM: raise_level, signal.SIGHUP: hang_up}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # `nohup` ignores HUP.
        del handlers[signal.SIGHUP]
    previous = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not None  # A handler of None cannot be restored.
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
