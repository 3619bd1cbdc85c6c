"""What can hold dispatch back: an engine that is gone, one that refuses everything, a full disk.

Trials in their containers go on meanwhile. A hold says why, looks from time to time whether its
cause is gone, and gives up when that has lasted longer than anybody's patience: the run then stops,
resumable, instead of burning through its schedule.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from labledger.errors import EngineUnavailable
from labledger.ledger.model import Stop
from labledger.records import StopCause
from labledger.runner.events import Listener, event
from labledger.trial.container import Engine

PATIENCE_S = 600.0
"""How long a hold may last before the run stops, resumable."""

REFUSALS = 5
"""So many trials in a row that could not be started hold dispatch back."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0

Look = Callable[[], str | None]
"""Says why dispatch cannot go on yet; None where the cause is gone."""


@dataclass(slots=True)
class Hold:
    """One cause for dispatching nothing.

    The pauses between two looks double, with some chance in them, so that several coordinators do
    not ask an engine that is just coming back at the same moment. A cause that comes back before
    anything was achieved counts as the same hold, so that patience ends there too.
    """

    cause: str
    look_again: Look
    tell: Listener
    patience_s: float
    lasts: bool = False
    _since: float | None = None
    _pause_s: float = _FIRST_PAUSE_S
    _next_look: float = 0.0

    def begin(self, message: str) -> None:
        """Hold dispatch back from now on; what is known of the cause is `message`."""
        if self.lasts:
            return
        self.lasts = True
        now = time.monotonic()
        if self._since is None:
            self._since, self._pause_s = now, _FIRST_PAUSE_S
        self._plan_look(now)
        self.tell(
            event(
                "dispatch_paused",
                cause=self.cause,
                message=f"{message}; nothing is dispatched until that is mended (for at most "
                f"{self.patience_s:.0f} s); trials in their containers go on",
            )
        )

    def progressed(self) -> None:
        """A trial's result was made durable: what comes now is a new hold."""
        if not self.lasts:
            self._since = None

    def look(self) -> str | None:
        """Look whether it is over, if it is time. Returns why to give up, where it is for that."""
        now = time.monotonic()
        if not self.lasts or self._since is None or now < self._next_look:
            return None
        why = self.look_again()
        held_s = now - self._since
        if why is None and held_s <= self.patience_s:
            self.end()
        elif held_s > self.patience_s:
            return f"{why or self.cause} for {self.patience_s:.0f} s"
        else:
            self._plan_look(now)
        return None

    def end(self) -> None:
        """Let dispatch go on."""
        if self.lasts and self._since is not None:
            self.lasts = False
            seconds = round(time.monotonic() - self._since, 1)
            self.tell(event("dispatch_resumed", cause=self.cause, seconds=seconds))

    def _plan_look(self, now: float) -> None:
        self._next_look = now + self._pause_s * random.uniform(0.75, 1.25)  # noqa: S311
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)


@dataclass(slots=True)
class Holds:
    """All that can hold a run's dispatch back."""

    tell: Listener
    patience_s: float
    shortage: Look
    """Says how much room is missing where."""
    engine: Hold = field(init=False)
    disk: Hold = field(init=False)
    refusals: Hold = field(init=False)
    _refused: int = 0
    """Trials in a row that could not be started."""
    _refused_at: float = 0.0
    _why: str = ""
    _probes: int = 0
    """How many trials may be tried while the engine refuses them."""

    def __post_init__(self) -> None:
        self.engine = self._hold(StopCause.ENGINE, _engine_is_gone)
        self.disk = self._hold(StopCause.DISK, self.shortage)
        self.refusals = self._hold(StopCause.REFUSALS, self._allow_one)

    def _hold(self, cause: StopCause, look: Look) -> Hold:
        return Hold(cause.value, look, self.tell, self.patience_s)

    @property
    def last(self) -> bool:
        return any(hold.lasts for hold in self._all)

    def allowance(self, wanted: int) -> int:
        """How many of so many trials may be dispatched now."""
        short = self.shortage()
        if short is not None:
            self.disk.begin(short)
        if self.engine.lasts or self.disk.lasts:
            return 0
        return min(wanted, self._probes) if self.refusals.lasts else wanted

    def dispatched(self, count: int) -> None:
        self._probes = max(0, self._probes - count)

    def refused(self, why: str) -> None:
        """A trial could not be started, for no fault of its own that is known."""
        self._refused += 1
        self._refused_at = time.monotonic()
        self._why = why
        if self._refused >= REFUSALS:
            self.refusals.begin(f"{self._refused} trials in a row could not be started: {why}")

    def started(self, created: float) -> None:
        """Take note that a container created then could be started: not everything is refused."""
        if created > self._refused_at:
            self._refused = 0
            self.refusals.end()

    def progressed(self) -> None:
        """A trial that ran was made durable."""
        for hold in self._all:
            hold.progressed()

    def look(self) -> Stop | None:
        """Look at each hold that lasts, if it is time. Returns why to give up, if anything."""
        for hold in self._all:
            if (message := hold.look()) is not None:
                return Stop(hold.cause, message)
        return None

    @property
    def _all(self) -> tuple[Hold, Hold, Hold]:
        return self.engine, self.disk, self.refusals

    def _allow_one(self) -> str:
        """Only a trial that starts shows that the engine starts trials again."""
        self._probes = 1
        return f"no trial could be started ({self._why})"


def _engine_is_gone() -> str | None:
    try:
        Engine.connect().close()
    except EngineUnavailable as error:
        return error.message
    return None
