"""What a test changes in a coordinator's process, where this folder is on its PYTHONPATH.

`MEDDLE_CLOCK` names a file with the seconds by which the clock is wrong, read at each look at it.
`MEDDLE_HEARTBEAT` is the time between two heartbeats, in seconds.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

CLOCK = os.environ.get("MEDDLE_CLOCK")
HEARTBEAT = os.environ.get("MEDDLE_HEARTBEAT")


class WrongClock(datetime):
    """Time as a machine tells it whose clock was set."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        assert CLOCK is not None
        return datetime.now(tz) + timedelta(seconds=float(Path(CLOCK).read_text("ascii")))


if CLOCK is not None:
    from labledger import clock

    clock.datetime = WrongClock
if HEARTBEAT is not None:
    from labledger.runner import lease

    lease.HEARTBEAT_S = float(HEARTBEAT)
