"""The words of the ledger as types: what a trial hands back, and what a commit publishes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from labledger.records.canonical_json import sha256_hex

JsonObject = dict[str, Any]
"""A JSON object."""

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""What can name a run, its folder and its containers."""


CONTAINER_FAILED = "container_failed"
HOST_ERROR = "host_error"
NAME_TAKEN = "name_taken"
NOT_STARTED = frozenset({CONTAINER_FAILED, HOST_ERROR, NAME_TAKEN})
"""Reasons of an `infra_error` with which nothing of a trial has run."""


class SlotStatus(StrEnum):
    """How the execution of a slot ended. Says nothing about the quality of the answer."""

    COMPLETED = "completed"
    AGENT_ERROR = "agent_error"
    AGENT_TIMEOUT = "agent_timeout"
    SETUP_ERROR = "setup_error"
    GRADE_ERROR = "grade_error"
    INFRA_ERROR = "infra_error"
    CANCELLED = "cancelled"
    SKIPPED_PRUNED = "skipped_pruned"


class Verdict(StrEnum):
    """What the grader judged. Only a score row carries one."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    MISSING = "missing"
    ERROR = "error"


class GradeReason(StrEnum):
    """Why a slot is a `grade_error`."""

    GRADER_EXIT_NONZERO = "grader_exit_nonzero"
    GRADER_TIMEOUT = "grader_timeout"
    PREDICTION_MISSING = "prediction_missing"
    SCORE_MISSING = "score_missing"
    INVALID_JSON = "invalid_json"
    SCHEMA_INVALID = "schema_invalid"
    IDENTITY_MISMATCH = "identity_mismatch"
    OUTPUT_UNSAFE = "output_unsafe"
    OUTPUT_TOO_LARGE = "output_too_large"
    EVIDENCE_INCOMPLETE = "evidence_incomplete"
    """Of a regrading: the workspace cannot be restored exactly."""


class RunStatus(StrEnum):
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"


class StopCause(StrEnum):
    """Why a coordinator stopped before every slot of its run was committed."""

    INTERRUPT = "interrupt"
    """Ctrl-C, TERM, or a terminal that was closed."""
    BUDGET = "budget"
    ERROR_RATE = "error_rate"
    ENGINE = "engine"
    """The Docker engine was gone for longer than `--patience`."""
    REFUSALS = "refusals"
    """The engine started no trial for longer than `--patience`."""
    DISK = "disk"
    """There was no room for longer than `--patience`."""
    UNCOLLECTED = "uncollected"
    """A trial's result could not be read from its container."""
    ERROR = "error"
    """The coordinator itself failed."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One cell of the schedule."""

    schedule_idx: int
    variant_id: str
    task_id: str
    repl_idx: int


@dataclass(frozen=True, slots=True)
class TrialIds:
    """Who a row is about: the `ids` of every record."""

    run_id: str
    trial_id: str
    variant_id: str
    task_id: str
    repl_idx: int

    @classmethod
    def of(cls, run_id: str, slot: Slot) -> Self:
        trial_id = f"{run_id}-s{slot.schedule_idx:06d}"
        return cls(run_id, trial_id, slot.variant_id, slot.task_id, slot.repl_idx)

    def as_json(self) -> JsonObject:
        return {
            "run_id": self.run_id,
            "trial_id": self.trial_id,
            "variant_id": self.variant_id,
            "task_id": self.task_id,
            "repl_idx": self.repl_idx,
        }


