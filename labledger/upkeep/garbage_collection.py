"""`labledger delete` and `labledger gc`: delete runs, and remove artifacts without references.

Rows go first, in one transaction; then a rename removes the run's folder as a whole. The next
collection completes it. Nothing is collected while a run is in progress or another process uses the
artifact store, because it may be about to refer to an artifact.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labledger import clock, fault_points
from labledger.errors import LeaseHeld, LedgerError, Parameter, require_text
from labledger.execution.process_identity import is_live, process_is_dead
from labledger.export.mirrors import NotRegularError, read_regular
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.ledger import removal
from labledger.ledger.database import migrations
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.run_info import RunInfo
from labledger.ledger.database.sqlite import empty_log, reading, translated, writable_engine
from labledger.ledger.reader import LedgerReader
from labledger.ledger.removal import UnnamedRows
from labledger.ledger.rows.tombstones import Tombstone
from labledger.ledger.writer import LedgerWriter
from labledger.records.identity import RUN_ID
from labledger.records.json_codec import JsonForm
from labledger.records.outcomes import RunStatus

DELETED_PREFIX = ".deleted-"
"""The prefix of run folders that are being removed."""
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}")
"""The name of a run folder that an import was writing: see `durable_files.filled_folder`."""

_MIN_FREE_BYTES = 1 << 20
"""The ledger is not written again if it has less unused space."""
_PATIENCE_S = 5
_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class GarbageCollection(JsonForm):
    """The result of a garbage collection, or of a dry run. Sizes are in bytes."""

    artifacts: int
    """Files of the artifact store without references."""
    artifact_bytes: int
    rows: int
    """Artifacts and payloads of tasks inside the ledger without references."""
    row_bytes: int
    leftovers: int
    """Files and folders that ended processes left: unfinished artifacts, events of results that
    are committed, folders of deleted runs."""
    leftover_bytes: int
    ledger_bytes: int
    """How much smaller the ledger's file became; 0 if this was not tried."""

    @property
    def freed_bytes(self) -> int:
        """The freed space on the disk, without the space from shrinking the ledger."""
        return self.artifact_bytes + self.leftover_bytes + self.ledger_bytes


def collect_garbage(lab: LabFolder, *, dry_run: bool = False) -> GarbageCollection:
    """Remove contents without references; with `dry_run`, only count them.

    Raises `LedgerMissing`, and `LeaseHeld` if a run is in progress or another process uses the
    artifacts; then nothing is removed.
    """
    migrations.require_current(lab.ledger)
    if dry_run:
        with reading(lab.ledger, "read the ledger") as connection:
            removal.collect_named(connection, _texts_of_trials(lab))
            rows = removal.count_rows(connection)
            return _remove_files(lab, connection, rows, dry_run=True)
    store = ArtifactStore(lab.artifacts)
    deadline = clock.monotonic() + _PATIENCE_S
    while True:
        with store.alone() as is_alone:
            if is_alone:
                _refuse_live_runs(lab)
                return _collect(lab)
        if clock.monotonic() > deadline:
            _refuse_live_runs(lab)
            raise LeaseHeld(
                f"another labledger process writes in {lab.root}; nothing was removed",
                hint="try again when it has ended; `dry_run=True` counts what would be removed",
            )
        clock.sleep(_WAIT_S)


def _refuse_live_runs(lab: LabFolder) -> None:
    """Raise `LeaseHeld` if a coordinator owns a run, such as one of an older labledger."""
    with LedgerReader.open(lab.ledger) as reader:
        for run in reader.runs():
            refuse_live_run(run)


def refuse_live_run(run: RunInfo) -> None:
    """Raise `LeaseHeld` if a coordinator owns a run."""
    if (owner := live_owner(run)) is not None:
        raise LeaseHeld(
            f"run {run.run_id} is in progress: it belongs to {owner}; nothing was removed",
            hint="try again when it has ended",
        )


def live_owner(run: RunInfo) -> str | None:
    """Return the run's owner in words, if it may be alive; else None."""
    if run.lease is None or not is_live(run.lease):
        return None
    return f"process {run.lease.owner.pid} on {run.lease.owner.machine}"


def _collect(lab: LabFolder) -> GarbageCollection:
    # Without foreign keys: see `delete_rows`.
    engine = writable_engine(lab.ledger, foreign_keys=False)
    try:
        with (
            translated("remove contents without references", lab.ledger),
            engine.connect() as connection,
        ):
            with connection.begin():
                removal.collect_named(connection, _texts_of_trials(lab))
                rows = removal.count_rows(connection)
                if rows.artifacts or rows.payloads:
                    removal.delete_rows(connection)
            collected = _remove_files(lab, connection, rows, dry_run=False)
            return _shrink_ledger(lab, connection, collected)
    finally:
        engine.dispose()


def _texts_of_trials(lab: LabFolder) -> Iterator[str]:
    """Yield texts of trial folders, which may refer to artifacts before a result does."""
    for path in (lab.root / "runs").glob("*/trials/*/first_part.json"):
        try:
            content = read_regular(path)
        except (NotRegularError, OSError) as error:
            raise LedgerError(
                f"could not read {path}, which may refer to artifacts: {error}; "
                "nothing was removed",
                hint="make the file readable, or remove it if its run is not to be resumed",
            ) from error
        yield (content or b"").decode("utf-8", "replace")


