"""The source of an import: an archive, a ledger file, a lab folder, or a run's folder of mirrors.

A source is never changed. Archives are first unpacked, and mirrors rebuilt into a temporary ledger,
so that the import itself reads ledgers only. Used by `import_runs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from labledger.errors import InvalidInput, Problem
from labledger.export import mirrors, run_folder
from labledger.ledger.database import migrations
from labledger.ledger.exchange import source
from labledger.ledger.exchange.source import Source
from labledger.ledger.read.lookup import ledger_holds_run
from labledger.ledger.writer import LedgerWriter
from labledger.maintenance import archives
from labledger.storage.archive_files import is_archive
from labledger.storage.artifact_store import ArtifactStore
from labledger.storage.lab_folder import FOLDER, LabFolder
from labledger.storage.scratch_folders import scratch_folder


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The paths of a source."""

    ledger: Path | None
    """None if there are only mirrors."""
    artifacts: Path
    folder: Path
    """The run's folder, if there are only mirrors."""
    run_ids: tuple[str, ...] = ()
    """The run whose folder was given; empty for a whole ledger."""
    archive: Path | None = None
    """The archive, which holds the ledger and the artifacts."""


def locate_source(path: Path) -> SourceLocation:
    """Return the source at a path. Raises `InvalidInput` if there is none.

    A run's folder means that run of the ledger two folders above, or its mirrors if there is no
    such ledger or it does not hold the run.
    """
    if path.is_file() and is_archive(path):
        return SourceLocation(None, path.parent, path.parent, archive=path)
    if path.is_file():
        return SourceLocation(path, path.parent / "artifacts", path.parent)
    for lab in (path, path / FOLDER):
        if (lab / "ledger.sqlite").exists():
            return SourceLocation(lab / "ledger.sqlite", lab / "artifacts", path)
    lab = path.absolute().parent.parent
    run_id = path.absolute().name
    if (path / "resolved.json").is_file() and ledger_holds_run(lab / "ledger.sqlite", run_id):
        return SourceLocation(lab / "ledger.sqlite", lab / "artifacts", path, (run_id,))
    if (path / run_folder.CHAIN_PATH).exists():
        return SourceLocation(None, _artifacts_beside(path), path)
    if any((path / mirror).exists() for mirror in mirrors.PATHS.values()):
        message = f"it holds mirrors, but no {run_folder.CHAIN_PATH} to verify them by"
        hint = (
            f"`labledger export {run_id} --out DIR --lab-dir ITS_LAB`, where ITS_LAB is the lab "
            "that holds the run, writes all that an import needs"
        )
        raise InvalidInput("the import", [Problem(str(path), message, hint=hint)])
    expected = "an archive, a ledger file, a lab folder, or a run's folder"
    raise InvalidInput("the import", [Problem(str(path), f"found none of these: {expected}")])


@contextmanager
def open_source(lab: LabFolder, location: SourceLocation) -> Iterator[Source]:
    """Open a source for reading, after unpacking it or rebuilding its mirrors, if need be.

    Raises `InvalidInput` for the lab's own ledger, `LedgerError` if it cannot be read.
    """
    with scratch_folder("import") as scratch:
        if location.archive is not None:
            with _open_archive(location.archive, scratch) as unpacked:
                yield unpacked
            return
        if location.ledger is None:
            ledger = scratch / "mirrors.sqlite"
            _rebuild(location.folder, ledger)
            with source.open_source_ledger(ledger, location.artifacts, scratch) as rebuilt:
                yield replace(rebuilt, path=location.folder, has_artifacts=False)
            return
        if lab.ledger.exists() and location.ledger.samefile(lab.ledger):
            message = "it is this lab's own ledger"
            hint = "choose the lab to import into with `lab_dir=`"
            raise InvalidInput("the import", [Problem(str(location.ledger), message, hint=hint)])
        with source.open_source_ledger(location.ledger, location.artifacts, scratch) as opened:
            yield opened


@contextmanager
def _open_archive(archive: Path, scratch: Path) -> Iterator[Source]:
    lab = LabFolder(scratch / "archive")
    lab.root.mkdir()
    runs = archives.unpack(archive, lab.root)
    with source.open_source_ledger(lab.ledger, lab.artifacts, scratch) as unpacked:
        unpacked = replace(unpacked, path=archive)
        archives.require_runs(archive, runs, unpacked)
        yield unpacked


def _artifacts_beside(folder: Path) -> Path:
    """Return the artifact store that a folder of mirrors refers to: in it, or in its lab."""
    inside = folder / "artifacts"
    runs = folder.absolute().parent
    return runs.parent / "artifacts" if runs.name == "runs" and not inside.exists() else inside


def _rebuild(folder: Path, ledger: Path) -> None:
    files = {kind: folder / path for kind, path in mirrors.PATHS.items()}
    migrations.upgrade(ledger)
    with LedgerWriter.open(ledger, ArtifactStore(ledger.parent / "artifacts")) as writer:
        writer.imports.rebuild_run(folder / run_folder.CHAIN_PATH, files)
