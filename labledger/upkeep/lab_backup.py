"""Back up a whole lab, also while runs write to it, in one file or in a folder that grows.

A backup is a tar, compressed with gzip. `backup.json` describes the files after it. The ledger
comes first, as one snapshot. Its references are on the disk already. The file gets its name once it
is complete.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labledger import __version__, clock, fault_points
from labledger.errors import InvalidInput, LedgerError, Problem
from labledger.files import tars
from labledger.files.artifact_store import ArtifactStore
from labledger.files.durable_files import content_digest, file_pieces
from labledger.files.lab_folder import MAX_SETTINGS_BYTES, LabFolder, scratch_folder
from labledger.files.output_files import make_folder_for
from labledger.files.project_files import read_regular
from labledger.ledger.database import migrations
from labledger.ledger.database.sqlite import reading
from labledger.ledger.exchange.import_writer import frozen_digests
from labledger.ledger.exchange.source import ImportSource, SourceStore
from labledger.records import JsonObject, canonical_json, json_schemas
from labledger.records.json_codec import JsonForm
from labledger.upkeep.archives import unchanged_chunks
from labledger.upkeep.lab_snapshot import flat_name, take_snapshot

SCHEMA = "backup_v1"
MANIFEST = "backup.json"
LEDGER = "ledger.sqlite"
SETTINGS = "settings.yaml"
OPEN_ATTEMPTS = "open_attempts.jsonl"
ARTIFACT_LIST = "artifacts.txt"
FILE_PREFIX, FILE_SUFFIX = "lab-", ".tar.gz"
"""The start and the end of a backup's name. The time is between, so that names sort by it."""

BLOCK_BYTES = 4096
"""The least space that a small file takes on a disk."""
_MAX_NAMED = 5
_UNDONE = "nothing was backed up"

_LARGE_SQL = "SELECT lower(hex(sha256)) FROM artifact WHERE content IS NULL"


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """How far a backup or a restoration is."""

    artifacts: int
    total: int
    """How many artifacts there are."""
    size: int
    """Bytes of artifacts that were read."""
    total_size: int


OnProgress = Callable[[BackupProgress], object]


@dataclass(frozen=True, slots=True)
class BackedUpRun(JsonForm):
    """A run in a backup."""

    run_id: str
    committed: int
    """How many slots are committed."""
    total: int
    """How many slots its schedule has."""


