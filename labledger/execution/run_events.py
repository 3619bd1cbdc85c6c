"""Run events: the small JSON objects that report a run's progress.

They go to the listener of `RunOptions.on_event`; the command line's display and its `--json` stream
are such listeners. An event only reports: nothing in a run depends on one.
docs/reference/run-events.md describes every kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from labledger.records import JsonObject

EventKind = Literal[
    "image_build_started",
    "image_build_progress",
    "image_build_ended",
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
