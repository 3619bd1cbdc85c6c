"""The validated result of an attempt, and the records that a slot's commit publishes.

A worker returns a result, and the runner stages or commits it. Results that earlier versions staged
can be read too. Records refer to an artifact by its SHA-256. The digest of a commit covers its
records, and each is one line of a mirror.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from labledger.records import JsonObject
from labledger.records.canonical_json import MAX_DEPTH, sha256_hex
from labledger.records.identity import TrialIds
from labledger.records.json_codec import JsonForm, JsonRow, TypeMismatch, decoder, members
from labledger.records.model_calls import ModelCall
from labledger.records.outcomes import SlotStatus
from labledger.records.resource_use import NO_NUMBERS, ResourceUse

_PREFIX = "artifact://sha256/"
REFERENCE = re.compile(_PREFIX + "([0-9a-f]{64})")
"""A reference to an artifact; its group is the digest in hex."""


def digest_of(reference: str) -> str:
    """Return the digest that a reference names. Any other text is returned unchanged."""
    return reference.removeprefix(_PREFIX)


@dataclass(frozen=True, slots=True)
class Artifact(JsonRow):
    """Content that a record refers to by its SHA-256 (hex)."""

    sha256: str
    size: int
    content: bytes | None = None
    """None if the artifact store has it already."""

    _JSON = ("sha256", "size")

    @classmethod
    def inline(cls, content: bytes) -> Self:
        return cls(sha256_hex(content), len(content), content)

    @property
    def reference(self) -> str:
        return _PREFIX + self.sha256


@dataclass(frozen=True, slots=True)
class Event(JsonRow):
    row_seq: int
    type: str | None
    body: JsonObject

    @classmethod
    def of(cls, row_seq: int, body: JsonObject) -> Self:
        event_type = body.get("type")
        return cls(row_seq, event_type if isinstance(event_type, str) else None, body)


@dataclass(frozen=True, slots=True)
class EventFile(JsonForm):
    """A file of events, too many to hold in memory: one canonical JSON body per line.

    Iterating yields each `Event`, as often as needed, as with a tuple.
    """

    name: str
    count: int
    sha256: str | None = None
    """The file's digest in hex; None if an earlier version of labledger staged it."""
    folder: Path = Path()

    _JSON = ("name", "count", "sha256")
    _KEYS: ClassVar = {"name": "file"}
    _OPTIONAL = frozenset({"sha256"})

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def find_damage(self) -> str | None:
        """Return how the file differs from what was staged, as the rest of a sentence, or None."""
        try:
            with self.path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return None if self.sha256 in (None, digest) else "was changed since it was staged"

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Event]:
        for row_seq, text in enumerate(self.bodies()):
            yield Event.of(row_seq, json.loads(text))

    def bodies(self) -> Iterator[str]:
        """Yield the body of each event, as canonical JSON."""
        with self.path.open("r", encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n")


@dataclass(frozen=True, slots=True)
class Phase(JsonRow):
    """One phase of a trial (`setup`, `agent` or `grader`), as `trial.sh` recorded it."""

    exit_status: int
    """The command's own status; 124 if its time limit ended it."""
    duration_ms: int
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class MetricValue(JsonRow):
    """A named number or text, taken from a trial's result, events, score, timing or calls."""

    metric_id: str
    source: str
    """`result`, `events`, `score`, `runner` or `gateway`."""
    value: float | int | str | bool
    """A bool only in results that an earlier version staged."""


@dataclass(frozen=True, slots=True)
class AttemptResult(JsonForm):
    """The result of one attempt at a slot, validated and final."""

    ids: TrialIds
    schedule_idx: int
    slot_commit_id: str
    attempt: int
    status: SlotStatus
    started_at: str
    """UTC, ISO 8601 with milliseconds and `Z`."""
    ended_at: str
    duration_ms: int
    """From the container's start to its end."""
    container: str
    image_ref: str
    image_id: str
    reason: str | None = None
    """Why the status is not `completed`: a `Reason`, or one of another version of labledger."""
    message: str | None = None
    """A sentence for a person about the reason."""
    exit_status: int | None = None
    """The container's exit status; see the table in `trial.sh`."""
    outcome: str | None = None
    """The agent's own report about its work in `result.json`."""
    phases: Mapping[str, Phase] = field(default_factory=dict)
    predictions: tuple[JsonObject, ...] = ()
    scores: tuple[JsonObject, ...] = ()
    evidence: tuple[JsonObject, ...] = ()
    metrics: tuple[MetricValue, ...] = ()
    events: tuple[Event, ...] | EventFile = ()
    events_dropped: int = 0
    """How many lines of the events file were not stored: too many, or too large."""
    artifacts: tuple[Artifact, ...] = ()
    model_calls: tuple[ModelCall, ...] = ()
    """The agent's calls to models, in order, as the gateway counted them."""
    resource_use: ResourceUse = NO_NUMBERS

    _OPTIONAL = frozenset({"model_calls", "resource_use"})

    @property
    def verdict(self) -> str | None:
        return self.scores[0]["verdict"] if self.scores else None

    @property
    def notes(self) -> list[str]:
        """Why the attempt was started again, if it was."""
        return [text for row in self.evidence for text in row.get("ext", {}).get("notes", [])]

    def as_json(self) -> JsonObject:
        """Return the JSON form, without the contents of artifacts and the events of a file.

        Version 1 has the events, version 2 names their file, and version 3 has calls and either of
        them.
        """
        version = 2 if isinstance(self.events, EventFile) else 1
        return {"version": 3 if self.model_calls else version, **members(self)}

    @classmethod
    def from_json(cls, data: JsonObject, staged_events: Path = Path()) -> Self:
        """Return the result from its JSON form. `staged_events` is the folder of its event file.

        Raises `TypeMismatch`, and `ValueError` for the form of a later version.
        """
        stored = {key: value for key, value in data.items() if key != "version"}
        if data.get("version") not in {1, 2, 3}:
            raise ValueError(f"a staged result of version {data.get('version')} cannot be read")
        if missing := _IN_EVERY_FORM - stored.keys():
            raise TypeMismatch("a staged result needs this key", (min(missing),))
        result: Self = decoder(cls)(stored)
        if isinstance(result.events, EventFile):
            return replace(result, events=replace(result.events, folder=staged_events))
        return result


_IN_EVERY_FORM = frozenset(
    ("phases", "predictions", "scores", "evidence", "metrics", "events", "artifacts")
)
"""Keys that every version wrote, although their fields have defaults."""


RECORD_KINDS = ("predictions", "scores", "evidence", "trials", "metrics", "events", "model_calls")
"""The kinds of record that a commit publishes: the fields of `SlotRecords`, one mirror each."""

ONLY_IF_ANY = frozenset({"model_calls"})
"""Kinds that came later. Digests of commits without such records do not cover them, and runs
without such records have no such mirror, so older digests and mirrors stay valid.
"""

MAX_LINE_BYTES = 64 << 20
"""The longest line of a mirror. The largest record has a prediction of 8 MiB, and each byte becomes
at most six.
"""
MAX_RECORD_DEPTH = MAX_DEPTH + 8
"""A record contains JSON of an agent, which may nest as deep as `MAX_DEPTH`."""


@dataclass(frozen=True, slots=True)
class SlotRecords:
    """The records of one commit, each as the canonical JSON line of its mirror."""

    schedule_idx: int
    variant_id: str
    status: SlotStatus
    reason: str | None = None
    verdict: str | None = None
    agent_exit_status: int | None = None
    """The agent's exit status; None if no agent ran, or if it is not known."""
    trials: tuple[str, ...] = ()
    predictions: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    events: Collection[str] = ()
    """A tuple, unless there are too many to hold in memory."""
    model_calls: tuple[str, ...] = ()
    """The calls of every attempt."""

    def lines(self, kind: str) -> Collection[str]:
        """Return the records of one of `RECORD_KINDS`, as text without line ends."""
        lines: Collection[str] = getattr(self, kind)
        return lines

    def objects(self, kind: str) -> list[JsonObject]:
        """Return the records of one of `RECORD_KINDS`, parsed."""
        return [json.loads(line) for line in self.lines(kind)]
