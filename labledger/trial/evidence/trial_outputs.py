"""Where the outputs of an attempt are, and how its events and output folders are read.

Number, size and complexity of events are limited. Memory use does not grow with them, because many
events go to a file. Of other files, the smallest are stored first, up to a cap. Files with secrets
are left out whole, and named.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from labledger.errors import MalformedJson
from labledger.files import artifact_tars, workspace_listing
from labledger.files.artifact_store import ArtifactStore
from labledger.files.durable_files import replace_file
from labledger.files.tars import END
from labledger.files.untrusted_files import UnsafeFile, UntrustedFile, head_chunks
from labledger.files.workspace_listing import Entry
from labledger.files.workspace_seed import Seed
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import Event, EventFile
from labledger.records.canonical_json import Unstorable
from labledger.records.identity import TrialIds
from labledger.trial.evidence.redaction import Redactor


@dataclass(frozen=True, slots=True)
class OutputMount:
    """An output folder of a trial."""

    name: str
    """Relative to the trial folder."""
    path: str
    """The path in the container."""
    phase: str
    """`agent` or `grader`: the phase that writes there."""
    keeps_image_files: bool = False
    """Whether it begins with the image's files at its path."""

    def name_in_tar(self, relative: str) -> str:
        """Return the name of one of its files in the tars that are evidence."""
        return f"{self.path.strip('/')}/{relative}"


@dataclass(frozen=True, slots=True)
class TrialOutputs:
    """The places of an attempt's outputs on this host, their owner, and how they are read."""

    ids: tuple[TrialIds, ...]
    """The attempt's own identity, and then further ones that its outputs may name."""
    folder: Path
    """The trial folder."""
    grader_folder: Path
    """The folder of the grader's container."""
    mounts: tuple[OutputMount, ...]
    """The output folders."""
    workspace: str
    """The workspace's path in the container."""
    has_mounted_workspace: bool
    seed: Seed
    """The initial content of the workspace."""
    store: ArtifactStore
    event_file: EventFile
    """The file for its events if they are many."""
    max_log_bytes: int

    def folder_of(self, phase: str) -> Path:
        """Return the folder of the container in which a phase runs."""
        return self.grader_folder if phase == "grader" else self.folder

    def of_phase(self, phase: str) -> list[OutputMount]:
        """Return the output folders of a phase, `agent` or `grader`."""
        return [output for output in self.mounts if output.phase == phase]

    def of_grader(self, path: str) -> Path | None:
        """Return this host's folder of the grader's output folder at a path in the container."""
        for output in self.of_phase("grader"):
            if output.path == path.rstrip("/"):
                return self.grader_folder / output.name
        return None


MAX_EVENTS = 100_000
"""How many events of a trial become rows. The whole file is also stored as an artifact."""
MAX_INVALID_LINES = 100_000
"""After this many invalid lines, the rest of the file is not read."""
MAX_EVENT_VALUES = 2_000_000
"""How many JSON values all events of a trial may hold. A line is parsed in memory."""
MAX_BYTES_IN_MEMORY = 256 << 10
"""Larger events are written to a file."""


_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class FoundEvents:
    """The content of an events file."""

    events: tuple[Event, ...] | EventFile
    dropped: int
    """The number of dropped lines."""
    unstorable: Unstorable
    """Values that are null because they cannot be stored. Their names are not redacted."""


def unstorable_text(unstorable: Unstorable, redactor: Redactor) -> str:
    """Return a sentence that names the first values that cannot be stored, redacted."""
    named = [redactor.redact_message(text) for text in unstorable.first]
    texts = [text if len(text) <= _LONGEST_NAME else "one with a long name" for text in named]
    unnamed = unstorable.count - len(texts)
    more = f", and {unnamed:,} more" if unnamed else ""
    values = "1 value is" if unstorable.count == 1 else f"{unstorable.count:,} values are"
    return f"{values} stored as null: {', '.join(texts)}{more}"


def read_events(file: BinaryIO, cap: int, redactor: Redactor, target: EventFile) -> FoundEvents:
    """Return the valid events in a file's first `cap` bytes, redacted and in order.

    Writes more than `MAX_BYTES_IN_MEMORY` of events to `target`, durably. Drops lines that are not
    JSON objects, and lines beyond the limit of events or of values. A value that cannot be stored
    becomes null.
    """
    # Counting values line by line is slow. Count only if there can be too many values, because too
    # many characters can precede one.
    pieces = head_chunks(file, cap)
    before_values = sum(piece.count(mark) for piece in pieces for mark in (b",", b"[", b"{"))
    must_count = 1 + before_values > MAX_EVENT_VALUES
    file.seek(0)
    with ExitStack() as stack:
        reader = _Reader(redactor, MAX_EVENT_VALUES if must_count else None)
        while cap > 0 and (line := file.readline(cap)):
            cap -= len(line)
            reader.add_line(line)
            if reader.file is None and reader.held_bytes > MAX_BYTES_IN_MEMORY:
                reader.move_to(stack.enter_context(replace_file(target.path)))
        if reader.file is None:
            return reader.found(tuple(reader.events))
    return reader.found(replace(target, count=reader.count, sha256=reader.hasher.hexdigest()))


