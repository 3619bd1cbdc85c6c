"""The only module that asks the system for the time; also delays between retries.

Times are stored as text in ISO 8601: UTC, with milliseconds and `Z`. This text sorts like the
times, so that SQL can compare it. All code that waits or measures time uses this module, so that
the simulation can replace the time.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
"""The format of times that `iso` writes."""
_FINER = re.compile(r"(\.\d{6})\d+")


monotonic = time.monotonic
"""Returns seconds that never decrease. Only differences within one process are meaningful."""
unix_time = time.time
"""Returns the seconds since 1970 by this machine's clock, which may be changed."""
sleep = time.sleep


def now() -> datetime:
    """Return the current time."""
    return of_timestamp(unix_time())


def utc_now() -> str:
    """Return the current time as text."""
    return iso(now())


def iso(moment: datetime) -> str:
    """Return a time as text."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(text: str) -> datetime:
    """Return a time from a text of labledger or Docker, truncated to microseconds."""
    return datetime.fromisoformat(_FINER.sub(r"\1", text))


def of_timestamp(seconds: float) -> datetime:
    """Return the time that is `seconds` after 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def later(moment: str, seconds: float) -> str:
    """Return the time that is `seconds` after another one."""
    return iso(parse(moment) + timedelta(seconds=seconds))


class Backoff:
    """The delays between retries. Each is twice as long as the previous one, up to a limit."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return how long to wait now, in seconds."""
        delay_s = self._next_s
        self._next_s = min(2 * delay_s, self._max_s)
        return delay_s

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._next_s = self._first_s
