"""YAML as plain data that remembers its lines, read by the core schema of YAML 1.2.

This module imports PyYAML; import it late.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from labledger.canonical import MAX_DEPTH
from labledger.errors import InvalidInput, Problem
from labledger.experiment.findings import FieldPath, Finding

MAX_NODES = 100_000
"""How many values a document may hold once its aliases are expanded."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STR_TAG = "tag:yaml.org,2002:str"
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True)
class YamlDocument:
    """One YAML document: JSON values, the line of each field, and what is wrong with it."""

    data: Any
    lines: Mapping[FieldPath, int]
    findings: tuple[Finding, ...]

    def line(self, path: FieldPath) -> int:
        """The line (from 1) of a field, or of the nearest field around it that was written."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def parse(text: str, where: str) -> YamlDocument:
    """Read the one document in `text`; `where` names the file in messages.

    Only ``true`` and ``false`` are booleans (``no`` and ``on`` are text), as YAML 1.2 has it.
    Keys written twice, keys that are not text, numbers that JSON cannot hold, tags, merge keys
    and anchors that hold themselves become findings. Raises `InvalidInput` when the text is not
    YAML at all, holds several documents, or nests deeper than 64 levels.
    """
    try:
        builder = _Builder(yaml.parse(text, Loader=_LOADER))
        data = builder.document()
    except yaml.MarkedYAMLError as error:
        raise InvalidInput(f"cannot read {where}", [_syntax_problem(error, text, where)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = Problem(where, "holds control characters; this is not a text file", line)
        raise InvalidInput(f"cannot read {where}", [problem]) from None
    except _Unreadable as error:
        raise InvalidInput(
            f"cannot read {where}", [Problem(where, error.message, error.line, hint=error.hint)]
        ) from None
    return YamlDocument(data, builder.lines, tuple(builder.findings))


class _Unreadable(Exception):
    def __init__(self, message: str, event: yaml.Event, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = _line(event)
        self.hint = hint


class _Builder:
    """Builds plain values from YAML events, so that deep or circular input cannot hurt."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self.events = events
        self.lines: dict[FieldPath, int] = {}
        self.findings: list[Finding] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._open: set[str] = set()
        self._nodes = 0

    def document(self) -> Any:
        next(self.events)
        start = next(self.events)
        if isinstance(start, yaml.StreamEndEvent):
            return None
        value = self._value(next(self.events), ())
        next(self.events)
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _Unreadable(
                "a second document starts here; one is expected", after, "remove the '---'"
            )
        return value

    def _value(self, event: yaml.Event, path: FieldPath) -> Any:
        self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        self._count(1, event)
        if len(path) > MAX_DEPTH:
            raise _Unreadable(f"nests deeper than {MAX_DEPTH} levels", event)
        before = self._nodes
        anchor: str | None = getattr(event, "anchor", None)
        if anchor:
            self._open.add(anchor)
        value = self._plain(event, path)
        if anchor:
            self._open.discard(anchor)
            self._anchors[anchor] = (value, self._nodes - before + 1)
        return value

    def _plain(self, event: yaml.Event, path: FieldPath) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if tag := getattr(event, "tag", None):
            self._add(path, event, f"the tag {tag} is not taken", "write the plain value")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        return self._sequence(path)

    def _mapping(self, path: FieldPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(key_event := next(self.events), yaml.MappingEndEvent):
            key = self._key(key_event, path)
            value_event = next(self.events)
            if key is None:
                self._value(value_event, (*path, "?"))
                continue
            if key in found:
                first = self.lines[*path, key]
                self._add(
                    (*path, key), key_event, f"is written twice; the first is on line {first}"
                )
            else:
                self.lines[*path, key] = _line(key_event)
            found[key] = self._value(value_event, (*path, key))
        return found

    def _key(self, event: yaml.Event, path: FieldPath) -> str | None:
        """The text of a key, or None after a finding, where it is not text."""
        if not isinstance(event, yaml.ScalarEvent):
            self._value(event, (*path, "?"))
            self._add(path, event, "a key must be text, not a list, a mapping or an alias")
            return None
        key = self._scalar(event, path)
        if key == "<<" and not event.style:
            hint = "write the keys out; an anchor may still stand for one whole value"
            self._add(path, event, "merge keys (<<) are not part of YAML 1.2", hint)
            return None
        if not isinstance(key, str):
            self._add(path, event, f"the key {event.value!r} is not text", "put it in quotes")
            return None
        return key

    def _sequence(self, path: FieldPath) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            found.append(self._value(event, (*path, len(found))))
        return found

    def _alias(self, event: yaml.AliasEvent, path: FieldPath) -> Any:
        name = str(event.anchor)
        if name in self._open:
            self._add(path, event, f"the anchor &{name} holds itself")
            return None
        if name not in self._anchors:
            hint = "put the value in quotes if a text starting with * is meant"
            self._add(path, event, f"no anchor &{name} was set before *{name}", hint)
            return None
        value, nodes = self._anchors[name]
        self._count(nodes, event)
        return value

    def _scalar(self, event: yaml.ScalarEvent, path: FieldPath) -> Any:
        text: str = event.value
        if event.tag not in {None, "!", _STR_TAG}:
            self._add(path, event, f"the tag {event.tag} is not taken", "write the plain value")
            return None
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            self._add(path, event, "holds a NUL or half of a surrogate pair")
            return None
        if event.style or event.tag:
            return text
        return self._resolve(text, event, path)

    def _resolve(self, text: str, event: yaml.Event, path: FieldPath) -> Any:
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INT.fullmatch(text):
            value = _whole_number(text)
            if value is None:
                self._add(path, event, f"the integer {text[:40]} does not fit 64 bits")
            return value
        if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        if _NOT_FINITE.fullmatch(text) or _FLOAT.fullmatch(text):
            self._add(path, event, f"the number {text[:40]} is not finite")
            return None
        return text

    def _count(self, nodes: int, event: yaml.Event) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _Unreadable(f"holds more than {MAX_NODES:,} values", event)

    def _add(
        self, path: FieldPath, event: yaml.Event, message: str, hint: str | None = None
    ) -> None:
        self.findings.append(Finding(path, message, hint, _line(event)))


def _line(event: yaml.Event) -> int:
    mark: Any = event.start_mark
    return int(mark.line) + 1


def _whole_number(text: str) -> int | None:
    """The integer, or None where it does not fit 64 bits."""
    if len(text) > 24:
        return None
    value = int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
    return value if -(2**63) <= value < 2**63 else None


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, where: str) -> Problem:
    mark: Any = error.problem_mark or error.context_mark
    message = str(error.problem)
    if error.context_mark and "end of stream" in message:
        mark, message = error.context_mark, "what opens here is never closed"
    row, column = (mark.line, mark.column) if mark else (0, 0)
    source = next(iter(text.splitlines()[row : row + 1]), "")
    rest = source[column:]
    context = f" {error.context}" if error.context and "simple key" not in error.context else ""
    return Problem(where, f"is not YAML{context}: {message}", row + 1, hint=_mend(source, rest))


def _mend(source: str, rest: str) -> str:
    """What most likely mends a syntax error on the line `source`, found before `rest`."""
    if rest.startswith("\t") or source[: len(source) - len(source.lstrip())].count("\t"):
        return "indent with spaces, not tabs"
    if "${" in source:
        return 'inside [ ] and { } put "${NAME}" in quotes, or write $NAME'
    if rest[:1] in {"@", "`", "%"}:
        return f"put a text that starts with {rest[0]} in quotes"
    return "check the indentation, the brackets, and that text holding ': ' or ' #' is in quotes"
