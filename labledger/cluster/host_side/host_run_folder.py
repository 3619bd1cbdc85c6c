"""The folder of one run on a host: what lies where, and which attempts it tells of.

`accepted/` has an empty file for each attempt that this host has accepted, `outbox/` the results
that are not acknowledged, `stores/` the artifacts of each attempt. The rest is laid out as in the
run folder of a run on one machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labledger.cluster.host_messages import AttemptKey
from labledger.cluster.host_side.outbox import attempt_key, attempt_name
from labledger.storage.artifact_store import ArtifactStore
from labledger.storage.durable_files import make_folder, write_file
from labledger.trial import attempt_notes

_SHARED = ("deps", "sealed", "unpacked", "incoming", "stores")


@dataclass(frozen=True, slots=True)
class HostRunFolder:
    """What a host has on disk of one run."""

    path: Path

    # -- the run

    @property
    def outbox(self) -> Path:
        return self.path / "outbox"

    @property
    def dependencies(self) -> Path:
        return self.path / "deps"

    def read_epoch(self) -> int | None:
        """Return the highest epoch that a coordinator has had here, None before the first."""
        file = self.path / "epoch"
        return int(file.read_text("ascii")) if file.exists() else None

    def write_epoch(self, epoch: int) -> None:
        """Keep an epoch durably."""
        make_folder(self.path)
        write_file(self.path / "epoch", str(epoch).encode())

    def read_mark(self) -> str | None:
        """Return what the last coordinator has this machine known by, None before the first."""
        file = self.path / "mark"
        return file.read_text("utf-8") if file.exists() else None

    def write_mark(self, mark: str) -> None:
        """Keep a coordinator's mark durably."""
        write_file(self.path / "mark", mark.encode())

    def delete_shared_files(self) -> None:
        """Delete what attempts shared. A further one gets it again."""
        for name in _SHARED:
            shutil.rmtree(self.path / name, ignore_errors=True)

    # -- its attempts

    def accept(self, key: AttemptKey) -> None:
        """Keep durably that an attempt is accepted."""
        write_file(self._accept_file(key), b"")

    def has_accepted(self, key: AttemptKey) -> bool:
        return self._accept_file(key).exists()

    def forget(self, key: AttemptKey) -> None:
        """Delete the record that an attempt was accepted."""
        self._accept_file(key).unlink(missing_ok=True)

    def accepted(self) -> Iterator[AttemptKey]:
        """Yield the attempts that this host has accepted and not forgotten."""
        return _keys((self.path / "accepted").glob("*-*"))

    def is_marked_not_started(self, key: AttemptKey) -> bool:
        """Return whether a note says that no container of an attempt was started."""
        return attempt_notes.is_marked_not_started(self.trial(key))

    def trial(self, key: AttemptKey) -> Path:
        """Return the trial folder of an attempt, which need not exist."""
        return self.path / "trials" / attempt_name(key)

    def store_of(self, key: AttemptKey) -> Path:
        """Return the artifact store of an attempt."""
        return self.path / "stores" / attempt_name(key)

    def delete_store(self, key: AttemptKey) -> None:
        shutil.rmtree(self.store_of(key), ignore_errors=True)

    def result_file(self, key: AttemptKey, sha256: str | None) -> Path | None:
        """Return the path of an artifact of a result, or of its file of events for None."""
        store = ArtifactStore(self.store_of(key))
        if sha256 is not None:
            return store.path(sha256) if len(sha256) == 64 and sha256.isalnum() else None
        files = [path for path in store.staged_events.rglob("*.jsonl") if path.is_file()]
        return files[0] if files else None

    def attempts(self) -> set[AttemptKey]:
        """Return every attempt of which something lies here, but for results in the outbox."""
        keys = set(self.accepted())
        for name in ("trials", "stores"):
            keys |= set(_keys((self.path / name).glob("*-*")))
        return keys | set(_keys(attempt_notes.folders_with_notes(self.path)))

    def _accept_file(self, key: AttemptKey) -> Path:
        return self.path / "accepted" / attempt_name(key)


def _keys(paths: Iterator[Path] | list[Path]) -> Iterator[AttemptKey]:
    return (key for path in paths if (key := attempt_key(path.name)) is not None)
