"""The outbox of a run on a host: results that the coordinator has not acknowledged.

A result is in it, durably, before anything of its attempt may be removed, and stays until the
coordinator has made it durable too. It survives restarts of the host's process and of the machine.
Artifacts that are files, and a file of events, stay in the attempt's own store; see `HostRun`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labledger.cluster.host_messages import AttemptKey, ResultMessage
from labledger.records.attempt_result import AttemptResult
from labledger.records.events import EventFile
from labledger.storage.durable_files import sync_folder, write_file


@dataclass(frozen=True, slots=True)
class Outbox:
    """The results in one folder, a file for each attempt."""

    folder: Path

    def put(self, key: AttemptKey, result: AttemptResult) -> None:
        """Store a result durably. The artifacts that it does not hold are durable already."""
        events = result.events
        document = {
            "version": 1,
            "result": result.as_json(),
            "contents": {
                artifact.sha256: base64.b64encode(artifact.content).decode()
                for artifact in result.artifacts
                if artifact.content is not None
            },
            "events_size": events.path.stat().st_size if isinstance(events, EventFile) else 0,
        }
        write_file(self._path(key), json.dumps(document).encode())

    def get(self, key: AttemptKey) -> ResultMessage | None:
        """Return a result, None if there is none."""
        try:
            document = json.loads(self._path(key).read_bytes())
        except FileNotFoundError:
            return None
        contents = document["contents"].items()
        return ResultMessage(
            key,
            json.dumps(document["result"]).encode(),
            {sha256: base64.b64decode(text) for sha256, text in contents},
            document["events_size"],
        )

    def keys(self) -> Iterator[AttemptKey]:
        """Yield the attempts whose results are here."""
        for path in self.folder.glob("*-*.json"):
            idx, _, attempt = path.stem.partition("-")
            if idx.isdecimal() and attempt.isdecimal():
                yield int(idx), int(attempt)

    def discard(self, key: AttemptKey) -> None:
        """Delete a result, durably: it is not delivered again."""
        path = self._path(key)
        if path.exists():
            path.unlink()
            sync_folder(self.folder)

    def _path(self, key: AttemptKey) -> Path:
        return self.folder / f"{attempt_name(key)}.json"


def attempt_name(key: AttemptKey) -> str:
    """Return the name that files and folders of an attempt have on a host."""
    return f"{key[0]:06d}-{key[1]}"


def attempt_key(name: str) -> AttemptKey | None:
    """Return the attempt that such a name means, None for another name."""
    idx, _, attempt = name.partition(".")[0].partition("-")
    return (int(idx), int(attempt)) if idx.isdecimal() and attempt.isdecimal() else None
