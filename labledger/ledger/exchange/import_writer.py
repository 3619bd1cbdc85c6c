"""Import runs from other ledgers unchanged, including their digests: `LedgerWriter.imports`.

The caller must have verified the source. Artifacts are copied first, in batches. One transaction
then writes all rows of a run, so an interrupted import leaves no partial run. The journal of
containers stays in the source; rows for the hosts in the evidence replace it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from labledger import fault_points
from labledger.errors import LedgerError
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection, batched
from labledger.ledger.database.run_info import Owner
from labledger.ledger.database.table_rows import KEYS, SLOT_TABLES
from labledger.ledger.exchange import histories, mirror_reader
from labledger.ledger.exchange.histories import History, RunRelation, StoredRun
from labledger.ledger.exchange.source import ImportSource
from labledger.ledger.rows import leases, run_rows
from labledger.ledger.rows.control_requests import copy_requests
from labledger.ledger.rows.digest_chain import PLANNED_TABLES, read_chain_head
from labledger.ledger.rows.leases import UnitOfWork
from labledger.ledger.rows.lookup import run_number
from labledger.records.attempt_result import REFERENCE
from labledger.records.outcomes import RunStatus

_HOSTS_PER_BATCH = 500
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}/[0-9a-f]{8}")
"""Matches the name of a host, because an imported record may hold anything."""

_EVIDENCE_SQL = (
    "SELECT evidence_record.schedule_idx, evidence_record.attempt, slot_commit.epoch, "
    "attempt.container, evidence_record.record, attempt.started_at FROM evidence_record "
    "JOIN slot_commit ON slot_commit.run_no = evidence_record.run_no "
    "AND slot_commit.schedule_idx = evidence_record.schedule_idx "
    "JOIN attempt ON attempt.run_no = evidence_record.run_no "
    "AND attempt.schedule_idx = evidence_record.schedule_idx "
    "AND attempt.attempt = evidence_record.attempt "
    "WHERE evidence_record.run_no = ? AND evidence_record.schedule_idx >= ? "
    "AND instr(evidence_record.record, '\"host\":{') > 0"
)
_INSERT_DISPATCH = statements.insert(
    "dispatch", unless_exists="run_no, schedule_idx, attempt, epoch"
)


def journal_hosts(connection: Connection, run_no: int, run_id: str, start: int) -> None:
    """Journal the hosts in the evidence of imported slots, from slot `start` on."""
    for batch in batched(_dispatches(connection, run_no, run_id, start), _HOSTS_PER_BATCH):
        connection.execute(_INSERT_DISPATCH, list(batch))


def _dispatches(
    connection: Connection, run_no: int, run_id: str, start: int
) -> Iterator[tuple[int, int, int, int, str, str, str]]:
    rows = connection.execute(_EVIDENCE_SQL, (run_no, start))
    for idx, attempt, epoch, container, record, started_at in rows:
        host = _host(record)
        if host is not None and container.endswith(f"-{run_id}-{idx}-{attempt}"):
            yield run_no, idx, attempt, epoch, container, host, started_at


def _host(record: str) -> str | None:
    """Return the host that an evidence record names, None if it names none."""
    extension = json.loads(record).get("ext")
    host = extension.get("host") if isinstance(extension, dict) else None
    if not isinstance(host, dict):
        return None
    name = f"{host.get('name')}/{host.get('id')}"
    return name if _HOST.fullmatch(name) else None


_FROZEN_DIGEST = re.compile(r'"(?:sha256|tar)":"([0-9a-f]{64})"')
"""The digest of a staged file or of a workspace's tar, in the JSON of an experiment or a task."""

_TEXTS_PER_BATCH = 100
_ROWS_PER_BATCH = 2_000

_PAYLOADS_SQL = statements.expand(
    "SELECT task_payload.payload_digest, task_payload.body FROM run_task {task_payload} "
    "WHERE run_task.run_no = ?1 AND run_task.task_idx >= ?2 ORDER BY run_task.task_idx"
)
_SCHEDULE_SQL = (
    "SELECT coalesce((SELECT min(first_idx) FROM run_part WHERE run_part.run_no = ?1), "
    "total_slots), genesis_digest FROM schedule WHERE run_no = ?1"
)
"""SQL for the schedule as the run was created."""
_LAST_PART_SQL = "SELECT coalesce(max(part), 1) FROM run_part WHERE run_no = ?"
_ARTIFACT_SQL = f"SELECT {statements.columns('artifact')} FROM artifact WHERE sha256 = ?"  # noqa: S608
_HAS_ARTIFACT_SQL = "SELECT 1 FROM artifact WHERE sha256 = ?"
_PROGRESS_SQL = statements.select("schedule_progress", start=1)
_ADVANCE_SQL = (
    "UPDATE schedule_progress SET next_schedule_idx = next_schedule_idx + 1 WHERE run_no = ?"
)
_UPDATE_PROGRESS = statements.update(
    "schedule_progress",
    "run_no = ?1",
    epoch="max(epoch, ?2) + 1",
    status="?3",
    updated_at="?4",
    ended_at="?5",
    stop_cause="?6",
    stop_message="?7",
)
_STAGED_SQL = "SELECT count(*) FROM staged_result WHERE run_no = ?"
_DELETE_LEASE = "DELETE FROM lease WHERE run_no = ?"


