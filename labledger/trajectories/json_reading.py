"""Bounded reading of JSON that an agent wrote: a line, a member or an item at a time.

Reading lines raises nothing for the content of a file. Lines that are not JSON or are too large are
counted and skipped, and nothing after `MAX_LINES` lines is read. Reading a document raises
`MalformedJson`. Half of a surrogate pair, which JavaScript
writes where it cuts a text, becomes U+FFFD.
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
"""How many bytes one line, or one item of a list, may have."""
MAX_LINES = 500_000
"""How many lines of a file are read."""
TOO_LONG = "a line that is too long"
"""Words for a line of more than `MAX_LINE` bytes."""
_MAX_TOKENS = 1_000_000_000_000
"""A larger number of tokens is not a count: sums of such numbers could exceed 64 bits."""
_MAX_VALUES = 200_000
"""How many values it may hold: each takes up to 200 bytes."""
NO_OBJECT = "no JSON object"
"""What a line is that holds something else."""
_PIECE = 1 << 20
_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


@dataclass(slots=True)
class LogFacts:
    """What a log says beside its steps. It is complete when all steps were taken."""

    session_id: str | None = None
    version: str | None = None
    model: str | None = None
    claimed: FinalMetrics | None = None
    """The figures of the agent itself for the whole of it."""
    failure: str | None = None
    """Why the agent gave up, as it says."""
    unread: Counter[str] = field(default_factory=Counter)
    """How many lines were not understood, by what they were."""
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
    """Return a JSON value, or None if it is none, or too large."""
    return _parsed(text, canonical_json.loads)


def _parse_stored(text: bytes) -> Any:
    """Return the same with null for a number that is too large.

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
    """Yield the members of the object in a file, and of the `lists` each item as a member.

    In a document that labledger stored, a number that is too large is null.

    Raises `MalformedJson` where the file is no such object, a value is too large, or one of the
    `lists` is none or comes twice.
    """
    yield from _ObjectReader(file, _parse_stored if is_stored else parse).members(lists)


class _ObjectReader:
    """A window on the text of a file that holds one JSON object."""

    def __init__(self, file: BinaryIO, parse_value: Callable[[bytes], Any]) -> None:
        self._file, self._parse = file, parse_value
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text, self._at, self._ended = "", 0, False

    def members(self, lists: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._take("}"):
            return
        left = set(lists)
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise MalformedJson("has a key that is no text")
            self._expect(":")
            if key in lists:
                if key not in left or not self._take("["):
                    raise MalformedJson(f"has {key!r} twice, or as something that is no list")
                left.remove(key)
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
        """Read the next value, as soon as the window holds it whole."""
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
        """Return where the value ends that begins here; None if the window ends before."""
        depth = 0
        for match in _TOKEN.finditer(self._text, self._at):
            found = match[0]
            depth += found in "[{"
            depth -= found in "]}"
            if depth > canonical_json.MAX_DEPTH:
                raise MalformedJson(f"nests deeper than {canonical_json.MAX_DEPTH} levels")
            if match.end() == len(self._text) and not self._ended and found not in "]}":
                return None  # It may go on.
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
            found = self._text[self._at : self._at + 1] or "the end"
            raise MalformedJson(f"is not JSON: found {found!r}; expected {character!r}")

    def _read(self, size: int) -> None:
        piece = self._file.read(size)
        self._ended = not piece
        self._text = self._text[self._at :] + self._decode(piece, final=self._ended)
        self._at = 0


_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[\]{}]|[^\s",:\[\]{}]++', re.DOTALL)
"""A string, a bracket or a word; commas, colons and spaces stand between them."""


def text_time(value: Any) -> str | None:
    """Return a time in the form of labledger from ISO 8601, seconds or milliseconds; else None."""
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
    """Return a value if it is a number of tokens."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value <= _MAX_TOKENS else None


def money(value: Any) -> float | None:
    """Return a value if it is an amount."""
    is_amount = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_amount and 0 <= value < 1e9 else None


def member(value: Any, *names: str) -> Any:
    """Return what is under these names in nested objects; None where something is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def objects(value: Any) -> list[JsonObject]:
    """Return the objects of a list; none for anything else."""
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]


def as_arguments(text: Any) -> Any:
    """Return the arguments that a model wrote as JSON text; the text itself if it is none."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
