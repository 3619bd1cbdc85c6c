"""Bounded reading of JSON that an agent wrote: by lines, members or items.

Reading lines never raises an error because of their content. Lines that are not JSON or too large
are counted and skipped. Reading a document raises `MalformedJson`. Half of a surrogate pair, which
JavaScript writes when it cuts a text, becomes U+FFFD.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO

from labledger import clock
from labledger.errors import MalformedJson
from labledger.records import JsonObject, canonical_json
from labledger.trajectories.atif import FinalMetrics

MAX_LINE = 8 << 20
"""The most bytes of one line, or of one item of a list."""
MAX_LINES = 500_000
"""The most lines of a file that are read."""
TOO_LONG = "a line that is too long"
"""The name of lines with more than `MAX_LINE` bytes, in `LogFacts.unread`."""
_MAX_TOKENS = 1_000_000_000_000
"""The largest accepted number of tokens. Sums of larger numbers could exceed 64 bits."""
_MAX_VALUES = 200_000
"""The most values of a line or item. Each takes up to 200 bytes."""
NO_OBJECT = "no JSON object"
"""The name of other lines, in `LogFacts.unread`."""
_PIECE = 1 << 20
_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


@dataclass(slots=True)
class LogFacts:
    """The facts of a log beside its steps. Complete after all steps were read."""

    session_id: str | None = None
    version: str | None = None
    model: str | None = None
    claimed: FinalMetrics | None = None
    """The agent's own totals."""
    failure: str | None = None
    """The agent's own reason for giving up."""
    unread: Counter[str] = field(default_factory=Counter)
    """The number of lines that were not understood, by their kind."""
    cuts: list[str] = field(default_factory=list)
    """The reasons why steps of the agent are missing, one sentence each."""


def read_lines(file: BinaryIO, facts: LogFacts) -> Iterator[JsonObject]:
    """Yield the objects of a file of JSON lines."""
    count = 0
    while line := file.readline(MAX_LINE + 1):
        count += 1
        if count > MAX_LINES:
            facts.cuts.append(f"the log has more than {MAX_LINES:,} lines; the rest was not read")
            return
        if len(line) > MAX_LINE:
            facts.unread[TOO_LONG] += 1
            while line and not line.endswith(b"\n"):
                line = file.readline(_PIECE)
        elif not line.isspace():
            value = parse(line)
            if isinstance(value, dict):
                yield value
            else:
                facts.unread[NO_OBJECT] += 1


def parse(text: bytes) -> Any:
    """Return a JSON value; None if it is not JSON or too large."""
    return _parsed(text, canonical_json.loads)


def _parse_stored(text: bytes) -> Any:
    """Parse a stored value. A number that is too large becomes null.

    Earlier versions stored amounts as integers of more than 64 bits.
    """
    return _parsed(text, lambda *args, **limits: canonical_json.loads_storable(*args, **limits)[0])


def _parsed(text: bytes, loads: Callable[..., Any]) -> Any:
    try:
        return loads(text, max_values=_MAX_VALUES)
    except MalformedJson:
        cleaned = _SURROGATES.sub(rb"\\ufffd", text)
    if cleaned == text:
        return None
    try:
        return loads(cleaned, max_values=_MAX_VALUES)
    except MalformedJson:
        return None


def read_members(file: BinaryIO, *lists: str, is_stored: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the members of the object in a file. Each item of `lists` is yielded by itself.

    With `is_stored`, for documents of labledger, a number that is too large becomes null. Raises
    `MalformedJson` if the file is not a JSON object, if a value is too large, or if one of `lists`
    is not a list or comes twice.
    """
    yield from _ObjectReader(file, _parse_stored if is_stored else parse).members(lists)


class _ObjectReader:
    """A window on the text of a file with one JSON object."""

    def __init__(self, file: BinaryIO, parse_value: Callable[[bytes], Any]) -> None:
        self._file, self._parse = file, parse_value
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text, self._at, self._ended = "", 0, False

    def members(self, lists: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._take("}"):
            return
        unread = set(lists)
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise MalformedJson("has a key that is no text")
            self._expect(":")
            if key in lists:
                if key not in unread or not self._take("["):
                    raise MalformedJson(f"has {key!r} twice, or as something that is no list")
                unread.remove(key)
                yield from ((key, item) for item in self._items())
            else:
                yield key, self._value()
            if not self._take(","):
                break
        self._expect("}")

    def _items(self) -> Iterator[Any]:
        if self._take("]"):
            return
        yield self._value()
        while self._take(","):
            yield self._value()
        self._expect("]")

    def _value(self) -> Any:
        """Read the next value. Extend the window until it contains the whole value."""
        self._skip_space()
        step = _PIECE
        while True:
            end = self._end_of_value()
            if end is not None:
                text = self._text[self._at : end].encode("utf-8", "surrogatepass")
                self._at = end
                value = self._parse(text)
                if value is None and text != b"null":
                    raise MalformedJson("has a value that is no JSON, or holds too many values")
                return value
            if self._ended:
                raise MalformedJson("ends within a value")
            if len(self._text) - self._at > MAX_LINE:
                raise MalformedJson(f"has a value of more than {MAX_LINE:,} characters")
            self._read(step)
            step = min(2 * step, MAX_LINE)

    def _end_of_value(self) -> int | None:
        """Return the end of the value that begins here; None if the window ends first."""
        depth = 0
        for match in _TOKEN.finditer(self._text, self._at):
            character = match[0]
            depth += character in "[{"
            depth -= character in "]}"
            if depth > canonical_json.MAX_DEPTH:
                raise MalformedJson(f"nests deeper than {canonical_json.MAX_DEPTH} levels")
            if match.end() == len(self._text) and not self._ended and character not in "]}":
                return None  # The value may continue.
            if depth <= 0:
                return match.end()
        return None

    def _skip_space(self) -> None:
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or self._ended:
                return
            self._read(_PIECE)

    def _take(self, character: str) -> bool:
        self._skip_space()
        if self._text[self._at : self._at + 1] != character:
            return False
        self._at += 1
        return True

    def _expect(self, character: str) -> None:
        if not self._take(character):
            actual = self._text[self._at : self._at + 1] or "the end"
            raise MalformedJson(f"is not JSON: found {actual!r}; expected {character!r}")

    def _read(self, size: int) -> None:
        piece = self._file.read(size)
        self._ended = not piece
        self._text = self._text[self._at :] + self._decode(piece, final=self._ended)
        self._at = 0


_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[\]{}]|[^\s",:\[\]{}]++', re.DOTALL)
"""A string, a bracket or a word. Commas, colons and spaces are between them."""


def text_time(value: Any) -> str | None:
    """Return a time in labledger's form, from ISO 8601, seconds or milliseconds; else None."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value[:40])
            return clock.iso(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return clock.iso(clock.of_timestamp(value / 1000 if value > 1e11 else value))
    except (ValueError, OverflowError, OSError):
        return None
    return None


def whole(value: Any) -> int | None:
    """Return a value if it is a valid number of tokens, else None."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value <= _MAX_TOKENS else None


def money(value: Any) -> float | None:
    """Return a value if it is a valid amount of money, else None."""
    is_amount = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_amount and 0 <= value < 1e9 else None


def member(value: Any, *names: str) -> Any:
    """Return a member of nested objects by its path; None if a part of it is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def objects(value: Any) -> list[JsonObject]:
    """Return the objects in a list; empty for any other value."""
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]


def as_arguments(text: Any) -> Any:
    """Return arguments parsed from JSON text; the text itself if it is not JSON."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
