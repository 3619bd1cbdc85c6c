"""The folder of one run on a host: its layout, the outbox of results, and shared files.

`accepted/` has an empty file for each accepted attempt, `outbox/` the results that are not
acknowledged, `stores/` the artifacts of each attempt. A result is durable in the outbox before its
attempt may be removed, until it is acknowledged.
"""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from labledger.execution.executor import RunRecords
from labledger.files.artifact_store import ArtifactStore
from labledger.files.durable_files import (
    delete_unfinished,
    make_folder,
    sync_folder,
    write_file,
)
from labledger.hosts.host_messages import AttemptKey, ResultMessage, RunSetup
from labledger.records.attempt_result import AttemptResult, EventFile
from labledger.trial import attempt_notes
from labledger.trial.contract import trial_folder
from labledger.trial.life import shared_files

MAX_RESULT_BYTES = 8 << 20
"""A reply gets no further result once its results have this many bytes."""
_RECORD_BYTES = 8192
"""The bytes that a result counts in addition to its artifacts."""


@dataclass(frozen=True, slots=True)
class ResultOutbox:
    """The results in one folder, a file for each attempt.

    They survive restarts of the host's process and of the machine. Artifacts that are files, and a
    file of events, stay in the attempt's own store.
    """

    folder: Path

    def put(self, key: AttemptKey, result: AttemptResult) -> None:
        """Store a result durably. Artifacts that it does not contain must be durable already."""
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
        """Return the result of an attempt; None if there is none."""
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
        return _keys(self.folder.glob("*-*.json"))

    def batch(self, keys: Iterable[AttemptKey]) -> Iterator[ResultMessage]:
        """Yield the results for one reply: at least one, and more up to `MAX_RESULT_BYTES`."""
        size = 0
        for key in keys:
            if size > MAX_RESULT_BYTES:
                return
            if (message := self.get(key)) is not None:
                size += sum(map(len, message.contents.values())) + _RECORD_BYTES
                yield message

    def discard(self, key: AttemptKey) -> None:
        """Delete a result durably, so that it is not delivered again."""
        path = self._path(key)
        delete_unfinished(path)
        if path.exists():
            path.unlink()
            sync_folder(self.folder)

    def _path(self, key: AttemptKey) -> Path:
        return self.folder / f"{attempt_name(key)}.json"


def attempt_name(key: AttemptKey) -> str:
    """Return the name that files and folders of an attempt have on a host."""
    return f"{key[0]:06d}-{key[1]}"


def attempt_key(name: str) -> AttemptKey | None:
    """Return the attempt for a name of `attempt_name`; None for any other name."""
    idx, _, attempt = name.partition(".")[0].partition("-")
    return (int(idx), int(attempt)) if idx.isdecimal() and attempt.isdecimal() else None


_SHARED = ("deps*", "sealed*", "unpacked", "incoming", "stores")