@dataclass(frozen=True, slots=True)
class LabBackup(JsonForm):
    """A backup that was written."""

    path: Path
    """The file of the backup."""
    size: int
    """The size of the file, in bytes."""
    runs: tuple[BackedUpRun, ...]
    artifacts: int
    artifact_bytes: int
    copied: int
    """The number of copied artifacts; fewer than `artifacts` if the folder had some."""
    missing: tuple[str, ...]
    """At most five digests of artifacts that the ledger names and the lab does not have."""
    missing_total: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The files of a backup in a scratch folder, before any artifact is read."""

    manifest: JsonObject
    files: tuple[tuple[str, Path], ...]
    """Every file after the manifest except artifacts, by its name in the backup."""
    artifact_list: Path
    missing: tuple[str, ...]
    missing_total: int

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for _, path in self.files)


@dataclass(slots=True)
class _Counter:
    """Counts artifacts, and reports how far the backup is."""

    report: OnProgress
    total: int
    total_size: int
    artifacts: int = 0
    size: int = 0

    def count(self, size: int) -> None:
        self.artifacts += 1
        self.size += size
        self.report(BackupProgress(self.artifacts, self.total, self.size, self.total_size))


def back_up_lab(
    lab: LabFolder, target: Path, on_progress: OnProgress = lambda _: None
) -> LabBackup:
    """Back a lab up to the new file `target`, or to a new file in it if it is a folder.

    A path without the ending of an archive is a folder, which is created. Raises `InvalidInput` if
    the file exists, `LedgerMissing`, and `LedgerError` if an artifact was changed in the store or
    the backup cannot be written; then there is no file.
    """
    is_folder = target.is_dir() or not target.name.endswith((".tar.gz", ".tgz"))
    if not is_folder and os.path.lexists(target):
        message = "the file exists, and backups are never overwritten"
        raise InvalidInput("the backup", [Problem(str(target), message, hint="name a new file")])
    if target.is_relative_to(lab.root) or target.resolve().is_relative_to(lab.root.resolve()):
        message = "it is in the lab folder, and would be lost with it"
        raise InvalidInput("the backup", [Problem(str(target), message, hint="name another place")])
    migrations.read_revision(lab.ledger)
    file = target / f"{FILE_PREFIX}{_timestamp()}{FILE_SUFFIX}" if is_folder else target
    make_folder_for(file)
    try:
        with (
            ArtifactStore(lab.artifacts).in_use(),
            scratch_folder("backup", file.parent) as scratch,
        ):
            return _write(lab, file, scratch, on_progress, beside=is_folder)
    except OSError as error:
        reason = error.strerror or error
        raise LedgerError(f"could not write the backup {file}: {reason}; {_UNDONE}") from error


def _timestamp() -> str:
    return clock.utc_now().replace("-", "").replace(":", "").replace(".", "")


def _write(
    lab: LabFolder, file: Path, scratch: Path, on_progress: OnProgress, *, beside: bool
) -> LabBackup:
    store = ArtifactStore(lab.artifacts)
    _require_space(file, lab.ledger.stat().st_size, "the ledger")
    prepared = _prepare(lab, store, scratch, beside=beside)
    artifacts = prepared.manifest["artifacts"]
    counter = _Counter(on_progress, artifacts["count"], artifacts["size"])
    copied = artifacts["count"]
    followed_by: Iterable[tuple[str, int, Iterable[bytes]]] = ()
    if beside:
        copied = _copy_new(store, ArtifactStore(file.parent / "artifacts"), prepared, counter)
    else:
        # gzip may make text ten times smaller, but not more in general.
        _require_space(file, (prepared.size + artifacts["size"]) // 10, "the lab, compressed")
        followed_by = _artifact_members(store, prepared.artifact_list, counter)
    tars.write_archive(file, _members(prepared, followed_by))
    return LabBackup(
        path=file,
        size=file.stat().st_size,
        runs=tuple(BackedUpRun(**run) for run in prepared.manifest["runs"]),
        artifacts=artifacts["count"],
        artifact_bytes=artifacts["size"],
        copied=copied,
        missing=prepared.missing,
        missing_total=prepared.missing_total,
    )


def _require_space(file: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(file.parent).free
    if needed > free:
        raise LedgerError(
            f"the backup {file} needs at least {needed:,} bytes for {what}, and the disk has "
            f"{free:,} free; {_UNDONE}",
            hint="free some space, or name a place on another disk",
        )


def _prepare(lab: LabFolder, store: ArtifactStore, scratch: Path, *, beside: bool) -> _Prepared:
    """Take the ledger's snapshot, and list everything else. No artifact is read."""
    events, open_attempts = scratch / "events", scratch / OPEN_ATTEMPTS
    events.mkdir()
    snapshot = take_snapshot(lab, store, events, open_attempts, scratch / LEDGER)
    fault_points.fault_point("inside_backup")
    files = [(LEDGER, scratch / LEDGER)]
    if (settings := _read_settings(lab)) is not None:
        (scratch / SETTINGS).write_bytes(settings)
        files.append((SETTINGS, scratch / SETTINGS))
    files.append((OPEN_ATTEMPTS, open_attempts))
    files += [
        (f"staged/{number}", events / flat_name(name))
        for number, name in enumerate(snapshot.events, start=1)
    ]
    artifact_list = scratch / ARTIFACT_LIST
    count, size = _list_artifacts(store, artifact_list)
    files.append((ARTIFACT_LIST, artifact_list))
    described = {name: _describe(path) for name, path in files}
    manifest = {
        "schema_version": SCHEMA,
        "written_at": snapshot.taken_at,
        "written_by": __version__,
        "lab": {"ledger_id": snapshot.ledger_id, "machine": platform.node()},
        "ledger": described[LEDGER],
        "settings": described.get(SETTINGS),
        "open_attempts": described[OPEN_ATTEMPTS],
        "staged_events": [
            {"name": name, **described[f"staged/{number}"]}
            for number, name in enumerate(snapshot.events, start=1)
        ],
        "artifacts": {
            "count": count,
            "size": size,
            "beside": beside,
            "list": described[ARTIFACT_LIST],
        },
        "runs": snapshot.runs,
    }
    json_schemas.require_valid(manifest, SCHEMA)
    missing, total = _find_missing(scratch / LEDGER, store)
    return _Prepared(manifest, tuple(files), artifact_list, missing, total)


