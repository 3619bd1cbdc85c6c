"""Read the events that an agent wrote to `events.jsonl`: one JSON object per line.

Number, size and complexity of events are limited, and memory use does not grow with them: many
events go to a file in the artifact store's folder. Every event is redacted. Used by `artifacts`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from labledger.errors import MalformedJson
from labledger.records import JsonObject, canonical_json
from labledger.records.events import Event, EventFile
from labledger.storage.durable_files import replace_file
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.evidence.redaction import Redactor
from labledger.workspace.untrusted_files import head_chunks

MAX_EVENTS = 100_000
"""How many events of a trial become rows. The whole file is also stored as an artifact."""
MAX_INVALID_LINES = 100_000
"""After this many invalid lines, the rest of the file is not read."""
MAX_EVENT_VALUES = 2_000_000
"""How many JSON values the events of a trial may hold together: a line is parsed in memory."""
MAX_BYTES_IN_MEMORY = 256 << 10
"""Events of more bytes are written to a file."""


def event_file_for(spec: AttemptSpec) -> EventFile:
    """Return the file for a trial's events if they are many. It outlives the trial folder."""
    name = f"{spec.run_id}/{spec.slot.schedule_idx:06d}-{spec.attempt}.jsonl"
    return EventFile(spec.plan.store_root / "staged", name, 0)


def read_events(
    file: BinaryIO, cap: int, redactor: Redactor, target: EventFile
) -> tuple[tuple[Event, ...] | EventFile, int]:
    """Return the valid events in a file's first `cap` bytes, redacted and in order.

    Return also the number of lines left out. More than `MAX_BYTES_IN_MEMORY` of events are written
    to `target`, durably. A line is left out if it is not a JSON object, or if the lines before it
    have used up the limit of events or of values.
    """
    # Values are counted line by line, which is slow, only if there can be too many.
    must_count = 1 + sum(_separators(piece) for piece in head_chunks(file, cap)) > MAX_EVENT_VALUES
    file.seek(0)
    with ExitStack() as stack:
        reader = _Reader(redactor, MAX_EVENT_VALUES if must_count else None)
        while cap > 0 and (line := file.readline(cap)):
            cap -= len(line)
            if not line.isspace():
                reader.add_line(line)
            if reader.file is None and reader.held_bytes > MAX_BYTES_IN_MEMORY:
                reader.move_to(stack.enter_context(replace_file(target.path)))
        if reader.file is None:
            return tuple(reader.events), reader.dropped
    return replace(target, count=reader.count, sha256=reader.sha256), reader.dropped


def _separators(content: bytes) -> int:
    """Return how many characters the content has that can precede a JSON value."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


@dataclass(slots=True)
class _Reader:
    redactor: Redactor
    values_left: int | None
    """How many more JSON values are accepted; None if they need not be counted."""
    events: list[Event] = field(default_factory=list)
    file: BinaryIO | None = None
    """Where events are written instead of being held in memory."""
    held_bytes: int = 0
    """The size of the lines whose events are held in memory, in bytes."""
    count: int = 0
    dropped: int = 0
    _invalid_lines: int = 0
    _hasher: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of what was written to the file."""
        return self._hasher.hexdigest()

    def add_line(self, line: bytes) -> None:
        body = self._parse_line(line) if self._still_reads else None
        if body is None:
            self.dropped += 1
            return
        if self.file is None:
            self.events.append(Event.of(self.count, body))
            self.held_bytes += len(line)
        else:
            self._write([body])
        self.count += 1

    def move_to(self, file: BinaryIO) -> None:
        """Write the events read so far, and all that follow, to `file`."""
        self.file = file
        self._write(event.body for event in self.events)
        self.events.clear()

    @property
    def _still_reads(self) -> bool:
        return self.count < MAX_EVENTS and self._invalid_lines < MAX_INVALID_LINES

    def _parse_line(self, line: bytes) -> JsonObject | None:
        if self.values_left is not None:
            values = canonical_json.count_values(line, self.values_left)
            if values > self.values_left:
                return None
            self.values_left -= values
        try:
            body = canonical_json.loads(line)
        except MalformedJson:
            body = None
        if not isinstance(body, dict):
            self._invalid_lines += 1
            return None
        redacted: JsonObject = self.redactor.redact_json(body)
        return redacted

    def _write(self, bodies: Iterable[JsonObject]) -> None:
        assert self.file is not None
        for body in bodies:
            line = canonical_json.dump_bytes(body) + b"\n"
            self._hasher.update(line)
            self.file.write(line)
