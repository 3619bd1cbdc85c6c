"""Restore a backup as a new lab folder. Nothing in the file is trusted.

Every name, size and digest is checked before or while a file is written. The lab is made in a
hidden folder, and gets its name when it is complete and durable. Its settings and receivers do not
act. `restored_runs` makes it independent.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from labledger import fault_points
from labledger.errors import InvalidInput, LedgerError, Problem
from labledger.files import tars
from labledger.files.artifact_store import ArtifactStore
from labledger.files.durable_files import make_folder, sync_folder, sync_tree
from labledger.files.lab_folder import (
    MAX_SETTINGS_BYTES,
    LabFolder,
    refuse_network,
    scratch_folder,
)
from labledger.files.tars import ArchiveDamaged, ArchivedFile
from labledger.records import JsonObject
from labledger.records.json_codec import JsonForm
from labledger.upkeep import restored_runs
from labledger.upkeep.archive_members import next_member, read_manifest
from labledger.upkeep.lab_backup import (
    ARTIFACT_LIST,
    BLOCK_BYTES,
    FILE_PREFIX,
    FILE_SUFFIX,
    LEDGER,
    MANIFEST,
    OPEN_ATTEMPTS,
    SCHEMA,
    SETTINGS,
    BackupProgress,
    OnProgress,
    artifact_name,
    digest_of,
    listed_artifacts,
)
from labledger.upkeep.restored_runs import RestoredRun

_MAX_MANIFEST_BYTES = 64 << 20
_MAX_ATTEMPTS_BYTES = 256 << 20
_UNDONE = "nothing was restored"


@dataclass(frozen=True, slots=True)
class RestoredLab(JsonForm):
    """A lab that was restored from a backup."""

    path: Path
    """The lab folder."""
    backup: Path
    """The file of the backup."""
    written_at: str
    """When the backup was made."""
    original_id: str
    """The id of the original ledger, which its containers have as a label."""
    runs: tuple[RestoredRun, ...]
    artifacts: int
    missing_artifacts: int
    """How many artifacts the backup lists and its folder lacks."""
    was_upgraded: bool
    """Whether the ledger was of an older revision, and was upgraded."""


def restore_lab(
    source: Path, target: Path, on_progress: OnProgress = lambda _: None
) -> RestoredLab:
    """Restore the backup file `source`, or the newest in a folder, as the new lab folder `target`.

    Raises `InvalidInput` if `target` exists or there is no backup, and `LedgerError` if the backup
    is damaged, too large for the disk or of another format; then there is no folder.
    """
    _refuse_existing(target)
    refuse_network(target)
    file = _find_backup(source)
    try:
        make_folder(target.parent.absolute())
        with scratch_folder("restore", target.parent.absolute()) as scratch:
            lab = LabFolder(scratch / "lab")
            lab.root.mkdir(0o700)
            manifest, missing = _unpack(file, lab, scratch, on_progress)
            fault_points.fault_point("inside_restore")
            runs, was_upgraded = restored_runs.make_own(
                lab, manifest, scratch / OPEN_ATTEMPTS, scratch
            )
            (lab.root / ".gitignore").write_bytes(b"*\n")
            sync_tree(lab.root)
            _refuse_existing(target)
            lab.root.rename(target)
            sync_folder(target.parent)
    except ArchiveDamaged as error:
        raise LedgerError(
            f"{file} {error}; {_UNDONE}",
            hint="name a file that `labledger backup` wrote, or take another copy of it",
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise LedgerError(f"could not restore {file}: {reason}; {_UNDONE}") from error
    return RestoredLab(
        path=target,
        backup=file,
        written_at=manifest["written_at"],
        original_id=manifest["lab"]["ledger_id"],
        runs=runs,
        artifacts=manifest["artifacts"]["count"] - missing,
        missing_artifacts=missing,
        was_upgraded=was_upgraded,
    )


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        message = "it exists, and a restoration never replaces or adds to a folder"
        hint = "name a folder that does not exist"
        raise InvalidInput("the lab folder", [Problem(str(target), message, hint=hint)])


def _find_backup(source: Path) -> Path:
    """Return the file of a backup: `source` itself, or the newest in that folder."""
    file = source
    if source.is_dir():
        backups = sorted(source.glob(f"{FILE_PREFIX}*{FILE_SUFFIX}"))
        file = backups[-1] if backups else source
    if not tars.is_archive(file):
        message = "there is no backup of a lab"
        hint = "name a file that `labledger backup` wrote, or its folder"
        raise InvalidInput("the backup", [Problem(str(source), message, hint=hint)])
    return file


# -- unpacking


def _unpack(
    file: Path, lab: LabFolder, scratch: Path, on_progress: OnProgress
) -> tuple[JsonObject, int]:
    """Unpack a backup; return its manifest, and how many artifacts its folder lacks."""
    with tars.open_archive(file) as members:
        manifest = _read_manifest(_next(members, MANIFEST))
        described = manifest["artifacts"]
        _require_space(file, lab.root, manifest)
        _unpack_file(_next(members, LEDGER), lab.ledger, manifest["ledger"])
        if manifest["settings"] is not None:
            _require_at_most(manifest["settings"], MAX_SETTINGS_BYTES, SETTINGS)
            _unpack_file(_next(members, SETTINGS), lab.settings, manifest["settings"])
        _require_at_most(manifest["open_attempts"], _MAX_ATTEMPTS_BYTES, OPEN_ATTEMPTS)
        attempts = scratch / OPEN_ATTEMPTS
        _unpack_file(_next(members, OPEN_ATTEMPTS), attempts, manifest["open_attempts"])
        store = ArtifactStore(lab.artifacts)
        for number, events in enumerate(manifest["staged_events"], start=1):
            target = store.staged_events / events["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            _unpack_file(_next(members, f"staged/{number}"), target, events)
        artifact_list = scratch / ARTIFACT_LIST
        _unpack_file(_next(members, ARTIFACT_LIST), artifact_list, described["list"])
        _check_list(artifact_list, described)
        missing = 0
        if described["beside"]:
            missing = _copy_artifacts(
                file.parent / "artifacts", artifact_list, store, described, on_progress
            )
        else:
            _unpack_artifacts(members, artifact_list, store, described, on_progress)
        if next(members, None) is not None:
            raise ArchiveDamaged("holds more files than its manifest says")
    return manifest, missing


def _next(members: Iterator[ArchivedFile], name: str) -> ArchivedFile:
    return next_member(members, name, "a backup of a lab")


def _read_manifest(file: ArchivedFile) -> JsonObject:
    manifest = read_manifest(file, SCHEMA, _MAX_MANIFEST_BYTES)
    names = [events["name"] for events in manifest["staged_events"]]
    if len(set(names)) < len(names):
        raise ArchiveDamaged(f"has {MANIFEST} that names the same events twice")
    return manifest


def _require_at_most(described: JsonObject, limit: int, name: str) -> None:
    if described["size"] > limit:
        raise ArchiveDamaged(f"says that {name} has {described['size']:,} bytes")


def _require_space(file: Path, folder: Path, manifest: JsonObject) -> None:
    """Raise `LedgerError` unless the disk has space for everything that the manifest describes.

    Mirrors need roughly the ledger's size at most.
    """
    artifacts = manifest["artifacts"]
    parts = [manifest["open_attempts"], artifacts["list"], *manifest["staged_events"]]
    needed = 2 * manifest["ledger"]["size"] + artifacts["size"] + artifacts["count"] * BLOCK_BYTES
    needed += sum(part["size"] + BLOCK_BYTES for part in parts)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise LedgerError(
            f"{file} needs {needed:,} bytes with the mirrors, and the disk has {free:,} free; "
            f"{_UNDONE}",
            hint="free some space, or name a folder on another disk",
        )


def _unpack_file(file: ArchivedFile, target: Path, described: JsonObject) -> None:
    """Write a file of the backup, and check its size and digest."""
    if file.size != described["size"]:
        raise ArchiveDamaged(f"has {file.name} with another size than its manifest says")
    with _new_file(target) as out:
        digest = digest_of(file.chunks, out.write)
    if digest != described["sha256"]:
        raise ArchiveDamaged(f"holds {file.name} with another digest than expected")


def _new_file(path: Path) -> BinaryIO:
    return open(path, "xb", opener=partial(os.open, mode=0o600))


def _check_list(path: Path, described: JsonObject) -> None:
    """Check that the list of artifacts is sorted, and as long as the backup says."""
    count = size = 0
    previous = ""
    try:
        for sha256, bytes_of_one in listed_artifacts(path):
            if sha256 <= previous:
                raise ArchiveDamaged(f"has {ARTIFACT_LIST} that is not sorted")
            previous, count, size = sha256, count + 1, size + bytes_of_one
    except ValueError as error:
        if isinstance(error, ArchiveDamaged):
            raise
        raise ArchiveDamaged(f"has {ARTIFACT_LIST} that cannot be read: {error}") from error
    if (count, size) != (described["count"], described["size"]):
        raise ArchiveDamaged(f"has {ARTIFACT_LIST} that does not match its manifest")


def _unpack_artifacts(
    members: Iterator[ArchivedFile],
    artifact_list: Path,
    store: ArtifactStore,
    described: JsonObject,
    on_progress: OnProgress,
) -> None:
    done = 0
    for number, (sha256, size) in enumerate(listed_artifacts(artifact_list), start=1):
        target = store.path(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        member = _next(members, artifact_name(sha256))
        _unpack_file(member, target, {"sha256": sha256, "size": size})
        done += size
        on_progress(BackupProgress(number, described["count"], done, described["size"]))


def _copy_artifacts(
    folder: Path,
    artifact_list: Path,
    store: ArtifactStore,
    described: JsonObject,
    on_progress: OnProgress,
) -> int:
    """Copy the artifacts of a folder of backups; return how many it lacks.

    Raises `LedgerError` for a changed artifact, and `ArchiveDamaged` if it is not a regular file.
    """
    missing = done = 0
    for number, (sha256, size) in enumerate(listed_artifacts(artifact_list), start=1):
        target = store.path(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _copy_artifact(folder, sha256, size, target):
            missing += 1
        done += size
        on_progress(BackupProgress(number, described["count"], done, described["size"]))
    return missing


def _copy_artifact(folder: Path, sha256: str, size: int, target: Path) -> bool:
    """Copy an artifact, never from a device or a FIFO; return False if the folder lacks it."""
    source = ArtifactStore(folder).path(sha256)
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ArchiveDamaged(f"has beside it {source.name}, which is not a regular file")
        with _new_file(target) as out:
            # If the file is longer than `size`, one more byte changes the digest.
            digest = digest_of(tars.pieces(file, size), out.write)
    if digest != sha256:
        raise LedgerError(
            f"{source} was changed since it was backed up; {_UNDONE}",
            hint="restore it from another copy, or move it away: the lab is then without it",
        )
    return True
