"""Recorded requests and answers of an attempt.

Each call has one file of one line, named by its number. A request is identified by the digest of
its canonical form: what it says, without what differs each time an agent runs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from labledger.files.durable_files import create_file
from labledger.gateway.admission import Target
from labledger.gateway.answers import Headers
from labledger.gateway.journal import JournalBroken
from labledger.records import JsonObject
from labledger.records.canonical_json import digest, dump_bytes
from labledger.records.json_codec import Section

SCHEMA = "labledger.model_record.v1"
_MAX_KEPT = 64 << 20
_OF_ONE_RUN = frozenset(
    {"metadata", "client_metadata", "prompt_cache_key", "safety_identifier", "user"}
)
"""Members of a request by which agents name their session and user, and which change no answer."""
_CHANGING = re.compile(
    r"(?i)(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?P<time>(?<!\d)20\d\d-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)"
    r"|(?P<moment>(?<![\d:,\[])1[6-9]\d{11}(?!\d))"
    r"|(?P<output>Chunk ID: [0-9a-f]+\\nWall time: [0-9.]+ seconds|Process Group PGID: \d+)"
)
"""Names and times that a program makes anew each time it runs, in the text of a request's JSON.

A line may begin with one, after an escaped line end. A moment is in milliseconds, as in names that
Gemini CLI makes, and within a text: a number of JSON stays. The last ones are what Codex and
Gemini CLI add to what a command printed.
"""
_UNORDERED = tuple(
    (re.compile(listed), re.compile(item))
    for listed, item in (
        (
            r"<available_skills>(?:(?!<available_skills>).)*?</available_skills>",
            r"<skill>(?:(?!<skill>).)*?</skill>",
        ),
        (r"\(Available: (?:'[^']*'(?:, )?)+\)", r"'[^']*'"),
        (r'"enum":\[(?:"(?:[^"\\]|\\.)*"|[^"\[\]{}])*\]', r'"(?:[^"\\]|\\.)*"(?=[,\]])'),
    )
)
"""Lists that are sets, in the text of a request's JSON, and their items.

Gemini CLI names its skills, to the model and as values of a tool's parameter, in the order in which
it happened to read their files. An agent writes the text: each search ends where another list
begins, so that many lists without an end take no longer than others.
"""
_NUMBERED = re.compile(r"<(?:uuid|time|moment|output) \d+>")


@dataclass(frozen=True, slots=True)
class Recorded(Section):
    """A call as it was recorded."""

    call: int
    digest: str
    """That of the canonical request."""
    request: JsonObject
    """The canonical request."""
    status: int
    headers: tuple[tuple[str, str], ...]
    body: str
    encoding: str = "utf-8"
    """`base64` for a body that is no text."""
    cut: bool = False
    """Whether the answer ended too early."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """What the numbered names and times of the canonical request stand for."""
    schema_version: str = SCHEMA

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"encoding", "cut"})

    @property
    def said(self) -> JsonObject:
        """The body of the request with its own names and times."""
        text = dump_bytes(self.request["body"]).decode()
        original: JsonObject = json.loads(
            _NUMBERED.sub(lambda match: self.replaced.get(match[0], match[0]), text)
        )
        return original

    @property
    def body_bytes(self) -> bytes:
        """The answer's body."""
        return base64.b64decode(self.body) if self.encoding == "base64" else self.body.encode()


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """What a request says, without what differs each time that an agent runs."""

    request: JsonObject
    replaced: Mapping[str, str]
    """What the numbered names and times in it stand for."""


def canonical_request(target: Target, document: JsonObject) -> CanonicalRequest:
    """Return the canonical form of a request.

    UUIDs and dates are numbered in the order in which they first appear, so that those that are
    alike stay alike. Lists that are sets are sorted.
    """
    kept = {key: value for key, value in document.items() if key not in _OF_ONE_RUN}
    numbers: dict[str, str] = {}
    replaced: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        label = f"<{match.lastgroup} {len(numbers) + 1}>"
        label = numbers.setdefault(match[0].lower(), label)
        replaced.setdefault(label, match[0])
        return label

    # The text is canonical, so that the order of members does not change the numbers.
    text = _CHANGING.sub(number, _with_sorted_sets(dump_bytes(kept).decode()))
    request = {
        "provider": target.provider.name,
        "path": target.path,
        "body": json.loads(text),
    }
    return CanonicalRequest(request, replaced)


def _with_sorted_sets(text: str) -> str:
    for listed, item in _UNORDERED:

        def in_order(found: re.Match[str], item: re.Pattern[str] = item) -> str:
            items = iter(sorted(item.findall(found[0])))
            return item.sub(lambda _: next(items), found[0])

        text = listed.sub(in_order, text)
    return text


@dataclass
class Recording:
    """The record of one call, while it is made."""

    folder: Path
    call: int
    asked: CanonicalRequest
    _status: int = 0
    _headers: Headers = field(default_factory=list)
    _body: bytearray = field(default_factory=bytearray)
    _cut: bool = False
    _begun: bool = False

    def begin(self, status: int, headers: Headers) -> None:
        """Keep the head of the answer."""
        self._status, self._headers, self._begun = status, headers, True

    def take(self, piece: bytes) -> None:
        """Keep a part of the answer."""
        if len(self._body) + len(piece) <= _MAX_KEPT:
            self._body += piece
        else:
            self._cut = True

    def note_cut(self) -> None:
        """Note that the answer ended too early."""
        self._cut = True

    async def end(self) -> None:
        """Write the record, durably, unless it was written. Raises `JournalBroken`."""
        if self._begun:
            self._begun = False
            await asyncio.get_running_loop().run_in_executor(None, self._write)

    def end_now(self) -> None:
        """Write the record at once, without awaiting, because the answer ended too early."""
        if self._begun:
            self._begun, self._cut = False, True
            self._write()

    def _write(self) -> None:
        try:
            body, encoding = self._body.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:
            body, encoding = base64.b64encode(self._body).decode("ascii"), "base64"
        recorded = Recorded(
            call=self.call,
            digest=digest(self.asked.request),
            request=self.asked.request,
            status=self._status,
            headers=tuple((name, value) for name, value in self._headers),
            body=body,
            encoding=encoding,
            cut=self._cut,
            replaced=self.asked.replaced,
        )
        path = self.folder / f"{self.call:06d}.json"
        try:
            with create_file(path) as file:
                file.write(dump_bytes(recorded.as_json()) + b"\n")
        except OSError as error:
            raise JournalBroken(f"could not write {path}: {error.strerror}") from error


def read_records(folder: Path) -> Iterator[Recorded]:
    """Yield the recorded calls of an attempt in order. Raises `OSError`, and `ValueError`."""
    for path in sorted(folder.glob("*.json")):
        yield parse_record(path.read_bytes(), path)


def parse_record(line: bytes, path: Path) -> Recorded:
    """Return the recorded call in a line of a file. Raises `ValueError`."""
    try:
        return Recorded.from_json(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is no record of calls: {error}") from None
