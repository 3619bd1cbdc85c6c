"""A provider that answers the requests of an attempt from the record of an earlier one.

Requests with one digest are answered in the order in which they were recorded. A gateway that is
started again goes on where the earlier one was: the attempt's own record says which answers it has
had. The first request that the record does not answer is kept beside the trial.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labledger.files.durable_files import create_file
from labledger.gateway.answers import Answer, AnswerCut, Headers, NoAnswer
from labledger.gateway.journal import JournalBroken
from labledger.gateway.recording import Recorded, parse_record, read_records
from labledger.records import JsonObject
from labledger.records.canonical_json import digest, dump_bytes
from labledger.records.json_codec import Section
from labledger.records.model_grants import MISSED, RECORD
from labledger.records.outcomes import Reason

MISSED_SCHEMA = "labledger.missed_request.v1"


@dataclass(frozen=True, slots=True)
class MissedRequest(Section):
    """A request that the record does not answer."""

    request: JsonObject
    """In its canonical form."""
    expected: int | None
    """The recorded call that was to come next; None if the record had no more."""
    schema_version: str = MISSED_SCHEMA


class ReplayMiss(NoAnswer):
    """The record has no answer to a request."""

    def __init__(self, missed: MissedRequest, where: str | None) -> None:
        self.missed = missed
        message = "the record has no more calls"
        if where is not None:
            message = (
                f"the request differs from call {missed.expected} of the record first at {where}"
            )
        super().__init__(Reason.REPLAY_MISS.value, 400, f"labledger: {message}")

    def keep(self, trial: Path) -> None:
        """Write the request, durably, unless an earlier one is there. Raises `JournalBroken`."""
        path = trial / MISSED
        try:
            with suppress(FileExistsError), create_file(path) as file:
                file.write(dump_bytes(self.missed.as_json()) + b"\n")
        except OSError as error:
            raise JournalBroken(f"could not write {path}: {error.strerror}") from error


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
    """Answers the requests of an attempt from a record."""

    def __init__(self, record: Path, trial: Path, ended: Collection[int]) -> None:
        """Read what a record has. `trial` is the attempt's folder.

        The answers of its calls `ended`, which an earlier gateway gave, are not given again; but
        the last one may not have reached the agent, which then asks again. Raises `OSError`, and
        `ValueError` if the file is no record.
        """
        self._record = record
        self._left: dict[int, int] = {}
        """Where the calls that are not answered yet begin in the file, by their numbers."""
        self._by_digest: dict[str, deque[int]] = {}
        self._given: dict[str, int] = {}
        """Where the last answer to each request begins that an earlier gateway gave."""
        with record.open("rb") as file:
            start = 0
            for line in file:
                recorded = parse_record(line, record)
                self._left[recorded.call] = start
                self._by_digest.setdefault(recorded.digest, deque()).append(recorded.call)
                start += len(line)
        for own in read_records(trial / RECORD):
            if own.call in ended and (calls := self._by_digest.get(own.digest)):
                self._given[own.digest] = self._left.pop(calls.popleft())

    def answer(self, request: JsonObject) -> Answer:
        """Return the next answer to a canonical request. Raises `ReplayMiss` if none is left."""
        key = digest(request)
        if calls := self._by_digest.get(key):
            start = self._left.pop(calls.popleft())
            self._given.pop(key, None)
        elif key in self._given:
            start = self._given.pop(key)
        else:
            raise self._miss(request)
        return _RecordedAnswer(self._read(start))

    def _read(self, start: int) -> Recorded:
        with self._record.open("rb") as file:
            file.seek(start)
            return parse_record(file.readline(), self._record)

    def _miss(self, request: JsonObject) -> ReplayMiss:
        number = min(self._left, default=None)
        where = None
        if number is not None:
            where, _, _ = first_difference(self._read(self._left[number]).request, request)
        return ReplayMiss(MissedRequest(request, number), where)


ABSENT = object()
"""What stands where one of two values has nothing."""


def first_difference(one: Any, other: Any, at: str = "request") -> tuple[str, Any, Any]:
    """Return where two JSON values first differ, and what stands there in each.

    For texts it is what follows the part that they share.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if one.get(key, ABSENT) != other.get(key, ABSENT):
                return first_difference(one.get(key, ABSENT), other.get(key, ABSENT), f"{at}.{key}")
    if isinstance(one, list) and isinstance(other, list):
        for index in range(max(len(one), len(other))):
            was, now = (v[index] if index < len(v) else ABSENT for v in (one, other))
            if was != now:
                return first_difference(was, now, f"{at}[{index}]")
    if isinstance(one, str) and isinstance(other, str):
        shared = next(
            (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
            min(len(one), len(other)),
        )
        return f"{at}, character {shared + 1}", one[shared:], other[shared:]
    return at, one, other


def short(value: Any) -> str:
    """Return the beginning of a JSON value as text."""
    if value is ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 120 else f"{text[:120]}…"