class ImportWriter:
    """Imports runs of a `ImportSource`; a reader never sees the result of an interrupted method."""

    def __init__(self, work: UnitOfWork, store: ArtifactStore) -> None:
        self._work = work
        self._store = store

    def copy_artifacts(self, source: ImportSource, run_id: str, start: int) -> int:
        """Copy the missing artifacts that the run, and its records from slot `start` on, refer to.

        Large artifacts are durable files before the ledger refers to them. Returns the number of
        references whose artifact the source does not have. Raises `LedgerError` if the content of
        one does not match its digest.
        """
        for sha256 in frozen_digests(source, run_id):
            if source.store.contains(sha256):
                self._copy_file(source, sha256)
        batches = referenced_digests(source, run_id, start)
        return sum(self._copy_artifacts(source, digests, run_id) for digests in batches)

    def rebuild_run(self, chain: Path, mirrors: dict[str, Path]) -> str:
        """Create the run of a folder of mirrors in this ledger, which must be empty; return its id.

        This does not verify the run: the caller must. Raises `LedgerError` with file and line.
        """
        with self._work.transaction(f"read {chain.parent}") as connection:
            return mirror_reader.rebuild(connection, chain, mirrors)

    def import_run(
        self, source: ImportSource, run_id: str, is_dead: Callable[[Owner], bool]
    ) -> History:
        """Import the run or its new commits in one transaction; return the comparison before that.

        Writes nothing for a conflict, which the caller handles, or if nothing is new. Raises
        `LeaseHeld` if a coordinator owns the run in this ledger.
        """
        with self._work.transaction(f"import run {run_id}") as connection:
            history = histories.compare(source.connection, connection, run_id)
            theirs = StoredRun.find(source.connection, run_id)
            if history.relation is RunRelation.NEW:
                ours = _create_run(theirs, connection)
            elif history.relation is RunRelation.GROWN:
                ours = StoredRun.find(connection, run_id)
                refuse_if_busy(connection, history, self._work.now(), is_dead)
            else:
                return history
            _copy_parts(theirs, ours)
            for table in SLOT_TABLES:
                _copy_rows(theirs, ours, table, history.committed_in_target)
            journal_hosts(connection, ours.run_no, run_id, history.committed_in_target)
            _write_progress(theirs, ours, history)
            for copy in (run_rows.copy_annotations, copy_requests):
                copy(theirs.connection, theirs.run_no, connection, ours.run_no)
            fault_points.fault_point("inside_import")
            return history

    def _copy_artifacts(self, source: ImportSource, digests: Sequence[str], run_id: str) -> int:
        """Import artifacts in one transaction; return how many the source does not have."""
        artifacts, missing = [], 0
        for sha256 in self._missing(digests):
            key = bytes.fromhex(sha256)
            row = source.connection.execute(_ARTIFACT_SQL, (key,)).first()
            if row is not None and row.content is not None:
                artifacts.append(tuple(row))
            elif source.store.contains(sha256):
                artifacts.append((key, self._copy_file(source, sha256), None))
            else:
                missing += 1
        if artifacts:
            with self._work.transaction(f"import artifacts of run {run_id}") as connection:
                connection.execute(statements.insert("artifact", unless_exists="sha256"), artifacts)
        return missing

    def _missing(self, digests: Sequence[str]) -> list[str]:
        """Return the artifacts that this ledger does not have."""
        with self._work.transaction("search for artifacts") as connection:
            return [
                sha256
                for sha256 in digests
                if connection.execute(_HAS_ARTIFACT_SQL, (bytes.fromhex(sha256),)).first() is None
            ]

    def _copy_file(self, source: ImportSource, sha256: str) -> int:
        """Copy a file of the source's artifact store into this one; return its size."""
        if self._store.keeps(sha256):
            return self._store.path(sha256).stat().st_size
        try:
            copied_digest, size = self._store.put_file(source.store.path(sha256))
        except OSError as error:
            raise LedgerError(
                f"could not copy artifact {sha256} from {source.store.root}: {error.strerror}"
            ) from error
        if copied_digest != sha256:
            raise LedgerError(
                f"artifact {sha256} of {source.store.root} was changed: "
                f"its digest is {copied_digest}; its run was not imported"
            )
        return size


