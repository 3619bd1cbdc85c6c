"""Remove runs from a ledger, and contents without references.

One transaction deletes all rows, without triggers, and leaves a tombstone for each run. Artifacts
and payloads of tasks are deleted only without references. Any text of a run that looks like a
digest is a reference. The caller must keep other processes from using the artifact store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from labledger.errors import LedgerError
from labledger.ledger.database import statements, views_and_triggers
from labledger.ledger.database.connection import Connection, batched
from labledger.ledger.database.table_rows import COLUMNS
from labledger.ledger.reading import stored_runs
from labledger.ledger.rows import leases, tombstones
from labledger.ledger.rows.leases import IsDead
from labledger.ledger.rows.lookup import run_number
from labledger.ledger.rows.tombstones import Tombstone

_RUN_SQL = statements.expand("""
SELECT run.run_id, run.experiment_id, run.created_at, schedule.genesis_digest,
  (SELECT count(*) FROM slot_commit WHERE slot_commit.run_no = run.run_no) AS committed,
  {chain_head} AS chain_head
FROM run JOIN schedule ON schedule.run_no = run.run_no WHERE run.run_no = ?""")
_NEXT_DELETION_SQL = "SELECT coalesce(max(deletion_no), 0) + 1 FROM deleted_run"
_INSERT_TOMBSTONE = statements.insert("deleted_run")
_UNFINISHED_REPLAYS_SQL = """
SELECT run.run_id FROM run JOIN schedule_progress ON schedule_progress.run_no = run.run_no
WHERE run.resolved ->> '$.replays.run_id' = ? AND schedule_progress.status <> 'completed'
ORDER BY run.run_no"""
_TABLES = tuple(reversed([table for table in COLUMNS if "run_no" in COLUMNS[table]]))
"""Every table with rows of a run. Tables that refer to others come first."""


def delete(
    connection: Connection, run_id: str, because: str, now: str, is_dead: IsDead
) -> list[Tombstone]:
    """Delete a run and its regradings in the caller's transaction, and return their tombstones.

    The connection must not check foreign keys. Only rows of a run and its regradings refer to the
    run. Raises `LeaseHeld` if a coordinator owns one of them, `LedgerError` if an incomplete run
    replays one of them, and the errors of `stored_runs.with_regradings`.
    """
    run_ids = stored_runs.with_regradings(connection, run_id)
    for deleted_id in run_ids:
        _refuse_unfinished_replays(connection, deleted_id)
    numbers = [run_number(connection, deleted_id) for deleted_id in run_ids]
    for run_no, deleted_id in zip(numbers, run_ids, strict=True):
        leases.refuse_live_lease(connection, run_no, deleted_id, now, is_dead)
    stones = [_bury(connection, run_no, because, now) for run_no in numbers]
    with views_and_triggers.lifted_triggers(connection):
        for table in _TABLES:
            for run_no in numbers:
                connection.execute(
                    f"DELETE FROM {table} WHERE run_no = ?",  # noqa: S608
                    (run_no,),
                )
    return stones


def _refuse_unfinished_replays(connection: Connection, run_id: str) -> None:
    replays = [name for (name,) in connection.execute(_UNFINISHED_REPLAYS_SQL, (run_id,))]
    if replays:
        raise LedgerError(
            f"run {run_id} is replayed by {', '.join(replays)}, which needs its recorded calls",
            hint=f"`labledger resume {replays[0]}` completes it; or delete that first",
        )


def _bury(connection: Connection, run_no: int, because: str, now: str) -> Tombstone:
    """Insert the tombstone of a run that still exists."""
    run = connection.execute(_RUN_SQL, (run_no,)).one()._asdict()
    number = connection.execute(_NEXT_DELETION_SQL).scalar_one()
    stone = Tombstone(
        deletion_no=number, former_run_no=run_no, deleted_at=now, because=because, **run
    )
    digest = stone.digest(tombstones.last_digest(connection))
    connection.execute(_INSERT_TOMBSTONE, (*astuple(stone), digest))
    return stone


DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Matches a text that may be the digest of an artifact."""

_TEXTS_PER_BATCH = 500
_TEXTS_SQL = (
    "SELECT resolved FROM run",
    "SELECT resolved FROM run_part WHERE resolved IS NOT NULL",
    "SELECT body FROM task_payload WHERE payload_digest IN (SELECT payload_digest FROM run_task)",
    "SELECT record FROM evidence_record",
    "SELECT record FROM prediction",
    "SELECT record FROM score",
    "SELECT payload FROM staged_result",
)
"""Every text of a run that may refer to an artifact."""

_CREATE_NAMED = "CREATE TEMP TABLE named (sha256 BLOB PRIMARY KEY) WITHOUT ROWID"
_UNNAMED_ARTIFACTS = "FROM artifact WHERE sha256 NOT IN (SELECT sha256 FROM named)"
_UNNAMED_PAYLOADS = (
    "FROM task_payload WHERE payload_digest NOT IN (SELECT payload_digest FROM run_task)"
)


@dataclass(frozen=True, slots=True)
class UnnamedRows:
    """Contents in the ledger that nothing refers to. Artifacts in files are not counted."""

    artifacts: int
    payloads: int
    size: int
    """The size of both together, in bytes."""


def collect_named(connection: Connection, also_named: Iterable[str]) -> None:
    """Store the digest of every reference. `also_named` are texts outside the ledger."""
    connection.execute("DROP TABLE IF EXISTS temp.named")
    connection.execute(_CREATE_NAMED)
    for sql in _TEXTS_SQL:
        _add(connection, connection.execute(sql).scalars())
    _add(connection, also_named)


def _add(connection: Connection, texts: Iterable[str]) -> None:
    for batch in batched(texts, _TEXTS_PER_BATCH):
        digests = {sha256 for text in batch for sha256 in DIGEST.findall(text)}
        rows = [(bytes.fromhex(sha256),) for sha256 in sorted(digests)]
        if rows:
            connection.execute("INSERT OR IGNORE INTO named (sha256) VALUES (?)", rows)


def is_named(connection: Connection, sha256: str) -> bool:
    """Return whether something refers to an artifact (64 hex digits), after `collect_named`."""
    sql = "SELECT 1 FROM named WHERE sha256 = ?"
    return connection.execute(sql, (bytes.fromhex(sha256),)).first() is not None


def count_rows(connection: Connection) -> UnnamedRows:
    """Count the contents without references, after `collect_named`."""
    artifacts, artifact_size = connection.execute(
        f"SELECT count(content), coalesce(sum(length(content)), 0) {_UNNAMED_ARTIFACTS}"
    ).one()
    payloads, payload_size = connection.execute(
        "SELECT count(*), coalesce(sum(length(CAST(body AS BLOB))), 0) " + _UNNAMED_PAYLOADS
    ).one()
    return UnnamedRows(artifacts, payloads, artifact_size + payload_size)


def delete_rows(connection: Connection) -> None:
    """Delete the rows without references, after `collect_named` in the same transaction.

    The connection must not check foreign keys: SQLite would read all tasks for each payload.
    """
    with views_and_triggers.lifted_triggers(connection):
        connection.execute(f"DELETE {_UNNAMED_ARTIFACTS}")
        connection.execute(f"DELETE {_UNNAMED_PAYLOADS}")