def slot_commit_id(run_id: str, schedule_idx: int) -> str:
    """The name of a slot's commit, known before it happens, so that workers can stamp it."""
    return "sc_" + hashlib.sha256(f"{run_id}\n{schedule_idx}".encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a trial (`setup`, `agent` or `grader`), as PID 1 of the container saw it."""

    exit_status: int
    """The command's own status; 124 when its time limit ended it."""
    duration_ms: int
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    metric_id: str
    source: str
    """`result`, `events`, `score` or `runner`."""
    value: float | int | str


@dataclass(frozen=True, slots=True)
class Event:
    row_seq: int
    type: str | None
    body: JsonObject

    @classmethod
    def of(cls, row_seq: int, body: JsonObject) -> Self:
        kind = body.get("type")
        return cls(row_seq, kind if isinstance(kind, str) else None, body)


@dataclass(frozen=True, slots=True)
class EventFile:
    """Events that are too many to be held in memory: a file of their bodies, one a line.

    Can be iterated as often as needed, as a tuple of `Event` can. Each line is canonical JSON.
    """

    folder: Path
    name: str
    count: int
    sha256: str | None = None
    """Of the file, in hex; None where an earlier version of labledger staged it."""

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def problem(self) -> str | None:
        """Return how the file is not what was staged, as the rest of a sentence, or None."""
        try:
            with self.path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return None if self.sha256 in (None, found) else "was changed since it was staged"

    def as_json(self) -> JsonObject:
        digest = {} if self.sha256 is None else {"sha256": self.sha256}
        return {"file": self.name, "count": self.count, **digest}

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Event]:
        for row_seq, text in enumerate(self.bodies()):
            yield Event.of(row_seq, json.loads(text))

    def bodies(self) -> Iterator[str]:
        """The body of each event, as canonical JSON."""
        with self.path.open("r", encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n")


@dataclass(frozen=True, slots=True)
class Artifact:
    """Content that a record refers to by its SHA-256 (hex)."""

    sha256: str
    size: int
    content: bytes | None
    """None when it lies in the artifact store already."""

    @classmethod
    def inline(cls, content: bytes) -> Self:
        return cls(sha256_hex(content), len(content), content)

    @property
    def reference(self) -> str:
        return f"artifact://sha256/{self.sha256}"


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What a worker hands back for one attempt at a slot: everything, validated, final."""

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
    """A machine's word for why the status is not `completed`, such as a `GradeReason`."""
    message: str | None = None
    """A sentence for a person about the reason."""
    exit_status: int | None = None
    """The container's exit status; see the table in `trial.sh`."""
    outcome: str | None = None
    """The agent's own word on its result, from `result.json`."""
    phases: Mapping[str, Phase] = field(default_factory=dict)
    predictions: tuple[JsonObject, ...] = ()
    scores: tuple[JsonObject, ...] = ()
    evidence: tuple[JsonObject, ...] = ()
    metrics: tuple[Metric, ...] = ()
    events: tuple[Event, ...] | EventFile = ()
    events_dropped: int = 0
    """Lines of the events file that could not be kept."""
    artifacts: tuple[Artifact, ...] = ()

    @property
    def verdict(self) -> str | None:
        return self.scores[0]["verdict"] if self.scores else None

    @property
    def notes(self) -> list[str]:
        """Why the attempt was begun anew, where it was."""
        return [text for row in self.evidence for text in row.get("ext", {}).get("notes", [])]

    def as_json(self) -> JsonObject:
        """A JSON form without what is kept apart: artifacts' contents, and events in a file."""
        apart = isinstance(self.events, EventFile)
        return {
            "version": 2 if apart else 1,
            "ids": self.ids.as_json(),
            "status": self.status.value,
            **{name: getattr(self, name) for name in _PLAIN_FIELDS},
            "phases": {
                name: [p.exit_status, p.duration_ms, p.timed_out] for name, p in self.phases.items()
            },
            "predictions": list(self.predictions),
            "scores": list(self.scores),
            "evidence": list(self.evidence),
            "metrics": [[m.metric_id, m.source, m.value] for m in self.metrics],
            "events": (
                self.events.as_json()
                if isinstance(self.events, EventFile)
                else [[e.row_seq, e.type, e.body] for e in self.events]
            ),
            "artifacts": [[a.sha256, a.size] for a in self.artifacts],
        }

    @classmethod
    def from_json(cls, data: JsonObject, staged_events: Path = Path()) -> Self:
        """The inverse of `as_json`. `staged_events` is the folder of its file of events."""
        if data["version"] not in {1, 2}:
            raise ValueError(f"a staged result of version {data['version']} cannot be read")
        rest = {key: value for key, value in data.items() if key != "version"}
        return cls(
            **{
                **rest,
                "ids": TrialIds(**data["ids"]),
                "status": SlotStatus(data["status"]),
                "phases": {name: Phase(*values) for name, values in data["phases"].items()},
                "predictions": tuple(data["predictions"]),
                "scores": tuple(data["scores"]),
                "evidence": tuple(data["evidence"]),
                "metrics": tuple(Metric(*values) for values in data["metrics"]),
                "events": (
                    tuple(Event(*values) for values in data["events"])
                    if data["version"] == 1
                    else EventFile(
                        staged_events,
                        data["events"]["file"],
                        data["events"]["count"],
                        data["events"].get("sha256"),
                    )
                ),
                "artifacts": tuple(Artifact(sha, size, None) for sha, size in data["artifacts"]),
            }
        )


_PLAIN_FIELDS = (
    "schedule_idx",
    "slot_commit_id",
    "attempt",
    "started_at",
    "ended_at",
    "duration_ms",
    "container",
    "image_ref",
    "image_id",
    "reason",
    "message",
    "exit_status",
    "outcome",
    "events_dropped",
)

RECORD_KINDS = ("predictions", "scores", "evidence", "trials", "metrics", "events")
"""The kinds of record that a commit publishes: the fields of `SlotRecords`, one mirror each."""


@dataclass(frozen=True, slots=True)
class SlotRecords:
    """What one commit publishes: each record as the canonical JSON line that its mirror holds."""

    schedule_idx: int
    variant_id: str
    status: SlotStatus
    reason: str | None = None
    verdict: str | None = None
    trials: tuple[str, ...] = ()
    predictions: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    events: Collection[str] = ()
    """A tuple, but for more than should be held in memory."""

    def lines(self, kind: str) -> Collection[str]:
        """The records of one of `RECORD_KINDS`, as text without line ends."""
        found: Collection[str] = getattr(self, kind)
        return found

    def objects(self, kind: str) -> list[JsonObject]:
        """The records of one of `RECORD_KINDS`, parsed."""
        return [json.loads(line) for line in self.lines(kind)]

    @property
    def agent_exit_status(self) -> int | None:
        """The agent's exit status; None where no agent ran, or where it is not known."""
        for trial in self.objects("trials"):
            agent = trial["phases"]["agent"]
            return None if agent is None else int(agent["exit_status"])
        return None
