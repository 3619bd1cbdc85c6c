"""Archives: one compressed file with a run, its regradings, and their artifacts.

An archive is a lab folder with these runs only: `archive.json`, `ledger.sqlite`, and the artifacts
by digest. Runs are verified before they are archived. The file gets its name once it is complete.
`import_source` unpacks an archive as an untrusted source of an import.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from labledger import __version__, clock, fault_points
from labledger.errors import InvalidInput, LedgerError, Problem
from labledger.execution.process_identity import process_is_dead
from labledger.files import tars
from labledger.files.artifact_store import ArtifactStore
from labledger.files.durable_files import file_pieces
from labledger.files.lab_folder import LabFolder, scratch_folder
from labledger.files.output_files import make_folder_for
from labledger.files.tars import ArchiveDamaged, ArchivedFile
from labledger.ledger.database import migrations
from labledger.ledger.database.sqlite import DRIVER
from labledger.ledger.exchange.import_writer import frozen_digests
from labledger.ledger.exchange.source import ImportSource, open_source_ledger
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.records import canonical_json, json_schemas
from labledger.records.json_codec import JsonForm
from labledger.upkeep.archive_members import next_member, read_manifest

SCHEMA = "archive_v1"

_WHAT = "an archive of labledger"
_MANIFEST = "archive.json"
_LEDGER = "ledger.sqlite"
_ARTIFACT = re.compile(r"artifacts/sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_MAX_MANIFEST_BYTES = 1 << 20
_BLOCK_BYTES = 4096
"""The least space that a small file takes on a disk."""


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """A run in an archive."""

    run_id: str
    committed: int
    """How many slots are committed."""
    chain_head: str
    """The digest of its last commit, or of its creation if there is none."""


@dataclass(frozen=True, slots=True)
class Archive(JsonForm):
    """An archive that was written."""

    path: Path
    size: int
    """In bytes."""
    runs: tuple[ArchivedRun, ...]
    """The run, then its regradings."""
    artifacts: int
    """How many artifacts are files of the archive. Smaller ones are in its ledger."""
    uncommitted_results: int
    """How many finished results of its runs are not committed. The archive leaves them out."""


@dataclass(frozen=True, slots=True)
class _StoredArtifact:
    sha256: str
    size: int

    @property
    def name(self) -> str:
        return f"artifacts/sha256/{self.sha256[:2]}/{self.sha256}"


def archive_run(lab: LabFolder, run_id: str, path: Path) -> Archive:
    """Write a run with its regradings, chains and artifacts to the new file `path`.

    Raises `RunNotFound`, `LeaseHeld` for a run in progress, `InvalidInput` for a regrading, and
    `LedgerError` if the runs do not verify or `path` cannot be written; then there is no file.
    """
    if os.path.lexists(path):
        message = "the file exists, and archives are never overwritten"
        raise InvalidInput("the archive", [Problem(str(path), message, hint="name a new file")])
    make_folder_for(path)
    try:
        runs, artifacts, left_staged = _write(lab, run_id, path)
    except OSError as error:
        reason = error.strerror or error
        raise LedgerError(f"could not write the archive {path}: {reason}") from error
    return Archive(path, path.stat().st_size, runs, artifacts, left_staged)


def _write(lab: LabFolder, run_id: str, path: Path) -> tuple[tuple[ArchivedRun, ...], int, int]:
    """Write an archive; return its runs, and the numbers of its artifacts and of results left out.

    No artifact is removed meanwhile.
    """
    store = ArtifactStore(lab.artifacts)
    with (
        store.in_use(),
        scratch_folder("archive") as scratch,
        open_source_ledger(lab.ledger, lab.artifacts, scratch) as source,
    ):
        run_ids = source.with_regradings(run_id)
        source.refuse_live(run_ids, process_is_dead)
        _require_verified(source, run_ids)
        ledger = scratch / _LEDGER
        runs, artifacts, left_staged = _copy_runs(source, run_ids, ledger, store)
        manifest = _manifest(runs, ledger, artifacts)
        tars.write_archive(path, _members(manifest, ledger, artifacts, store))
    return runs, len(artifacts), left_staged


def _require_verified(source: ImportSource, run_ids: Sequence[str]) -> None:
    findings = source.verify(run_ids).findings
    if findings:
        raise LedgerError(
            f"{findings[0].line(source.path)}; nothing was archived",
            hint="`labledger verify` lists every finding",
        )


def _copy_runs(
    source: ImportSource, run_ids: Sequence[str], ledger: Path, store: ArtifactStore
) -> tuple[tuple[ArchivedRun, ...], list[_StoredArtifact], int]:
    """Copy runs to a new ledger. Its artifacts that are files remain in the lab's own store.

    Returns the runs, these artifacts, and the number of results that are not committed.
    """
    migrations.upgrade(ledger)
    left_staged = 0
    digests: set[str] = set()
    with LedgerWriter.open(ledger, store) as writer:
        for run_id in run_ids:
            writer.imports.copy_artifacts(source, run_id, 0)
            left_staged += writer.imports.import_run(source, run_id, process_is_dead).left_staged
            digests.update(filter(store.contains, frozen_digests(source, run_id)))
    with LedgerReader.open(ledger, store) as reader:
        runs = tuple(
            ArchivedRun(run_id, reader.run(run_id).next_schedule_idx, reader.chain_head(run_id))
            for run_id in run_ids
        )
    digests.update(_finish_ledger(ledger))
    artifacts = [
        _StoredArtifact(sha256, store.path(sha256).stat().st_size) for sha256 in sorted(digests)
    ]
    return runs, artifacts, left_staged


def _finish_ledger(ledger: Path) -> list[str]:
    """Make a ledger one file, without a log; return the digests of its artifacts in the store."""
    raw = DRIVER.connect(str(ledger), isolation_level=None)
    try:
        raw.execute("PRAGMA journal_mode = DELETE")
        rows = raw.execute("SELECT lower(hex(sha256)) FROM artifact WHERE content IS NULL")
        return [sha256 for (sha256,) in rows]
    finally:
        raw.close()


def _manifest(
    runs: Iterable[ArchivedRun], ledger: Path, artifacts: Sequence[_StoredArtifact]
) -> bytes:
    with ledger.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    document = {
        "schema_version": SCHEMA,
        "written_at": clock.utc_now(),
        "written_by": __version__,
        "ledger": {"sha256": sha256, "size": ledger.stat().st_size},
        "artifacts": {
            "count": len(artifacts),
            "size": sum(artifact.size for artifact in artifacts),
        },
        "runs": [asdict(run) for run in runs],
    }
    json_schemas.require_valid(document, SCHEMA)
    return canonical_json.dump_bytes(document)


def _members(
    manifest: bytes, ledger: Path, artifacts: Iterable[_StoredArtifact], store: ArtifactStore
) -> Iterator[tuple[str, int, Iterable[bytes]]]:
    yield _MANIFEST, len(manifest), [manifest]
    yield _LEDGER, ledger.stat().st_size, file_pieces(ledger)
    fault_points.fault_point("inside_archive")
    for artifact in artifacts:
        path = store.path(artifact.sha256)
        pieces = unchanged_chunks(path, artifact.sha256, "nothing was archived")
        yield artifact.name, artifact.size, pieces


def unchanged_chunks(path: Path, sha256: str, undone: str) -> Iterator[bytes]:
    """Yield the content of an artifact. Raises `LedgerError` at its end if it was changed.

    `undone` ends the error message.
    """
    hasher = hashlib.sha256()
    for piece in file_pieces(path):
        hasher.update(piece)
        yield piece
    if hasher.hexdigest() != sha256:
        raise LedgerError(
            f"artifact {sha256} was changed in the store; {undone}",
            hint=f"restore it from a copy, or move {path} away: it is lost then",
        )


def unpack(path: Path, folder: Path) -> tuple[ArchivedRun, ...]:
    """Unpack the archive at `path` into an empty folder as a lab; return the runs that it names.

    Every size, name and digest is checked before or while the file is written. Raises
    `LedgerError` if the archive is damaged, too large for the disk, or of another format.
    """
    try:
        with tars.open_archive(path) as files:
            return _unpack(path, files, folder)
    except ArchiveDamaged as error:
        hint = "name a file that `labledger archive` wrote, or take another copy of it"
        raise LedgerError(f"{path} {error}; nothing was imported", hint=hint) from error
    except OSError as error:
        raise LedgerError(
            f"could not unpack {path}: {error.strerror or error}; nothing was imported",
            hint=f"it is unpacked in {folder.parent}; $TMPDIR names another folder",
        ) from error


def _unpack(path: Path, files: Iterator[ArchivedFile], folder: Path) -> tuple[ArchivedRun, ...]:
    manifest = read_manifest(next_member(files, _MANIFEST, _WHAT), SCHEMA, _MAX_MANIFEST_BYTES)
    ledger, artifacts = manifest["ledger"], manifest["artifacts"]
    _require_space(path, folder, ledger["size"] + artifacts["size"], artifacts["count"])
    file = next_member(files, _LEDGER, _WHAT)
    if file.size != ledger["size"]:
        raise ArchiveDamaged(f"has {_LEDGER} with another size than its manifest says")
    _unpack_file(file, folder / _LEDGER, ledger["sha256"])
    previous, count, size = "", 0, 0
    for file in files:
        match = _ARTIFACT.fullmatch(file.name)
        count, size = count + 1, size + file.size
        if match is None or file.name <= previous:
            raise ArchiveDamaged(f"holds {file.name[:100]!r} where no such file can be")
        if count > artifacts["count"] or size > artifacts["size"]:
            raise ArchiveDamaged("holds more artifacts than its manifest says")
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        _unpack_file(file, target, match[2])
        previous = file.name
    if (count, size) != (artifacts["count"], artifacts["size"]):
        raise ArchiveDamaged("holds fewer artifacts than its manifest says")
    return tuple(ArchivedRun(**run) for run in manifest["runs"])


def _require_space(path: Path, folder: Path, size: int, files: int) -> None:
    needed = size + (files + 2) * _BLOCK_BYTES
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise LedgerError(
            f"{path} holds {needed:,} bytes, and {folder.parent} has {free:,} free; "
            "nothing was imported",
            hint="free some space, or name another folder with $TMPDIR",
        )


def _unpack_file(file: ArchivedFile, target: Path, sha256: str) -> None:
    """Write a file of the archive, and check its digest."""
    hasher = hashlib.sha256()
    with target.open("xb") as out:
        for piece in file.chunks:
            hasher.update(piece)
            out.write(piece)
    if hasher.hexdigest() != sha256:
        raise ArchiveDamaged(f"holds {file.name} with another digest than expected")


def require_runs(path: Path, runs: Sequence[ArchivedRun], source: ImportSource) -> None:
    """Raise `LedgerError` unless the ledger of an archive holds the runs that the archive names."""
    stored_runs = [ArchivedRun(run_id, *source.chain_head(run_id)) for run_id in source.run_ids()]
    if list(runs) != stored_runs:
        message = f"{path} does not hold the runs that its {_MANIFEST} names; nothing was imported"
        raise LedgerError(message)