@dataclass(slots=True)
class _Reader:
    redactor: Redactor
    values_left: int | None
    """How many more JSON values are accepted; None if they need not be counted."""
    events: list[Event] = field(default_factory=list)
    file: BinaryIO | None = None
    """The file to which events are written instead of being held in memory."""
    held_bytes: int = 0
    """The size of the lines whose events are held in memory, in bytes."""
    count: int = 0
    dropped: int = 0
    unstorable: Unstorable = field(default_factory=Unstorable)
    _lines: int = 0
    _invalid_lines: int = 0
    hasher: hashlib._Hash = field(default_factory=hashlib.sha256)
    """The hash of everything that was written to the file."""

    def found(self, events: tuple[Event, ...] | EventFile) -> FoundEvents:
        return FoundEvents(events, self.dropped, self.unstorable)

    def add_line(self, line: bytes) -> None:
        self._lines += 1
        if line.isspace():
            return
        still_reads = self.count < MAX_EVENTS and self._invalid_lines < MAX_INVALID_LINES
        body = self._parse_line(line) if still_reads else None
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

    def _parse_line(self, line: bytes) -> JsonObject | None:
        if self.values_left is not None:
            values = canonical_json.count_values(line, self.values_left)
            if values > self.values_left:
                return None
            self.values_left -= values
        unstorable = Unstorable()
        try:
            body, unstorable = canonical_json.loads_storable(line)
        except MalformedJson:
            body = None
        if not isinstance(body, dict):
            self._invalid_lines += 1
            return None
        self.unstorable.extend(unstorable, f"line {self._lines}: ")
        redacted: JsonObject = self.redactor.redact_json(body)
        return redacted

    def _write(self, bodies: Iterable[JsonObject]) -> None:
        assert self.file is not None
        for body in bodies:
            line = canonical_json.dump_bytes(body) + b"\n"
            self.hasher.update(line)
            self.file.write(line)


def holds_secret(redactor: Redactor, name: str, path: Path, entry: Entry) -> bool:
    """Return whether the name or the content of a file, link or folder holds a secret.

    Raises `UnsafeFile` or `OSError` if it cannot be read.
    """
    match entry.kind:
        case "file":
            content: Iterable[bytes] = UntrustedFile(path.parent, path.name).chunks(entry.size)
        case "link":
            content = [os.fsencode(os.readlink(path))]  # noqa: PTH115
        case _:
            content = ()
    return redactor.contains_secret(chain([name.encode(), b"\n"], content))


@dataclass(slots=True)
class OutputFiles:
    """The files of a phase's output folders by their names in the tar."""

    entries: dict[str, Entry] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    """The path of each file on the host."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why a file or folder is not in the tar."""

    @classmethod
    def of_phase(cls, outputs: TrialOutputs, phase: str, redactor: Redactor) -> OutputFiles:
        """List the output folders of a phase and choose what can be stored."""
        files = cls()
        folder = outputs.folder_of(phase)
        for output in outputs.of_phase(phase) if folder.is_dir() else ():
            files._list(folder / output.name, output.name_in_tar)
        files._leave_out_secrets(redactor)
        files._leave_out_largest()
        return files

    @property
    def problem(self) -> str | None:
        """A sentence about what was left out, or None."""
        if not self.left_out:
            return None
        name, why = next(iter(sorted(self.left_out.items())))
        count = len(self.left_out)
        return f"{count:,} left out, the first of them {name}: {why}"

    def _list(self, folder: Path, name_in_tar: Callable[[str], str]) -> None:
        listed = workspace_listing.list_folder(folder)
        if listed.truncated:
            self.left_out[name_in_tar("…")] = "there are too many files to list them all"
        for relative in listed.left_out:
            self.left_out[name_in_tar(relative)] = "a folder whose files are not stored"
        empty = {relative: Entry("folder", 0) for relative in listed.empty or ()}
        for relative, entry in (listed.entries | empty).items():
            name = name_in_tar(relative)
            if "\ufffd" in relative:
                self.left_out[name] = "its name is not UTF-8"
            elif entry.kind == "other":
                self.left_out[name] = "not a regular file"
            elif entry.kind == "file" and entry.sha256 is None:
                self.left_out[name] = "too large, or has several names"
            else:
                self.entries[name], self.paths[name] = entry, folder / relative

    def _leave_out_secrets(self, redactor: Redactor) -> None:
        for name, entry in list(self.entries.items()):
            try:
                if holds_secret(redactor, name, self.paths[name], entry):
                    self._leave_out(name, "holds a secret")
            except (UnsafeFile, OSError):
                self._leave_out(name, "could not be read")

    def _leave_out_largest(self) -> None:
        size = len(END)
        for name, entry in sorted(self.entries.items(), key=lambda item: (item[1].size, item[0])):
            own_size = artifact_tars.size_of({name: entry}) - len(END)
            if size + own_size > artifact_tars.CAP:
                self._leave_out(
                    name, f"more than {artifact_tars.CAP:,} bytes with the smaller ones"
                )
            else:
                size += own_size

    def _leave_out(self, name: str, why: str) -> None:
        del self.entries[name], self.paths[name]
        self.left_out[name] = why
