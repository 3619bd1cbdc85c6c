"""The events that an agent reported: one JSON object a line, as many as a ledger should hold."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

from labledger import canonical
from labledger.errors import MalformedJson
from labledger.records import Event, JsonObject
from labledger.trial.redact import Redactor

MAX_EVENTS = 100_000
"""How many events of a trial become rows; the file that holds all of them is kept besides."""
MAX_BROKEN = 100_000
"""How many lines that are no event are looked at; of what follows them nothing is."""
MAX_EVENT_VALUES = 2_000_000
"""How many values the events of a trial may hold together: parsed, they are held in memory."""


def read_events(content: bytes, redactor: Redactor) -> tuple[tuple[Event, ...], int]:
    """The events that can be kept, redacted and in order, and how many lines are left out.

    A line is left out where it is no JSON object, or one too many, or has more values than the
    lines before it left room for.
    """
    many = canonical.holds_more_than(MAX_EVENT_VALUES, content)
    reader = _Reader(redactor, MAX_EVENT_VALUES if many else None)
    for line in io.BytesIO(content):
        if not line.isspace():
            reader.take(line)
    return tuple(reader.events), reader.dropped


@dataclass(slots=True)
class _Reader:
    redactor: Redactor
    room: int | None
    """How many values may still come; None where they need not be counted."""
    events: list[Event] = field(default_factory=list)
    dropped: int = 0
    _broken: int = 0

    def take(self, line: bytes) -> None:
        body = self._parsed(line) if self._looks_on else None
        if body is None:
            self.dropped += 1
            return
        kind = body.get("type")
        event = Event(len(self.events), kind if isinstance(kind, str) else None, body)
        self.events.append(event)

    @property
    def _looks_on(self) -> bool:
        return len(self.events) < MAX_EVENTS and self._broken < MAX_BROKEN

    def _parsed(self, line: bytes) -> JsonObject | None:
        if self.room is not None:
            values = canonical.count_values(line, self.room)
            if values > self.room:
                return None
            self.room -= values
        try:
            body = canonical.loads(line)
        except MalformedJson:
            body = None
        if not isinstance(body, dict):
            self._broken += 1
            return None
        found: JsonObject = self.redactor.json(body)
        return found
