"""Delete whole runs, and leave a tombstone of each: `LedgerWriter.delete_runs`.

All rows of the runs go in one transaction, in which triggers are lifted; nothing shared by runs is
touched, such as artifacts and payloads of tasks. A coordinator that had lost its lease is fenced
off, because its run is not there.
"""

from __future__ import annotations

from dataclasses import astuple

from labledger.ledger.database import row_sql, views_and_triggers
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import COLUMNS
from labledger.ledger.ownership import leases
from labledger.ledger.ownership.leases import IsDead
from labledger.ledger.read import gradings, tombstones
from labledger.ledger.read.lookup import run_number
from labledger.ledger.read.tombstones import Tombstone

_RUN_SQL = """
SELECT run.run_id, run.experiment_id, run.created_at, schedule.genesis_digest,
  (SELECT count(*) FROM slot_commit WHERE slot_commit.run_no = run.run_no) AS committed,
  coalesce(
    (SELECT chain_digest FROM slot_commit WHERE slot_commit.run_no = run.run_no
     ORDER BY schedule_idx DESC LIMIT 1),
    schedule.genesis_digest) AS chain_head
FROM run JOIN schedule ON schedule.run_no = run.run_no WHERE run.run_no = ?"""
_NEXT_DELETION_SQL = "SELECT coalesce(max(deletion_no), 0) + 1 FROM deleted_run"
_INSERT_TOMBSTONE = row_sql.insert("deleted_run")
_TABLES = tuple(reversed([table for table in COLUMNS if "run_no" in COLUMNS[table]]))
"""Every table with rows of a run, those that refer to others first."""


def delete(
    connection: Connection, run_id: str, because: str, now: str, is_dead: IsDead
) -> list[Tombstone]:
    """Delete a run and its regradings in the caller's transaction, and return their tombstones.

    The connection must not check foreign keys. Only rows of a run and its regradings refer to it.
    Raises `LeaseHeld` if a coordinator owns one of them, and as `gradings.with_regradings` does.
    """
    run_ids = gradings.with_regradings(connection, run_id)
    numbers = [run_number(connection, run_id) for run_id in run_ids]
    for run_no, run_id in zip(numbers, run_ids, strict=True):
        leases.refuse_live_lease(connection, run_no, run_id, now, is_dead)
    stones = [_bury(connection, run_no, because, now) for run_no in numbers]
    with views_and_triggers.lifted_triggers(connection):
        for table in _TABLES:
            for run_no in numbers:
                connection.exec_driver_sql(
                    f"DELETE FROM {table} WHERE run_no = ?",  # noqa: S608
                    (run_no,),
                )
    return stones


def _bury(connection: Connection, run_no: int, because: str, now: str) -> Tombstone:
    """Insert the tombstone of a run that is still there."""
    run = connection.exec_driver_sql(_RUN_SQL, (run_no,)).one()._asdict()
    number = connection.exec_driver_sql(_NEXT_DELETION_SQL).scalar_one()
    stone = Tombstone(
        deletion_no=number, former_run_no=run_no, deleted_at=now, because=because, **run
    )
    digest = stone.digest(tombstones.last_digest(connection))
    connection.exec_driver_sql(_INSERT_TOMBSTONE, (*astuple(stone), digest))
    return stone