@dataclass(frozen=True, slots=True)
class HostRunFolder:
    """The files of one run on a host's disk."""

    path: Path

    # -- the run

    @property
    def outbox(self) -> Path:
        return self.path / "outbox"

    def read_epoch(self) -> int | None:
        """Return the highest epoch of a coordinator so far; None before the first."""
        file = self.path / "epoch"
        return int(file.read_text("ascii")) if file.exists() else None

    def write_epoch(self, epoch: int) -> None:
        """Keep an epoch durably."""
        make_folder(self.path)
        write_file(self.path / "epoch", str(epoch).encode())

    def read_mark(self) -> str | None:
        """Return the mark of the last coordinator; None before the first."""
        file = self.path / "mark"
        return file.read_text("utf-8") if file.exists() else None

    def write_mark(self, mark: str) -> None:
        """Keep a coordinator's mark durably."""
        write_file(self.path / "mark", mark.encode())

    # -- its attempts

    def accept(self, key: AttemptKey) -> None:
        """Keep durably that an attempt is accepted."""
        write_file(self._accept_file(key), b"")

    def has_accepted(self, key: AttemptKey) -> bool:
        return self._accept_file(key).exists()

    def forget(self, key: AttemptKey) -> None:
        """Delete the record that an attempt was accepted."""
        path = self._accept_file(key)
        path.unlink(missing_ok=True)
        delete_unfinished(path)

    def accepted(self) -> Iterator[AttemptKey]:
        """Yield the attempts that this host has accepted and not forgotten."""
        return _keys((self.path / "accepted").glob("*-*"))

    def started(self, begun: set[AttemptKey], ended: set[AttemptKey]) -> frozenset[AttemptKey]:
        """Return the attempts for which a container was started, as far as this host knows.

        `begun` are the attempts of this process, `ended` have a result in the outbox.
        """
        return frozenset(
            key
            for key in begun | ended | set(self.accepted())
            if key in ended or not attempt_notes.is_marked_not_started(self.trial(key))
        )

    def trial(self, key: AttemptKey) -> Path:
        """Return the path of the trial folder of an attempt, which need not exist."""
        return trial_folder(self.path, *key)

    def store_of(self, key: AttemptKey) -> Path:
        """Return the artifact store of an attempt."""
        return self.path / "stores" / attempt_name(key)

    def delete_store(self, key: AttemptKey) -> None:
        shutil.rmtree(self.store_of(key), ignore_errors=True)

    def result_file(self, key: AttemptKey, sha256: str | None) -> Path | None:
        """Return the path of an artifact of a result, or of its events if `sha256` is None."""
        store = ArtifactStore(self.store_of(key))
        if sha256 is not None:
            return store.path(sha256) if len(sha256) == 64 and sha256.isalnum() else None
        files = [path for path in store.staged_events.rglob("*.jsonl") if path.is_file()]
        return files[0] if files else None

    def attempts(self) -> set[AttemptKey]:
        """Return every attempt that has files here, except results in the outbox."""
        keys = set(self.accepted())
        for name in ("trials", "stores"):
            keys |= set(_keys((self.path / name).glob("*-*")))
        return keys | set(_keys(attempt_notes.folders_with_notes(self.path)))

    def records(
        self, setup: RunSetup, durable: Collection[AttemptKey], kept: Collection[AttemptKey] = ()
    ) -> RunRecords:
        """Return the records for a cleanup: `durable` attempts may go, folders of `kept` stay."""
        return RunRecords(
            ledger_id=setup.run.ledger_id,
            run_id=setup.run.run_id,
            run_dir=self.path,
            is_durable=lambda idx, attempt: (idx, attempt) in durable,
            keeps_folder=lambda idx, attempt: (idx, attempt) in kept,
        )

    def _accept_file(self, key: AttemptKey) -> Path:
        return self.path / "accepted" / attempt_name(key)


@dataclass(slots=True)
class SharedFiles:
    """The staged programs and the unpacked files of tasks that a run's attempts share."""

    folder: HostRunFolder
    store: ArtifactStore
    """Has the artifacts of the staged files."""
    lock: threading.Condition
    _staged: RunSetup | None = None
    """The setup whose programs are staged; None before they are staged."""
    _compared: set[str] = field(default_factory=set)
    """Digests of tars with files of tasks whose unpacked files this process has compared."""

    def stage(self, setup: RunSetup, digests: Collection[str]) -> None:
        """Stage or compare the run's files, and compare the unpacked files of these artifacts.

        Files that an earlier process staged are compared. Raises `LedgerError` for a difference.
        """
        with self.lock:
            # The coordinator of a run that has grown brings further files.
            if self._staged is None or self._staged.files != setup.files:
                self._stage(setup)
                self._staged = setup
            new = sorted(set(digests) - self._compared)
            shared_files.require_unchanged_files_of_tasks(self.folder.path, self.store, new)
            self._compared.update(new)

    def require_staged(self) -> None:
        """Compare the run's files with their digests. Raises `LedgerError` for a difference."""
        with self.lock:
            if self._staged is not None:
                self._stage(self._staged)

    def _stage(self, setup: RunSetup) -> None:
        deps = self.folder.path / "deps"
        sealed = setup.is_sealed
        shared_files.stage_dependencies(setup.files, self.store, deps, sealed=sealed)
        shared_files.share_trial_script(deps)

    def delete(self) -> None:
        """Delete the shared files when no attempt is left. Called with the lock held."""
        for pattern in _SHARED:
            for path in self.folder.path.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)
        self._staged = None
        self._compared.clear()


def _keys(paths: Iterator[Path] | list[Path]) -> Iterator[AttemptKey]:
    return (key for path in paths if (key := attempt_key(path.name)) is not None)
