"""Waiting out a Docker engine that does not answer, instead of burning through the schedule."""

from __future__ import annotations

import random
import time

from labledger.errors import EngineUnavailable
from labledger.runner.events import Listener, event
from labledger.trial.container import Engine

PATIENCE_S = 600.0
"""How long an engine may be gone before the run stops, resumable."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class Outage:
    """Whether the engine is gone, since when, and when to ask for it again.

    The pauses between two questions double, with some chance in them, so that several coordinators
    do not ask an engine that is just coming back at the same moment.
    """

    def __init__(self, tell: Listener, patience_s: float = PATIENCE_S) -> None:
        self._tell = tell
        self._patience_s = patience_s
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._next_look = 0.0

    @property
    def lasts(self) -> bool:
        return self._since is not None

    def begin(self, message: str) -> None:
        """The engine did not answer; what is known of that is `message`."""
        if self.lasts:
            return
        self._since = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        self._next_look = self._since + self._pause_s
        self._tell(
            event(
                "engine_lost",
                message=f"{message}; nothing is dispatched until it answers "
                f"(for at most {self._patience_s:.0f} s); trials in their containers go on",
            )
        )

    def look(self) -> str | None:
        """Ask the engine, if it is time. Returns why to give up, where it is time for that."""
        now = time.monotonic()
        if self._since is None or now < self._next_look:
            return None
        try:
            Engine.connect().close()
        except EngineUnavailable as error:
            if now - self._since > self._patience_s:
                return f"{error.message} for {self._patience_s:.0f} s"
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
            self._next_look = now + self._pause_s * random.uniform(0.75, 1.25)  # noqa: S311
            return None
        self._tell(event("engine_back", seconds=round(now - self._since, 1)))
        self._since = None
        return None
