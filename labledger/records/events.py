"""Events that an agent wrote: single ones, or a file of too many to hold in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from labledger.records import JsonObject


@dataclass(frozen=True, slots=True)
class Event:
    row_seq: int
    type: str | None
    body: JsonObject

    @classmethod
    def of(cls, row_seq: int, body: JsonObject) -> Self:
        event_type = body.get("type")
        return cls(row_seq, event_type if isinstance(event_type, str) else None, body)


@dataclass(frozen=True, slots=True)
class EventFile:
    """A file of events that are too many to be held in memory: one canonical JSON body per line.

    Iterating yields each `Event`, as often as needed, as with a tuple.
    """

    folder: Path
    name: str
    count: int
    sha256: str | None = None
    """The file's digest in hex; None if an earlier version of labledger staged it."""

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

    def as_json(self) -> JsonObject:
        digest = {} if self.sha256 is None else {"sha256": self.sha256}
        return {"file": self.name, "count": self.count, **digest}

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
