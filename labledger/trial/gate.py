"""The gate that trials pass one by one: so many run at once, while others prepare or are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from labledger.errors import LabLedgerError
from labledger.trial.container import Engine
from labledger.trial.contract import TrialSpec


class NotStarted(LabLedgerError):
    """The run is stopping: the trial was not started and left nothing new behind."""


class Abandoned(LabLedgerError):
    """Nobody waits for this trial any more; its container goes on by itself."""


_SLICE_S = 5.0
"""How long one call waits for a container before it is asked again whether anyone still cares."""


class StartGate:
    """Lets at most `width` trials run at once, while others prepare or are collected."""

    def __init__(self, width: int) -> None:
        self._changed = threading.Condition()
        self._free = width
        self._waiting: list[int] = []
        self._closed = False
        self._abandoned = False

    def close(self) -> None:
        """Let no further trial start."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Let every thread stop waiting for its container."""
        self._abandoned = True
        self.close()

    def wait(self, engine: Engine, spec: TrialSpec) -> int | None:
        """The exit status of a trial's container, or None after its outer deadline."""
        deadline = time.monotonic() + spec.deadline_s
        while (left := deadline - time.monotonic()) > 0:
            status = engine.wait(spec.container, min(_SLICE_S, left))
            if status is not None:
                return status
            if self._abandoned:
                raise Abandoned
        return None

    @contextmanager
    def passage(self, turn: int) -> Iterator[None]:
        """Run when there is a place; of the trials that wait for one, the lowest `turn` goes first.

        Raises `NotStarted` where the gate is closed before.
        """
        with self._changed:
            self._waiting.append(turn)
            self._changed.wait_for(
                lambda: self._closed or (self._free > 0 and turn == min(self._waiting))
            )
            self._waiting.remove(turn)
            if self._closed:
                raise NotStarted
            self._take(1)
        try:
            yield
        finally:
            self._take(-1)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place, also where none is free: for a trial that runs already."""
        self._take(1)
        try:
            yield
        finally:
            self._take(-1)

    def _take(self, places: int) -> None:
        with self._changed:
            self._free -= places
            self._changed.notify_all()


_thread = threading.local()


def use_gate(gate: StartGate) -> None:
    """Make this thread's trials pass `gate`: the initializer of a local executor's threads."""
    _thread.gate = gate


def thread_gate() -> StartGate:
    """The gate of this thread's trials; one of its own where none was given."""
    gate: StartGate = getattr(_thread, "gate", None) or StartGate(1)
    return gate
