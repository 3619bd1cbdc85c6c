"""A reader of server-sent events that is fed with the pieces in which a stream arrives.

It follows the event stream format of the HTML standard: lines end with CR, LF or both, `data` lines
are joined, an event ends with an empty line, and what stands after the last empty line is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_EVENT = 64 << 20
"""How many bytes one event may have. Longer ones are left out, so that memory is bounded."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream."""

    name: str
    data: str

    @property
    def document(self) -> Any:
        """The data as JSON; None if it is none."""
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError):
            return None


class EventReader:
    """Splits a stream into events."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False
        self._begun = False
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield the events that a piece ends."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        if not piece:
            return
        self._after_cr = piece.endswith(b"\r")
        lines = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines[:-1]:
            self._extend(line)
            event = self._take(bytes(self._line))
            self._line.clear()
            if event is not None:
                yield event
        self._extend(lines[-1])

    def _extend(self, piece: bytes) -> None:
        if len(self._line) <= MAX_EVENT:
            self._line += piece

    def _take(self, line: bytes) -> Event | None:
        if not self._begun:
            line, self._begun = line.removeprefix(b"\xef\xbb\xbf"), True
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

    def _end(self) -> Event | None:
        data, size = self._data, self._size
        name, self._name, self._data, self._size = self._name, "", [], 0
        if not data or size > MAX_EVENT:
            return None
        return Event(name, b"\n".join(data).decode("utf-8", "replace"))
