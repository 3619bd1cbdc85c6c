"""Run events: the small JSON objects that report a run's progress.

They go to the listener of `RunOptions.on_event`; the command line's display and its `--json` stream
are such listeners. An event only reports: nothing in a run depends on one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labledger.records import JsonObject

Listener = Callable[[JsonObject], None]
"""Called in the coordinator's thread with each event; `event["event"]` names its kind."""

VERSION = 1


def run_event(kind: str, **fields: Any) -> JsonObject:
    """Return an event of a kind, with these fields. The documentation lists kinds and fields."""
    return {"event": kind, "version": VERSION, **fields}


def ignore_events(_event: JsonObject) -> None:
    """Do nothing: the listener of a caller that needs no events."""
