"""Check what was planned: a run's row, variants, tasks and slots, and the parts appended later.

The first part is compared with the genesis digest, each later part with the digest of its own row.
`run_checks` calls this module.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from labledger.ledger.commit_rows import statements
from labledger.ledger.commit_rows.digest_chain import AppendedPart, Genesis, PlannedRows
from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection
from labledger.ledger.verification.slot_checks import Message
from labledger.records import canonical_json

_RUN_SQL = row_sql.select("run", start=1)
_VARIANTS_SQL = f"{row_sql.select('run_variant', start=1)} ORDER BY variant_idx"
_TASKS_SQL = (
    f"SELECT {row_sql.columns('run_task', start=1, qualified=True)}, task_payload.body "  # noqa: S608
    "FROM run_task JOIN task_payload ON task_payload.payload_digest = run_task.payload_digest "
    "WHERE run_task.run_no = ? ORDER BY run_task.task_idx"
)
_SLOTS_SQL = f"{row_sql.select('slot', start=1)} ORDER BY schedule_idx"
_SCHEDULE_SQL = row_sql.select("schedule", start=1)
_PARTS_SQL = f"{row_sql.select('run_part', start=1)} ORDER BY part"
_COUNTS_SQL = (
    "SELECT (SELECT count(*) FROM run_variant WHERE run_no = ?1), "
    "(SELECT count(*) FROM run_task WHERE run_no = ?1), "
    "(SELECT count(*) FROM slot WHERE run_no = ?1)"
)


@dataclass(frozen=True, slots=True)
class _Part:
    """How many rows a part has, in the order of `_COUNTS_SQL`, and their digest."""

    counts: tuple[int, int, int]
    digest: PlannedRows


def check_schedule(connection: Connection, run_no: int) -> Iterator[Message]:
    """Yield the problems of a run's row, variants, tasks with their payloads, slots and parts."""
    row = connection.exec_driver_sql(_RUN_SQL, (run_no,)).one()
    genesis = Genesis(dict(zip(statements.RUN_COLUMNS, row, strict=True)))
    rows = [tuple(row) for row in connection.exec_driver_sql(_PARTS_SQL, (run_no,))]
    appended = [dict(zip(statements.PART_COLUMNS, row, strict=False)) for row in rows]
    total, genesis_digest = connection.exec_driver_sql(_SCHEDULE_SQL, (run_no,)).one()
    counts = connection.exec_driver_sql(_COUNTS_SQL, (run_no,)).one()
    later = [(part["variant_count"], part["task_count"], part["slot_count"]) for part in appended]
    first = tuple(
        count - sum(part[kind] for part in later) for kind, count in enumerate(tuple(counts))
    )
    digests = [AppendedPart() for _ in later]
    parts = [
        _Part((first[0], first[1], first[2]), genesis),
        *(_Part(part, digest) for part, digest in zip(later, digests, strict=True)),
    ]
    is_numbered = yield from _add_rows(connection, run_no, parts)
    if (counts[2], genesis.hexdigest()) != (total, genesis_digest) or not is_numbered:
        yield None, "the run's row, variants, tasks or slots were changed"
    first_idx = first[2]
    for number, (part_row, digest, stored) in enumerate(
        zip(appended, digests, rows, strict=True), 2
    ):
        is_in_place = (part_row["part"], part_row["first_idx"]) == (number, first_idx)
        if not is_in_place or digest.hexdigest(part_row) != stored[-1]:
            yield None, f"part {number} of the run, or its variants, tasks or slots, were changed"
        first_idx += part_row["slot_count"]


def _add_rows(
    connection: Connection, run_no: int, parts: list[_Part]
) -> Generator[Message, None, bool]:
    """Add each row to the digest of its part. Yield changed payloads.

    Returns whether variants, tasks and slots are each numbered from 0 without a gap.
    """
    is_numbered = True
    for number, part, (idx, *variant) in _of_parts(connection, _VARIANTS_SQL, run_no, parts, 0):
        part.digest.add_variant(*variant)
        is_numbered &= idx == number
    for number, part, (idx, task_id, digest, payload_digest, body) in _of_parts(
        connection, _TASKS_SQL, run_no, parts, 1
    ):
        part.digest.add_task(task_id, digest, payload_digest)
        is_numbered &= idx == number
        if canonical_json.sha256_hex(body.encode()) != payload_digest:
            yield None, f"the payload of task {task_id} was changed"
    for number, part, (idx, *cell) in _of_parts(connection, _SLOTS_SQL, run_no, parts, 2):
        part.digest.add_slot(*cell)
        is_numbered &= idx == number
    return is_numbered


def _of_parts(
    connection: Connection, sql: str, run_no: int, parts: list[_Part], kind: int
) -> Iterator[tuple[int, _Part, Any]]:
    """Yield the rows of a query, each with its number, from 0, and its part.

    Rows beyond those that the parts have are given to the last part.
    """
    rows = enumerate(connection.exec_driver_sql(sql, (run_no,)))
    for part in parts:
        for number, row in islice(rows, max(0, part.counts[kind])):
            yield number, part, row
    for number, row in rows:
        yield number, parts[-1], row
