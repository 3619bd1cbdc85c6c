"""Stream a run's chain as records: how the run was created and grew, and its commits' digests.

Together with a run's mirrors they contain its whole history, so that `exchange.mirror_reader` can
restore the run. Their bytes depend only on how the run was created and on its commits, not on its
owner or progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from labledger.ledger.commit_rows import statements
from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import COLUMNS
from labledger.records import JsonObject

SCHEMA = "chain_record_v1"

COMMIT_COLUMNS = COLUMNS["slot_commit"][1:]
VARIANT_COLUMNS = COLUMNS["run_variant"][2:]
TASK_COLUMNS = ("task_id", "digest", "payload")
SLOT_COLUMNS = COLUMNS["slot"][1:]
SCHEDULE_COLUMNS = COLUMNS["schedule"][1:]
PART_COLUMNS = COLUMNS["run_part"][1:]
_WITHOUT_NULLS = frozenset({"part", "slot"})
"""Types of records that leave out what is null, such as `supersedes` of most slots."""
JSON_COLUMNS = frozenset({"resolved", "images", "bindings", "payload", "selection"})
"""Columns that hold canonical JSON; in a record it appears as a JSON value."""

_RUN_SQL = (
    f"SELECT {row_sql.columns('run', start=1, qualified=True)}, "  # noqa: S608
    f"{row_sql.columns('schedule', start=1, qualified=True)} "
    "FROM run JOIN schedule ON schedule.run_no = run.run_no WHERE run.run_no = ?"
)
_TASKS_SQL = """
SELECT run_task.task_id, run_task.digest, task_payload.body FROM run_task
JOIN task_payload ON task_payload.payload_digest = run_task.payload_digest
WHERE run_task.run_no = ? ORDER BY run_task.task_idx"""
_PLANNED = {
    "variant": (VARIANT_COLUMNS, f"{row_sql.select('run_variant', start=2)} ORDER BY variant_idx"),
    "task": (TASK_COLUMNS, _TASKS_SQL),
    "slot": (SLOT_COLUMNS, f"{row_sql.select('slot', start=1)} ORDER BY schedule_idx"),
}
"""Columns and query of what a part of the schedule has, by the type of its records."""
_COUNTS_SQL = (
    "SELECT (SELECT count(*) FROM run_variant WHERE run_no = ?1), "
    "(SELECT count(*) FROM run_task WHERE run_no = ?1), "
    "(SELECT count(*) FROM slot WHERE run_no = ?1)"
)
_PARTS_SQL = f"{row_sql.select('run_part', start=1)} ORDER BY part"
_COMMITS_SQL = f"{row_sql.select('slot_commit', start=1)} ORDER BY schedule_idx"


def stream_records(connection: Connection, run_no: int) -> Iterator[JsonObject]:
    """Yield the run, its variants, tasks, slots and commits, each as a `chain_record_v1`.

    Before the commits, each part that was appended follows with its variants, tasks and slots. The
    records do not depend on who owns the run or whether it has ended.
    """
    parts = [
        _record("part", PART_COLUMNS, row)
        for row in connection.exec_driver_sql(_PARTS_SQL, (run_no,))
    ]
    run = _record(
        "run",
        (*statements.RUN_COLUMNS, *SCHEDULE_COLUMNS),
        connection.exec_driver_sql(_RUN_SQL, (run_no,)).one(),
    )
    # As the run was created: appending a part changes none of the records before it.
    run["total_slots"] -= sum(part["slot_count"] for part in parts)
    yield run
    rows = {
        kind: iter(connection.exec_driver_sql(sql, (run_no,)))
        for kind, (_, sql) in _PLANNED.items()
    }
    counts = connection.exec_driver_sql(_COUNTS_SQL, (run_no,)).one()
    later = {kind: sum(part[f"{kind}_count"] for part in parts) for kind in _PLANNED}
    first = {kind: count - later[kind] for kind, count in zip(_PLANNED, counts, strict=True)}
    yield from _planned_records(rows, first)
    for part in parts:
        yield part
        yield from _planned_records(rows, {kind: part[f"{kind}_count"] for kind in _PLANNED})
    for row in connection.exec_driver_sql(_COMMITS_SQL, (run_no,)):
        yield _record("commit", COMMIT_COLUMNS, row)


def _planned_records(
    rows: Mapping[str, Iterator[Any]], counts: Mapping[str, int]
) -> Iterator[JsonObject]:
    """Yield the next records of each type, as many as `counts` says."""
    for record_type, (columns, _) in _PLANNED.items():
        for row in islice(rows[record_type], counts[record_type]):
            yield _record(record_type, columns, row)


def _record(record_type: str, columns: tuple[str, ...], row: Any) -> JsonObject:
    values = {
        name: json.loads(value) if name in JSON_COLUMNS and value is not None else value
        for name, value in zip(columns, row, strict=True)
        if value is not None or record_type not in _WITHOUT_NULLS
    }
    return {"schema_version": SCHEMA, "type": record_type, **values}