def frozen_digests(source: ImportSource, run_id: str) -> Iterator[str]:
    """Yield the digests of the frozen files and workspaces of a run, with which it is resumed."""
    run_no = run_number(source.connection, run_id)
    texts = run_rows.read_resolved_texts(source.connection, run_no)
    bodies = source.connection.execute(_PAYLOADS_SQL, (run_no, 0))
    for text in (*texts, *(body for _, body in bodies)):
        yield from _FROZEN_DIGEST.findall(text)


def referenced_digests(source: ImportSource, run_id: str, start: int) -> Iterator[list[str]]:
    """Yield, in batches, the digests that a run's records from slot `start` on refer to."""
    run_no = run_number(source.connection, run_id)
    for table in ("evidence_record", "prediction", "score"):
        sql = (
            f"SELECT record FROM {table} WHERE run_no = ? AND schedule_idx >= ? "  # noqa: S608
            "ORDER BY run_no, schedule_idx"
        )
        records = source.connection.execute(sql, (run_no, start)).scalars()
        for batch in batched(records, _TEXTS_PER_BATCH):
            yield sorted({sha256 for record in batch for sha256 in REFERENCE.findall(record)})


def refuse_if_busy(
    connection: Connection, history: History, now: str, is_dead: Callable[[Owner], bool]
) -> None:
    """Raise if new commits must not be imported: this ledger is continuing the run itself.

    The run has a live owner, or staged results that the import would lose.
    """
    run_no = run_number(connection, history.run_id)
    leases.refuse_live_lease(connection, run_no, history.run_id, now, is_dead)
    staged = connection.execute(_STAGED_SQL, (run_no,)).scalar_one()
    if staged:
        raise LedgerError(
            f"run {history.run_id} has grown in the source, and this ledger has {staged} finished "
            "results that are not saved: an import would lose them",
            hint="continue the run in one ledger only; "
            f"`labledger resume {history.run_id}` continues it in this one",
        )


def _create_run(source: StoredRun, target: Connection) -> StoredRun:
    """Create the run with its schedule. `_copy_parts` copies the rows of its parts."""
    run = StoredRun(target, target.execute(run_rows.NEXT_RUN_NO).scalar_one())
    for table, sql in (("run", statements.select("run", start=1)), ("schedule", _SCHEDULE_SQL)):
        run.execute(statements.insert(table), *source.execute(sql).one())
    return run


def _copy_parts(source: StoredRun, target: StoredRun) -> None:
    """Copy the prices, variants, tasks, slots and parts of the schedule that the target lacks."""
    starts = {
        table: target.execute(f"SELECT count(*) FROM {table} WHERE run_no = ?").scalar_one()  # noqa: S608
        for table in PLANNED_TABLES.values()
    }
    insert = statements.insert("task_payload", unless_exists="payload_digest")
    for batch in batched(source.execute(_PAYLOADS_SQL, starts["run_task"]), _TEXTS_PER_BATCH):
        target.connection.execute(insert, list(batch))
    for table, start in starts.items():
        _copy_rows(source, target, table, start)
    _copy_rows(source, target, "run_part", target.execute(_LAST_PART_SQL).scalar_one() + 1)


def _write_progress(source: StoredRun, target: StoredRun, history: History) -> None:
    """Write the run's progress after its rows. A run that existed gets a new epoch.

    The new epoch fences off earlier owners in this ledger.
    """
    committed, epoch, status, updated_at, ended_at, *stop = source.execute(_PROGRESS_SQL).one()
    if status == RunStatus.RUNNING.value:
        is_complete = committed == history.total
        status = (RunStatus.COMPLETED if is_complete else RunStatus.INTERRUPTED).value
    ended_at = ended_at or updated_at
    progress = (status, updated_at, ended_at, *stop)
    if history.relation is RunRelation.NEW:
        target.execute(statements.insert("schedule_progress"), committed, epoch, *progress)
    else:
        steps = [(target.run_no,)] * (committed - history.committed_in_target)
        if steps:
            target.connection.execute(_ADVANCE_SQL, steps)
        total = run_rows.read_total_slots(target.connection, target.run_no)
        if status == RunStatus.COMPLETED.value and committed < total:
            # This ledger has a part that the source does not have.
            progress = (RunStatus.INTERRUPTED.value, *progress[1:])
        target.execute(_UPDATE_PROGRESS, epoch, *progress)
        target.execute(_DELETE_LEASE)
    heads = {read_chain_head(run.connection, run.run_no) for run in (source, target)}
    if len(heads) > 1:
        raise LedgerError(f"run {history.run_id} was not copied completely; nothing was imported")


def _copy_rows(source: StoredRun, target: StoredRun, table: str, start: int) -> None:
    """Copy the rows of `table` from `start` on, a number in the second column of its key."""
    key = KEYS[table]
    sql = f"{statements.select(table, start=1)} AND {key[1]} >= ? ORDER BY {', '.join(key)}"
    insert = statements.insert(table)
    for batch in batched(source.execute(sql, start), _ROWS_PER_BATCH):
        target.connection.execute(insert, [(target.run_no, *row) for row in batch])
