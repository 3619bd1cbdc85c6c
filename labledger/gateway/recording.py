"""Recorded requests and answers of an attempt, and a provider that answers from them.

Each call has one file, named by its number. A request is identified by the digest of its canonical
form: what it says, without what differs each time an agent runs. Requests with one digest are
answered in the order in which they were recorded.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from labledger.files.durable_files import create_file
from labledger.gateway.admission import Target
from labledger.gateway.answers import Answer, AnswerCut, NoAnswer
from labledger.gateway.headers import Headers
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
    r"|(?P<time>\b20\d\d-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)"
)
"""Names and times that a program makes anew each time it runs."""
_NUMBERED = re.compile(r"<(?:uuid|time) \d+>")


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
    alike stay alike.
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
    text = _CHANGING.sub(number, dump_bytes(kept).decode())
    request = {
        "provider": target.provider.name,
        "path": target.path,
        "body": json.loads(text),
    }
    return CanonicalRequest(request, replaced)


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
        try:
            yield Recorded.from_json(json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is no record of a call: {error}") from None


@dataclass(frozen=True, slots=True)
class _RecordedAnswer:
    """An answer from a record."""

    recorded: Recorded
    key: str | None = None

    @property
    def status(self) -> int:
        return self.recorded.status

    @property
    def headers(self) -> Headers:
        return [(name, value) for name, value in self.recorded.headers]

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self.recorded.body_bytes
        if self.recorded.cut:
            raise AnswerCut

    def close(self) -> None:
        """Nothing is left to take."""


class Replay:
    """Answers the requests of an attempt from the record of an earlier one."""

    def __init__(self, folder: Path) -> None:
        """Raises `OSError`, and `ValueError`, if the folder is no record."""
        self._folder = folder
        self._left: dict[int, Path] = {}
        self._by_digest: dict[str, list[int]] = {}
        if not folder.is_dir():
            raise FileNotFoundError(2, "no such folder", str(folder))
        for recorded in read_records(folder):
            self._left[recorded.call] = folder / f"{recorded.call:06d}.json"
            self._by_digest.setdefault(recorded.digest, []).append(recorded.call)

    def answer(self, request: JsonObject) -> Answer:
        """Return the next answer to a request. Raises `NoAnswer` if none is left."""
        calls = self._by_digest.get(digest(request))
        if not calls:
            raise NoAnswer("replay_miss", 400, f"labledger: {self._difference(request)}")
        path = self._left.pop(calls.pop(0))
        return _RecordedAnswer(Recorded.from_json(json.loads(path.read_bytes())))

    def _difference(self, request: JsonObject) -> str:
        if not self._left:
            return f"the record {self._folder} has no more calls"
        number = min(self._left)
        expected = Recorded.from_json(json.loads(self._left[number].read_bytes())).request
        where, was, now = first_difference(expected, request)
        return (
            f"the request differs from call {number} of the record {self._folder} "
            f"first at {where}: recorded {_short(was)}, now {_short(now)}"
        )


_ABSENT = object()


def first_difference(one: Any, other: Any, at: str = "request") -> tuple[str, Any, Any]:
    """Return where two JSON values first differ, and what stands there in each.

    For texts it is what follows the part that they share.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if one.get(key, _ABSENT) != other.get(key, _ABSENT):
                return first_difference(
                    one.get(key, _ABSENT), other.get(key, _ABSENT), f"{at}.{key}"
                )
    if isinstance(one, list) and isinstance(other, list):
        for index in range(max(len(one), len(other))):
            was, now = (v[index] if index < len(v) else _ABSENT for v in (one, other))
            if was != now:
                return first_difference(was, now, f"{at}[{index}]")
    if isinstance(one, str) and isinstance(other, str):
        shared = next(
            (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
            min(len(one), len(other)),
        )
        return f"{at}, character {shared + 1}", one[shared:], other[shared:]
    return at, one, other


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 120 else f"{text[:120]}…"
