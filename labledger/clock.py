"""The time, the one place that asks the system for it, and delays of repetitions.

Times are stored as text: UTC, ISO 8601, milliseconds, `Z`. It sorts as the times do, so that SQL
can compare it. What waits, or measures how long something took, does so with this module, so that
the simulation can run it with a time of its own.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
"""The form of times as `iso` writes them."""
_FINER = re.compile(r"(\.\d{6})\d+")


monotonic = time.monotonic
"""Returns seconds that only ever grow. Only differences mean something, within one process."""
unix_time = time.time
"""Returns the seconds since 1970, by this machine's clock, which may be set."""
sleep = time.sleep


def now() -> datetime:
    """Return the present time."""
    return of_timestamp(unix_time())


def utc_now() -> str:
    """Return the present time as text."""
    return iso(now())


def iso(moment: datetime) -> str:
    """Return a time as text."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(text: str) -> datetime:
    """Return a time from text of labledger or Docker, cut to microseconds."""
    return datetime.fromisoformat(_FINER.sub(r"\1", text))


def of_timestamp(seconds: float) -> datetime:
    """Return the time that is `seconds` after 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def later(moment: str, seconds: float) -> str:
    """Return the time that is `seconds` after another one."""
    return iso(parse(moment) + timedelta(seconds=seconds))


class Backoff:
    """The delays between repetitions of something that fails: each is twice the one before it."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return how long to wait now, in seconds."""
        delay_s = self._next_s
        self._next_s = min(2 * delay_s, self._max_s)
        return delay_s

    def reset(self) -> None:
        """Begin again with the first delay: it has succeeded."""
        self._next_s = self._first_s
