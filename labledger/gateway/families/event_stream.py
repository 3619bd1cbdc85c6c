"""Readers for the bodies of answers, fed with pieces as they arrive.

An event stream follows the HTML standard: lines end with CR, LF or both, and an event with an empty
line. The last event may lack that line. The first bytes of a body decide its kind, because servers
label streams as JSON, and JSON as a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_EVENT = 64 << 20
"""The most bytes of one event. Longer ones are left out, so that memory is bounded."""
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry")
"""The fields of an event stream. A stream begins with one of them, or with a colon."""


class BodyForm(StrEnum):
    """The kind of a body, by its first bytes."""

    EVENTS = "events"
    OBJECT = "object"
    """A JSON object, or several, one per line."""
    ARRAY = "array"
    OTHER = "other"


def form_of(start: bytes) -> BodyForm | None:
    """Return the kind of a body that begins with these bytes; None if it needs more of them."""
    text = start.removeprefix(_BOM).lstrip(b" \t\r\n")
    if not text or _BOM.startswith(start):
        return None
    if text[:1] in b"{[":
        return BodyForm.OBJECT if text[:1] == b"{" else BodyForm.ARRAY
    name, colon, _ = text.partition(b":")
    if colon and (not name or name in _FIELDS):
        return BodyForm.EVENTS
    may_become = not colon and any(field.startswith(name) for field in _FIELDS)
    return None if may_become else BodyForm.OTHER


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """A server-sent event: its name and its data."""

    name: str
    data: str

    @property
    def document(self) -> Any:
        """The data as JSON; None if it is not JSON."""
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError):
            return None


def is_ambiguous(text: str | bytes) -> bool:
    """Return whether an object in a JSON text has a member twice, with different values."""
    ambiguous = False

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal ambiguous
        members = dict(pairs)
        if len(members) < len(pairs):
            ambiguous = ambiguous or any(members[name] != value for name, value in pairs)
        return members

    try:
        json.loads(text, object_pairs_hook=read_object)
    except (ValueError, RecursionError):
        return False
    return ambiguous


class EventReader:
    """Splits a stream into events."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False
        self._begun = False
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[StreamEvent]:
        """Yield the events that a piece completes."""
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        lines = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines[:-1]:
            self._extend(line)
            event = self._take(bytes(self._line))
            self._line.clear()
            if event is not None:
                yield event
        self._extend(lines[-1])

    def end(self) -> Iterator[StreamEvent]:
        """Yield the event that the end of the body completes, if there is one."""
        if self._line:
            self._take(bytes(self._line))
            self._line.clear()
        event = self._end()
        if event is not None:
            yield event

    @property
    def has_begun_event(self) -> bool:
        """Whether a part of an event was read, which the end of the body would complete."""
        return bool(self._line or self._data)

    def _extend(self, piece: bytes) -> None:
        if len(self._line) <= MAX_EVENT:
            self._line += piece

    def _take(self, line: bytes) -> StreamEvent | None:
        if not self._begun:
            line, self._begun = line.removeprefix(_BOM), True
        if not line:
            return self._end()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"data":
            self._size += len(value) + 1
            if self._size <= MAX_EVENT:
                self._data.append(value)
        return None

    def _end(self) -> StreamEvent | None:
        data, size = self._data, self._size
        name, self._name, self._data, self._size = self._name, "", [], 0
        if not data or size > MAX_EVENT:
            return None
        return StreamEvent(name, b"\n".join(data).decode("utf-8", "replace"))
