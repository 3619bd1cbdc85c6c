"""`labledger import`: copies runs of another ledger into this one.

The source is an archive, a ledger file, a lab folder, or a run's folder of mirrors. It is never
changed. All of its runs are verified, and nothing is written if one is damaged or contradicts a run
of this ledger. Existing runs only get new slots.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from labledger import clock
from labledger.errors import InvalidInput, LedgerError, LedgerMissing, Problem, RunNotFound
from labledger.execution.process_identity import process_is_dead
from labledger.export import mirrors, summary
from labledger.export.mirrors import create_run_folder
from labledger.files.artifact_store import ArtifactStore
from labledger.files.durable_files import filled_folder, make_folder, sync_folder
from labledger.files.lab_folder import FOLDER, LabFolder, scratch_folder
from labledger.files.tars import is_archive
from labledger.ledger.database import migrations
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import reading
from labledger.ledger.exchange import histories, source
from labledger.ledger.exchange.histories import History, RunRelation
from labledger.ledger.exchange.import_writer import referenced_digests, refuse_if_busy
from labledger.ledger.exchange.source import ImportSource, verify_hint
from labledger.ledger.reader import LedgerReader
from labledger.ledger.reading import stored_runs
from labledger.ledger.rows.lookup import ledger_holds_run
from labledger.ledger.writer import LedgerWriter
from labledger.records.json_codec import JsonForm
from labledger.upkeep import archives

_OF_DISKS = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT})
"""Failures that are not about the given paths."""


@contextmanager
def _open_source(lab: LabFolder, path: Path) -> Iterator[tuple[ImportSource, Sequence[str]]]:
    """Open the source at a path; yield it with the runs that the path names, none for all.

    An archive is unpacked first, and mirrors are rebuilt. Raises `InvalidInput` if there is no
    source, and for the lab's own ledger; `LedgerError` if it cannot be read.
    """
    with scratch_folder("import") as scratch:
        if path.is_file() and is_archive(path):
            with _open_archive(path, scratch) as unpacked:
                yield unpacked, ()
            return
        ledger_and_runs = _ledger_at(path)
        if ledger_and_runs is None:
            _require_chain(path)
            ledger = scratch / "mirrors.sqlite"
            _rebuild(path, ledger)
            with source.open_source_ledger(ledger, _artifacts_beside(path), scratch) as rebuilt:
                yield replace(rebuilt, path=path, has_artifacts=False), ()
            return
        ledger, run_ids = ledger_and_runs
        if lab.ledger.exists() and ledger.samefile(lab.ledger):
            message = "it is this lab's own ledger"
            hint = "choose the lab to import into with `lab_dir=`"
            raise InvalidInput("the import", [Problem(str(ledger), message, hint=hint)])
        with source.open_source_ledger(ledger, ledger.parent / "artifacts", scratch) as opened:
            yield opened, run_ids


def _ledger_at(path: Path) -> tuple[Path, Sequence[str]] | None:
    """Return the ledger at a path, and the run if the path is a run folder; None if there is none.

    A run folder stands for its run in the ledger two folders above, if that ledger has the run.
    """
    if path.is_file():
        return path, ()
    for lab in (path, path / FOLDER):
        if (lab / "ledger.sqlite").exists():
            return lab / "ledger.sqlite", ()
    ledger = path.absolute().parent.parent / "ledger.sqlite"
    run_id = path.absolute().name
    is_run = (path / "resolved.json").is_file() and ledger_holds_run(ledger, run_id)
    return (ledger, (run_id,)) if is_run else None


def _require_chain(path: Path) -> None:
    """Raise `InvalidInput` if a folder has no chain file, by which its mirrors are verified."""
    if (path / mirrors.CHAIN_PATH).exists():
        return
    if any((path / mirror).exists() for mirror in mirrors.PATHS.values()):
        message = f"it holds mirrors, but no {mirrors.CHAIN_PATH} to verify them by"
        hint = (
            f"`labledger export {path.absolute().name} --out DIR --lab-dir ITS_LAB`, where ITS_LAB "
            "is the lab that holds the run, writes all that an import needs"
        )
        raise InvalidInput("the import", [Problem(str(path), message, hint=hint)])
    expected = "an archive, a ledger file, a lab folder, or a run's folder"
    raise InvalidInput("the import", [Problem(str(path), f"found none of these: {expected}")])


@contextmanager
def _open_archive(archive: Path, scratch: Path) -> Iterator[ImportSource]:
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
    files = {kind: folder / path for kind, path in mirrors.ALL_PATHS.items()}
    migrations.upgrade(ledger)
    with LedgerWriter.open(ledger, ArtifactStore(ledger.parent / "artifacts")) as writer:
        writer.imports.rebuild_run(folder / mirrors.CHAIN_PATH, files)


_MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class ImportedRun(JsonForm):
    """A run of the source, and how it was imported."""

    run_id: str
    relation: RunRelation
    """Its relation to the runs of this ledger before the import."""
    total: int
    committed: int
    """How many slots the source has committed."""
    committed_locally: int
    """How many slots this ledger had committed before the import."""
    uncommitted_results: int
    """How many staged results the source has not committed. They are not imported."""
    missing_artifacts: int = 0
    """How many artifacts its records refer to that the source does not have."""

    _KEYS: ClassVar = {
        "relation": "standing",
        "committed_locally": "here",
        "uncommitted_results": "left_staged",
    }
    """The keys of `labledger import --json`, which are older."""


def import_source(
    lab: LabFolder,
    path: Path,
    run_ids: Sequence[str] = (),
    *,
    dry_run: bool = False,
    without_artifacts: bool = False,
) -> list[ImportedRun]:
    """Import runs of the source at `path` into the lab's ledger: those named, or all.

    Nothing is written until all of them are verified and none contradicts a run of this ledger.
    Slots that this ledger holds stay unchanged; new slots of the same run are added. Mirrors hold
    no artifacts: artifacts that neither the source nor the lab has may be missing only with
    `without_artifacts`. Raises `LedgerError` for a damaged source or a contradiction, `LeaseHeld`
    for a run that a coordinator owns.
    """
    with ExitStack() as stack:
        source, named_ids = stack.enter_context(_open_source(lab, path))
        chosen_ids = _choose_runs(source, run_ids or named_ids)
        source.refuse_live(chosen_ids, process_is_dead)
        _require_verified(source, chosen_ids)
        # The root run of a regrading must be imported first.
        chosen_ids.sort(key=lambda run_id: source.regrades(run_id) is not None)
        run_histories = _compare_runs(lab, source, chosen_ids)
        _refuse_conflicts(lab, source, run_histories)
        _require_roots(lab, source, chosen_ids)
        if not source.has_artifacts and not without_artifacts:
            _require_artifacts(lab, source, run_histories)
        if dry_run:
            return [_imported(history) for history in run_histories]
        try:
            lab.create()
            migrations.upgrade(lab.ledger)
            return list(_import_all(lab, source, chosen_ids))
        except OSError as error:
            if error.errno not in _OF_DISKS:
                raise
            raise LedgerError(
                f"could not import {path} into {lab.root}: {error.strerror}",
                hint="import it again when the disk has been checked; what is complete is kept",
            ) from error


def _choose_runs(source: ImportSource, run_ids: Sequence[str]) -> list[str]:
    available = source.run_ids()
    for run_id in run_ids:
        if run_id not in available:
            listed = ", ".join(available[: -_MAX_LISTED - 1 : -1]) or "none"
            raise RunNotFound(
                f"{source.path} holds no run {run_id!r}", hint=f"its newest runs: {listed}"
            )
    return [run_id for run_id in available if not run_ids or run_id in run_ids]


def _require_verified(source: ImportSource, chosen_ids: Sequence[str]) -> None:
    """Raise `LedgerError` if the source differs from what was committed."""
    findings = source.verify(chosen_ids).findings
    if findings:
        listed = [f"  {finding.line(source.path)}" for finding in findings[:_MAX_LISTED]]
        if len(findings) > _MAX_LISTED:
            listed.append(f"  and {len(findings) - _MAX_LISTED} more")
        raise LedgerError(
            "\n".join([f"{source.path} does not verify; nothing was imported", *listed]),
            hint=f"`run_ids=` chooses other runs; {verify_hint(source.path)}",
        )


def _compare_runs(lab: LabFolder, source: ImportSource, chosen_ids: Sequence[str]) -> list[History]:
    """Compare each run with this ledger.

    Raises `LeaseHeld` if a coordinator owns a run to which slots would be added.
    """
    with ExitStack() as stack:
        try:
            target = stack.enter_context(_read_only(lab.ledger))
        except LedgerMissing:
            target = None
        run_histories = [
            histories.compare(source.connection, target, run_id) for run_id in chosen_ids
        ]
        for history in run_histories:
            if target is not None and history.relation is RunRelation.GROWN:
                refuse_if_busy(target, history, clock.utc_now(), process_is_dead)
        return run_histories


@contextmanager
def _read_only(path: Path) -> Iterator[Connection]:
    with reading(path, "read the ledger") as connection:
        migrations.require_current_connection(connection, path)
        yield connection


def _refuse_conflicts(
    lab: LabFolder, source: ImportSource, run_histories: Sequence[History]
) -> None:
    conflicts = [history for history in run_histories if history.relation is RunRelation.CONFLICT]
    if conflicts:
        listed = [
            f"  {history.run_id}: {history.difference}" for history in conflicts[:_MAX_LISTED]
        ]
        head = f"{lab.ledger} holds different runs with the same ids as {source.path}"
        raise LedgerError(
            "\n".join([f"{head}; nothing was imported", *listed]),
            hint="a run's id is in all its digests and cannot be changed: leave it out by "
            "choosing others with `run_ids=`, or import into another lab with `lab_dir=`",
        )


def _require_roots(lab: LabFolder, source: ImportSource, chosen_ids: Sequence[str]) -> None:
    """Raise `LedgerError` for a regrading if its root run is not in the lab or imported with it."""
    for run_id in chosen_ids:
        regraded = source.regrades(run_id)
        if regraded is None or regraded.root_id in chosen_ids:
            continue
        try:
            with _read_only(lab.ledger) as target:
                problem = stored_runs.root_mismatch(target, regraded, source.slots(run_id))
        except LedgerMissing:
            problem = f"it regrades {regraded.root_id}, which the ledger does not have"
        if problem is not None:
            raise LedgerError(
                f"run {run_id} cannot be imported into {lab.ledger}: {problem}",
                hint=f"import {regraded.root_id} with it, or before it",
            )


def _require_artifacts(
    lab: LabFolder, source: ImportSource, run_histories: Sequence[History]
) -> None:
    """Raise `LedgerError` if a record refers to an artifact that neither source nor lab has."""
    store = ArtifactStore(lab.artifacts)
    with ExitStack() as stack:
        try:
            reader = stack.enter_context(LedgerReader.open(lab.ledger))
        except LedgerMissing:
            reader = None
        for history in run_histories:
            if history.relation is RunRelation.SAME:
                continue
            for digests in referenced_digests(source, history.run_id, history.committed_in_target):
                for sha256 in digests:
                    is_stored = reader is not None and reader.has_artifact(sha256)
                    if (
                        not is_stored
                        and not source.store.contains(sha256)
                        and not store.contains(sha256)
                    ):
                        raise LedgerError(
                            f"{source.path} holds mirrors without the artifacts that they refer "
                            f"to, such as {sha256}; nothing was imported",
                            hint="import the ledger that they were exported from, or only their "
                            "records with `without_artifacts=True`; `labledger verify` will list "
                            "the missing artifacts",
                        )


def _import_all(
    lab: LabFolder, source: ImportSource, chosen_ids: Sequence[str]
) -> Iterator[ImportedRun]:
    with (
        LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer,
        LedgerReader.open(lab.ledger) as reader,
    ):
        for run_id in chosen_ids:
            imported = _import_run(writer, source, run_id)
            if imported.relation is RunRelation.CONFLICT:
                raise LedgerError(
                    f"run {run_id} was created in this ledger meanwhile; it was not imported"
                )
            write_run_folder(lab, reader, run_id)
            yield imported


def _import_run(writer: LedgerWriter, source: ImportSource, run_id: str) -> ImportedRun:
    with _read_only(writer.path) as target:
        before = histories.compare(source.connection, target, run_id)
    missing = 0
    if before.relation in (RunRelation.NEW, RunRelation.GROWN):
        missing = writer.imports.copy_artifacts(source, run_id, before.committed_in_target)
    return _imported(writer.imports.import_run(source, run_id, process_is_dead), missing)


def _imported(history: History, missing: int = 0) -> ImportedRun:
    return ImportedRun(
        history.run_id,
        history.relation,
        history.total,
        history.committed,
        history.committed_in_target,
        history.left_staged,
        missing,
    )


def write_run_folder(lab: LabFolder, reader: LedgerReader, run_id: str) -> None:
    """Regenerate the files of a run folder, unless a coordinator owns the run.

    A new folder appears with all of them.
    """
    run = reader.run(run_id)
    if run.lease is not None and not process_is_dead(run.lease.owner):
        return
    folder = lab.run_folder(run_id)
    expected = summary.build_summary(reader, run_id)
    path = folder / summary.PATH
    if path.is_file() and path.read_bytes() == summary.summary_bytes(expected):
        return
    make_folder(folder.parent)
    with nullcontext(folder) if folder.is_dir() else filled_folder(folder) as written:
        create_run_folder(written, run)
        mirrors.rebuild_all(reader, run_id, written)
        mirrors.write_chain(reader, run_id, written / mirrors.CHAIN_PATH)
        # Last, because its presence means that the other files are complete.
        summary.write_summary(written, expected)
    sync_folder(folder.parent)
