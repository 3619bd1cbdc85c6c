"""Read and validate an experiment file: YAML, its JSON schema, and fields that fit together.

All problems are reported together. If the file is no experiment, no message repeats its text, which
may be a linked secret. YAML 1.2 is built from parser events with limits on depth and size. Import
this module late: it loads PyYAML.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from labledger.errors import InvalidInput, Problem
from labledger.experiment import consistency_checks
from labledger.experiment.authored_fields import AuthoredExperiment, FieldPath, FieldProblem
from labledger.experiment.authored_fields import text as text_of
from labledger.files.project_files import open_regular
from labledger.records import json_schemas
from labledger.records.bounded_yaml import nests_too_deeply
from labledger.records.canonical_json import MAX_DEPTH

MAX_BYTES = 4 << 20
"""The largest experiment file that is read, in bytes."""

MAX_NODES = 100_000
"""The largest number of values in a document, with aliases expanded."""

_TOO_DEEP = f"nests deeper than {MAX_DEPTH} levels"
_FEWEST_SECTIONS = 2
"""A text with this many sections of an experiment counts as an experiment with problems."""

_MAX_QUOTED = 80
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STR_TAG = "tag:yaml.org,2002:str"
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def load_experiment(path: Path) -> AuthoredExperiment:
    """Read and check the experiment file at `path`.

    Raises `InvalidInput` with all problems in the order of lines: of the YAML, against the schema
    `experiment_v1`, and of fields that contradict each other. The tasks are not read yet.
    """
    text = _read_text(path)
    is_experiment = _is_experiment(text)
    document = parse_yaml(text, str(path), quotes=is_experiment)
    if document.data is not None and not is_experiment:
        raise _no_experiment(path, document.problems)
    authored = AuthoredExperiment(path, text, document.data, document.lines, document.numbers)
    problems = document.problems
    invalid_paths = {problem.path for problem in problems}
    problems += [p for p in _schema_problems(document.data) if p.path not in invalid_paths]
    problems += consistency_checks.find_problems(
        authored.data, path.parent, [p.path for p in problems]
    )
    if problems:
        problems.sort(key=lambda p: p.line or authored.line(p.path))
        located = [authored.problem(p.path, p.message, p.hint, p.line) for p in problems]
        raise InvalidInput(f"the experiment {path} is not valid", located)
    return authored


_REQUIRED = tuple(json_schemas.load_schema("experiment_v1")["required"])
_MENTIONED = re.compile(rf"""(?:^|[{{,]\s*)(["']?)({"|".join(_REQUIRED)})\1\s*:""", re.MULTILINE)
"""The name of a section of every experiment, as a key at the beginning of a line."""


def _is_experiment(text: str) -> bool:
    """Return whether a text, which may be invalid YAML, is meant to be an experiment."""
    return len({match[2] for match in _MENTIONED.finditer(text)}) >= _FEWEST_SECTIONS


def _no_experiment(path: Path, details: Iterable[FieldProblem]) -> InvalidInput:
    """Return the error for a file that is not an experiment, without the names of its fields."""
    sections = ", ".join(_REQUIRED)
    message = f"is not an experiment: expected a mapping with the sections {sections}"
    hint = "check the path; `labledger init DIR` writes an experiment to start from"
    problems = [Problem(str(path), message, 1, hint=hint)]
    problems += [Problem(str(path), one.message, one.line, hint=one.hint) for one in details]
    return InvalidInput(f"cannot read the experiment {path}", problems)


def _schema_problems(data: Any) -> Iterator[FieldProblem]:
    if data is None:
        yield FieldProblem(
            (), "is empty", "`labledger init DIR` writes an experiment to start from"
        )
        return
    for path, message in json_schemas.problems(data, "experiment_v1"):
        yield FieldProblem(path, message, _quoting_hint(data, path, message))


def _quoting_hint(data: Any, path: FieldPath, message: str) -> str | None:
    """Return a hint for a bare value that YAML did not read as text where text was expected."""
    value = data
    for step in path:
        if isinstance(value, dict) and step not in value:
            return None
        value = value[step]
    bare = value is None or isinstance(value, bool | int | float)
    expects_text = message.endswith("expected text")
    return "put it in quotes if text is meant" if bare and expects_text else None


def _read_text(path: Path) -> str:
    try:
        file, _ = open_regular(path)
        with file:
            content = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        hint = f"name the file in it, such as {path / 'experiment.yaml'}"
        raise _unreadable(path, "is a folder; a file is expected", hint=hint) from None
    except FileNotFoundError:
        hint = "check the path; `labledger init DIR` writes an experiment to start from"
        raise _unreadable(path, "there is no such file", hint=hint) from None
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        hint = "tasks belong in the dataset's JSONL file"
        raise _unreadable(path, f"is larger than {MAX_BYTES >> 20} MiB", hint=hint)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text (byte {error.start} of the file)"
        raise _unreadable(path, message, line, "save the file as UTF-8") from None


def _unreadable(
    path: Path, message: str, line: int | None = None, hint: str | None = None
) -> InvalidInput:
    return InvalidInput(
        f"cannot read the experiment {path}", [Problem(str(path), message, line, hint=hint)]
    )


class YamlDocument(NamedTuple):
    """One YAML document: JSON values, the line of each field, and its problems."""

    data: Any
    lines: Mapping[FieldPath, int]
    problems: list[FieldProblem]
    numbers: Mapping[FieldPath, str]
    """The written form of numbers whose value has another text, such as 3.10."""


def parse_yaml(text: str, file_name: str, *, quotes: bool = True) -> YamlDocument:
    """Parse the single document in `text`; `file_name` is for messages.

    Without `quotes`, messages repeat no part of the text, and problems name only fields. Only
    ``true`` and ``false`` are booleans (``no`` and ``on`` are text), as in YAML 1.2. Duplicate
    keys, keys that are not text, numbers that JSON cannot represent, tags, merge keys and anchors
    that contain themselves become problems. Raises `InvalidInput` if the text is not YAML, contains
    several documents, or nests deeper than 64 levels.
    """
    try:
        builder = _Builder(yaml.parse(text, Loader=_LOADER), quotes=quotes)
        data = builder.document()
    except yaml.MarkedYAMLError as error:
        problem = _syntax_problem(error, text, file_name, quotes=quotes)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = Problem(file_name, "contains control characters; this is not a text file", line)
    except _Unreadable as error:
        problem = Problem(file_name, error.message, error.line, hint=error.hint)
    else:
        return YamlDocument(data, builder.lines, builder.problems, builder.numbers)
    raise InvalidInput(f"cannot read {file_name}", [problem])


class _Unreadable(Exception):
    def __init__(self, message: str, event: yaml.Event, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = _line(event)
        self.hint = hint


class _Builder:
    """Builds plain values from YAML events, with limits on depth and size."""

    def __init__(self, events: Iterator[yaml.Event], *, quotes: bool) -> None:
        self.events = events
        self._quotes = quotes
        self.lines: dict[FieldPath, int] = {}
        self.problems: list[FieldProblem] = []
        self.numbers: dict[FieldPath, str] = {}
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._open_anchors: set[str] = set()
        self._nodes = 0

    def document(self) -> Any:
        next(self.events)
        start = next(self.events)
        if isinstance(start, yaml.StreamEndEvent):
            return None
        value = self._value(next(self.events), ())
        next(self.events)
        end = next(self.events)
        if not isinstance(end, yaml.StreamEndEvent):
            raise _Unreadable(
                "a second document starts here; one is expected", end, "remove the '---'"
            )
        return value

    def _value(self, event: yaml.Event, path: FieldPath) -> Any:
        self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        self._count(1, event)
        if len(path) > MAX_DEPTH:
            raise _Unreadable(_TOO_DEEP, event)
        before = self._nodes
        anchor: str | None = getattr(event, "anchor", None)
        if anchor:
            self._open_anchors.add(anchor)
        value = self._without_anchor(event, path)
        if anchor:
            self._open_anchors.discard(anchor)
            self._anchors[anchor] = (value, self._nodes - before + 1)
        return value

    def _without_anchor(self, event: yaml.Event, path: FieldPath) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if tag := getattr(event, "tag", None):
            self._add_problem(
                path,
                event,
                f"the tag{self._quoted(tag)} is not supported",
                "write the plain value",
            )
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        return self._sequence(path)

    def _mapping(self, path: FieldPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(key_event := next(self.events), yaml.MappingEndEvent):
            key = self._key(key_event, path)
            value_event = next(self.events)
            if key is None:
                self._value(value_event, (*path, "?"))
                continue
            if key in mapping:
                first = self.lines[*path, key]
                self._add_problem(
                    (*path, key), key_event, f"is a duplicate key; the first is on line {first}"
                )
            else:
                self.lines[*path, key] = _line(key_event)
            mapping[key] = self._value(value_event, (*path, key))
        return mapping

    def _key(self, event: yaml.Event, path: FieldPath) -> str | None:
        """Return the text of a key, or add a problem and return None if it is not text."""
        if not isinstance(event, yaml.ScalarEvent):
            self._value(event, (*path, "?"))
            self._add_problem(path, event, "a key must be text, not a list, a mapping or an alias")
            return None
        key = self._scalar(event, path)
        if key == "<<" and not event.style:
            hint = "write the keys out; an anchor and alias may stand for one whole value"
            self._add_problem(path, event, "merge keys (<<) are not part of YAML 1.2", hint)
            return None
        if not isinstance(key, str):
            self._add_problem(
                path,
                event,
                f"the key{self._quoted(repr(event.value))} is not text",
                "put it in quotes",
            )
            return None
        return key

    def _sequence(self, path: FieldPath) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _alias(self, event: yaml.AliasEvent, path: FieldPath) -> Any:
        name = str(event.anchor)
        if name in self._open_anchors:
            self._add_problem(path, event, f"the anchor{self._quoted(f'&{name}')} contains itself")
            return None
        if name not in self._anchors:
            hint = "put the value in quotes if it is text that starts with *"
            named = f" &{name} before *{name}" if self._quotes else " before an alias"
            self._add_problem(path, event, f"there is no anchor{named}", hint)
            return None
        value, nodes = self._anchors[name]
        self._count(nodes, event)
        return value

    def _scalar(self, event: yaml.ScalarEvent, path: FieldPath) -> Any:
        text: str = event.value
        if event.tag not in {None, "!", _STR_TAG}:
            self._add_problem(
                path,
                event,
                f"the tag{self._quoted(event.tag)} is not supported",
                "write the plain value",
            )
            return None
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            self._add_problem(path, event, "contains a NUL or half of a surrogate pair")
            return None
        if event.style or event.tag:
            return text
        value = self._resolve(text, event, path)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and text_of(value) != text:
            self.numbers[path] = text
        return value

    def _resolve(self, text: str, event: yaml.Event, path: FieldPath) -> Any:
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INT.fullmatch(text):
            value = _whole_number(text)
            if value is None:
                self._add_problem(
                    path, event, f"the integer{self._quoted(text)} does not fit 64 bits"
                )
            return value
        if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        if _NOT_FINITE.fullmatch(text) or _FLOAT.fullmatch(text):
            self._add_problem(path, event, f"the number{self._quoted(text)} is not finite")
            return None
        return text

    def _quoted(self, text: str) -> str:
        return f" {text[:_MAX_QUOTED]}" if self._quotes else ""

    def _count(self, nodes: int, event: yaml.Event) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _Unreadable(f"contains more than {MAX_NODES:,} values", event)

    def _add_problem(
        self, path: FieldPath, event: yaml.Event, message: str, hint: str | None = None
    ) -> None:
        self.problems.append(FieldProblem(path, message, hint, _line(event)))


def _line(event: yaml.Event) -> int:
    mark: Any = event.start_mark
    return int(mark.line) + 1


def _whole_number(text: str) -> int | None:
    """Return the integer, or None if it does not fit 64 bits."""
    if len(text) > 24:
        return None
    value = int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
    return value if -(2**63) <= value < 2**63 else None


def _syntax_problem(
    error: yaml.MarkedYAMLError, text: str, file_name: str, *, quotes: bool
) -> Problem:
    mark: Any = error.problem_mark or error.context_mark
    if nests_too_deeply(error):
        return Problem(file_name, _TOO_DEEP, mark.line + 1 if mark else None)
    message = str(error.problem)
    if error.context_mark and "end of stream" in message:
        mark, message = error.context_mark, "a quote or bracket that opens here is never closed"
    row, column = (mark.line, mark.column) if mark else (0, 0)
    source = next(iter(text.splitlines()[row : row + 1]), "")
    rest = source[column:]
    context = f" {error.context}" if error.context and "simple key" not in error.context else ""
    if not quotes and mark is not error.context_mark:
        context, message = "", f"see column {column + 1}"
    return Problem(
        file_name, f"is not YAML{context}: {message}", row + 1, hint=_syntax_hint(source, rest)
    )


def _syntax_hint(source: str, rest: str) -> str:
    """Return the likely fix of a syntax error on the line `source`, detected before `rest`."""
    if rest.startswith("\t") or source[: len(source) - len(source.lstrip())].count("\t"):
        return "indent with spaces, not tabs"
    if "${" in source:
        return 'inside [ ] and { } put "${NAME}" in quotes, or write $NAME'
    if rest[:1] in {"@", "`", "%"}:
        return f"put text that starts with {rest[0]} in quotes"
    return "check the indentation, the brackets, and that text with ': ' or ' #' is in quotes"