def _remove_files(
    lab: LabFolder, connection: Connection, rows: UnnamedRows, *, dry_run: bool
) -> GarbageCollection:
    artifacts = list(_unnamed_files(lab, connection))
    leftovers = list(_leftovers(lab))
    collected = GarbageCollection(
        artifacts=len(artifacts),
        artifact_bytes=sum(size for _, size in artifacts),
        rows=rows.artifacts + rows.payloads,
        row_bytes=rows.size,
        leftovers=len(leftovers),
        leftover_bytes=sum(map(_size, leftovers)),
        ledger_bytes=0,
    )
    if not dry_run:
        for path, _ in artifacts:
            path.unlink(missing_ok=True)
            fault_points.fault_point("inside_gc")
        for path in leftovers:
            remove_tree(path)
            fault_points.fault_point("inside_gc")
    return collected


def _unnamed_files(lab: LabFolder, connection: Connection) -> Iterator[tuple[Path, int]]:
    for path in (lab.artifacts / "sha256").glob("??/*"):
        is_file = path.is_file() and not path.is_symlink()
        is_artifact = is_file and ArtifactStore.is_name(path.name)
        if is_artifact and not removal.is_named(connection, path.name):
            yield path, path.stat().st_size


def _leftovers(lab: LabFolder) -> Iterator[Path]:
    """Yield unfinished or deleted files: artifacts, run folders, events of committed results."""
    yield from _entries(lab.artifacts / "incoming")
    yield from (path for path in _entries(lab.root / "runs") if _UNFINISHED.fullmatch(path.name))
    yield from (lab.root / "runs").glob(f"{DELETED_PREFIX}*")
    with LedgerReader.open(lab.ledger) as reader:
        deleted = reader.deleted_run_ids()
        unfinished = {run.run_id for run in reader.runs() if run.status is not RunStatus.COMPLETED}
    deleted_folders = [lab.run_folder(run_id) for run_id in deleted if RUN_ID.fullmatch(run_id)]
    yield from (folder for folder in deleted_folders if folder.is_dir())
    staged = _entries(ArtifactStore(lab.artifacts).staged_events)
    yield from (folder for folder in staged if folder.name not in unfinished)


def _entries(folder: Path) -> Iterable[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else ()


def _size(path: Path) -> int:
    files = (file for file in (path, *path.rglob("*")) if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files)


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with its content. Ignore whatever cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _shrink_ledger(
    lab: LabFolder, connection: Connection, collected: GarbageCollection
) -> GarbageCollection:
    """Write the ledger again without unused space, if there is much and the disk has room."""
    page_size = connection.execute("PRAGMA page_size").scalar_one()
    unused = connection.execute("PRAGMA freelist_count").scalar_one() * page_size
    before = lab.ledger.stat().st_size
    free = shutil.disk_usage(lab.root).free
    if unused < _MIN_FREE_BYTES or free < 3 * before:
        return collected
    connection.execute("VACUUM")
    empty_log(connection)
    after = lab.ledger.stat().st_size
    return replace(collected, ledger_bytes=max(before - after, 0))


_MAX_BECAUSE = 10_000


@dataclass(frozen=True, slots=True)
class DeletedRun(JsonForm):
    """A run that was deleted, or would be."""

    run_id: str
    committed: int
    """How many slots are committed."""
    total: int
    """How many slots its schedule has."""
    chain_head: str
    """The digest of its last commit, or of its creation if there is none."""


def delete_run(
    lab: LabFolder, run_id: str, because: str, *, dry_run: bool = False
) -> list[DeletedRun]:
    """Delete a run and its regradings, and return them; with `dry_run`, only return them.

    Raises `RunNotFound`, `LeaseHeld` if a coordinator owns one of them, and `InvalidInput` for a
    regrading or a missing reason.
    """
    require_text("the reason", Parameter("because"), because, _MAX_BECAUSE)
    with LedgerReader.open(lab.ledger) as reader:
        runs = _runs(reader, run_id)
        if dry_run:
            for run in runs:
                refuse_live_run(reader.run(run.run_id))
            return runs
    with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
        stones = writer.delete_run(run_id, because, process_is_dead)
        fault_points.fault_point("after_delete")
        _remove_folders(lab, stones)
    totals = {run.run_id: run.total for run in runs}
    return [
        DeletedRun(stone.run_id, stone.committed, totals.get(stone.run_id, 0), stone.chain_head)
        for stone in stones
    ]


def _runs(reader: LedgerReader, run_id: str) -> list[DeletedRun]:
    runs = map(reader.run, reader.with_regradings(run_id))
    return [
        DeletedRun(
            run.run_id, run.next_schedule_idx, run.total_slots, reader.chain_head(run.run_id)
        )
        for run in runs
    ]


def _remove_folders(lab: LabFolder, stones: Sequence[Tombstone]) -> None:
    """Remove the runs' folders and the events of their staged results."""
    staged = ArtifactStore(lab.artifacts).staged_events
    for stone in stones:
        folder = lab.run_folder(stone.run_id)
        if folder.is_dir():
            renamed = folder.with_name(f"{DELETED_PREFIX}{secrets.token_hex(8)}")
            folder.rename(renamed)
            remove_tree(renamed)
        remove_tree(staged / stone.run_id)
