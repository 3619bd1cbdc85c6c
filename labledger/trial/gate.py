"""The gate that trials pass one by one: so many run at once, while others prepare or are read."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from labledger.errors import LabLedgerError
from labledger.trial.container import Engine
from labledger.trial.contract import TrialSpec


class StartRefused(LabLedgerError):
    """The run is stopping: the trial was not started and left nothing new behind."""


class WaitAbandoned(LabLedgerError):
    """Nobody waits for this trial any more; its container goes on by itself."""


MAX_STARTING = 8
"""How many containers are created or started at once, however many may run."""

MAX_READING = 2
"""How many ended trials are read at once: each may have left tens of megabytes."""

_SLICE_S = 5.0
"""How long one call waits for a container before it is asked again whether anyone still cares."""


class StartLimiter:
    """Lets at most `width` trials run at once, while others prepare or are collected.

    It also keeps trials from touching anything once their run may belong to somebody else, however
    long this process was suspended: what they would touch, another coordinator may be using.
    """

    def __init__(self, width: int) -> None:
        self._changed = threading.Condition()
        self.last_good = -math.inf
        """When the newest container that could be started was created, by the monotonic clock."""
        self._engine_calls = threading.BoundedSemaphore(MAX_STARTING)
        self._reading = threading.BoundedSemaphore(MAX_READING)
        self._free = width
        self._waiting: list[int] = []
        self.paused: SimpleQueue[TrialSpec] = SimpleQueue()
        """Trials whose containers somebody has paused, each again as long as it is."""
        self._seen_paused: set[str] = set()
        self._closed = False
        self._abandoned = False
        self._allowed_until = math.inf

    def close(self) -> None:
        """Let no further trial start."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Let every thread stop waiting for its container."""
        self._abandoned = True
        self.close()

    @contextmanager
    def engine_call(self) -> Iterator[None]:
        """While this lasts, a container is created or started: at most so many at once."""
        with self._engine_calls:
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While this lasts, what a trial left is read: at most so many at once."""
        with self._reading:
            yield

    def allow_until(self, moment: float) -> None:
        """Let nothing be done after a moment (`time.time()`), until another one is named."""
        with self._changed:
            self._allowed_until = moment
            self._changed.notify_all()

    @property
    def starting_allowed(self) -> bool:
        """True while the run certainly belongs to this process."""
        return not self._abandoned and time.time() < self._allowed_until

    def require_starting_allowed(self) -> None:
        """Return when the run certainly belongs to this process. Raises `WaitAbandoned`."""
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or self.starting_allowed)
            if self._abandoned:
                raise WaitAbandoned

    def wait(self, engine: Engine, spec: TrialSpec, container: str) -> int | None:
        """The exit status of a trial's container, or None after its outer deadline.

        `container` is its id.

        Does not rely on the engine to say when a container has ended: now and then, it is asked.
        Raises `WaitAbandoned` where the trial is somebody else's by then.
        """
        status = None
        deadline = time.monotonic() + spec.deadline_s
        while (left := deadline - time.monotonic()) > 0:
            status = engine.wait(container, min(_SLICE_S, left))
            if status is not None:
                break
            if self._abandoned:
                raise WaitAbandoned
            state = engine.inspect(container)
            if state is not None and state.has_ended:
                status = state.exit_status
                break
            if state is not None and state.status == "paused":
                self.paused.put(spec)
                self._seen_paused.add(container)
        self.require_starting_allowed()
        return status

    def saw_paused(self, container: str) -> bool:
        """True where a container was found to be paused while it was waited for."""
        return container in self._seen_paused

    @contextmanager
    def running(self, turn: int) -> Iterator[None]:
        """Run when there is a place; of the trials that wait for one, the lowest `turn` goes first.

        Raises `StartRefused` where the gate is closed before.
        """
        with self._changed:
            self._waiting.append(turn)
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or (self.starting_allowed and self._free > 0 and turn == min(self._waiting))
                )
            )
            self._waiting.remove(turn)
            if self._closed:
                raise StartRefused
            self._use_places(1)
        try:
            yield
        finally:
            self._use_places(-1)

    @contextmanager
    def reservation(self) -> Iterator[None]:
        """Take a place, also where none is free: for a trial that runs already."""
        self._use_places(1)
        try:
            yield
        finally:
            self._use_places(-1)

    def _use_places(self, places: int) -> None:
        with self._changed:
            self._free -= places
            self._changed.notify_all()


_thread = threading.local()


def use_limiter(gate: StartLimiter) -> None:
    """Make this thread's trials pass `gate`: the initializer of a local executor's threads."""
    _thread.gate = gate


def thread_limiter() -> StartLimiter:
    """The gate of this thread's trials; one of its own where none was given."""
    gate: StartLimiter = getattr(_thread, "gate", None) or StartLimiter(1)
    return gate
