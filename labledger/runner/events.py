"""What a running experiment tells whoever watches: small JSON objects, one for each event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labledger.records import JsonObject

Listener = Callable[[JsonObject], None]
"""Called in the coordinator's thread with each event; `event["event"]` names its kind."""

VERSION = 1


def event(kind: str, **fields: Any) -> JsonObject:
    """An event. Kinds and fields are listed in docs/reference/run-events.md."""
    return {"event": kind, "version": VERSION, **fields}


def ignore(_event: JsonObject) -> None:
    """The listener of a caller who does not watch."""