def _read_settings(lab: LabFolder) -> bytes | None:
    try:
        return read_regular(lab.settings, MAX_SETTINGS_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(
            f"could not read {lab.settings}: {error.strerror or error}; {_UNDONE}",
            hint="make it a file that you can read, or remove it",
        ) from error


def _describe(path: Path) -> JsonObject:
    return {"sha256": content_digest(path), "size": path.stat().st_size}


# -- artifacts


def _list_artifacts(store: ArtifactStore, target: Path) -> tuple[int, int]:
    """Write digest and size of each artifact, sorted; return how many there are, and their bytes.

    Only one folder of names is in memory at a time.
    """
    count = total = 0
    with target.open("x", encoding="ascii") as out:
        for folder in sorted((store.root / "sha256").glob("[0-9a-f][0-9a-f]")):
            for path in sorted(folder.iterdir()):
                status = path.lstat()
                is_artifact = ArtifactStore.is_name(path.name) and path == store.path(path.name)
                if is_artifact and stat.S_ISREG(status.st_mode):
                    out.write(f"{path.name} {status.st_size}\n")
                    count, total = count + 1, total + status.st_size
    return count, total


def listed_artifacts(path: Path) -> Iterator[tuple[str, int]]:
    """Yield digest and size of each artifact of a list. Raises `ValueError` for anything else."""
    with path.open(encoding="ascii") as lines:
        for line in lines:
            sha256, _, size = line.removesuffix("\n").partition(" ")
            if not (ArtifactStore.is_name(sha256) and size.isdecimal() and len(size) < 19):
                raise ValueError(f"it holds the line {line[:100]!r}")
            yield sha256, int(size)


def _find_missing(ledger: Path, store: ArtifactStore) -> tuple[tuple[str, ...], int]:
    """Return some artifacts that the ledger names and the store lacks, and how many there are."""
    missing: set[str] = set()
    is_current = migrations.read_revision(ledger) == migrations.HEAD
    with reading(ledger, "list the artifacts") as connection:
        named = connection.execute(_LARGE_SQL).scalars()
        missing.update(sha256 for sha256 in named if not _is_stored(store, sha256))
        source = ImportSource(ledger, connection, SourceStore(store.root))
        # An older ledger has other tables; `labledger verify` finds its frozen files.
        for run_id in source.run_ids() if is_current else ():
            frozen = set(frozen_digests(source, run_id))
            missing.update(sha256 for sha256 in frozen if not _is_stored(store, sha256))
    return tuple(sorted(missing)[:_MAX_NAMED]), len(missing)


def _is_stored(store: ArtifactStore, sha256: str) -> bool:
    """Return whether an artifact is a file of the store, and not a link to another one."""
    try:
        return stat.S_ISREG(store.path(sha256).lstat().st_mode)
    except OSError:
        return False


def artifact_name(sha256: str) -> str:
    """Return the name of an artifact in a backup."""
    return f"artifacts/sha256/{sha256[:2]}/{sha256}"


def _artifact_members(
    store: ArtifactStore, artifact_list: Path, counter: _Counter
) -> Iterator[tuple[str, int, Iterable[bytes]]]:
    for sha256, size in listed_artifacts(artifact_list):
        pieces = unchanged_chunks(store.path(sha256), sha256, _UNDONE)
        yield artifact_name(sha256), size, pieces
        counter.count(size)


def _copy_new(
    store: ArtifactStore, backups: ArtifactStore, prepared: _Prepared, counter: _Counter
) -> int:
    """Copy the artifacts that the folder of backups lacks; return their number."""
    new = _new_artifacts(backups, prepared.artifact_list)
    blocks = sum(size + BLOCK_BYTES for _, size, is_new in new() if is_new)
    _require_space(backups.root, prepared.size // 10 + blocks, "new artifacts and the ledger")
    copied = 0
    for sha256, size, is_new in new():
        if is_new:
            stored = backups.put_stream(unchanged_chunks(store.path(sha256), sha256, _UNDONE))
            if stored[1] != size:
                raise LedgerError(f"artifact {sha256} changed while it was copied; {_UNDONE}")
            copied += 1
        counter.count(size)
    return copied


def _new_artifacts(
    backups: ArtifactStore, artifact_list: Path
) -> Callable[[], Iterator[tuple[str, int, bool]]]:
    """Return a function that yields each artifact of the list, and whether the folder lacks it."""

    def each() -> Iterator[tuple[str, int, bool]]:
        for sha256, size in listed_artifacts(artifact_list):
            try:
                status = backups.path(sha256).lstat()
            except FileNotFoundError:
                yield sha256, size, True
            else:
                # A full disk or another program cut off a file that has another size.
                yield sha256, size, not stat.S_ISREG(status.st_mode) or status.st_size != size

    return each


def _members(
    prepared: _Prepared, followed_by: Iterable[tuple[str, int, Iterable[bytes]]]
) -> Iterator[tuple[str, int, Iterable[bytes]]]:
    manifest = canonical_json.dump_bytes(prepared.manifest)
    yield MANIFEST, len(manifest), [manifest]
    for name, path in prepared.files:
        yield name, path.stat().st_size, file_pieces(path)
    yield from followed_by


def digest_of(pieces: Iterable[bytes], out: Callable[[bytes], object]) -> str:
    """Pass pieces on, and return the SHA-256 (hex) of all of them."""
    hasher = hashlib.sha256()
    for piece in pieces:
        hasher.update(piece)
        out(piece)
    return hasher.hexdigest()
