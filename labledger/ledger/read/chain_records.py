"""Stream a run's chain as records: how the run was created, and the digests of each commit.

Together with a run's mirrors they contain its whole history, so that `exchange.mirror_reader` can
restore the run. Their bytes depend only on how the run was created and on its commits, not on its
owner or progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
JSON_COLUMNS = frozenset({"resolved", "images", "bindings", "payload"})
"""Columns that hold canonical JSON; in a record it appears as a JSON value."""

_RUN_SQL = (
    f"SELECT {row_sql.columns('run', start=1, qualified=True)}, "  # noqa: S608
    f"{row_sql.columns('schedule', start=1, qualified=True)} "
    "FROM run JOIN schedule ON schedule.run_no = run.run_no WHERE run.run_no = ?"
)
_VARIANTS_SQL = f"{row_sql.select('run_variant', start=2)} ORDER BY variant_idx"
_TASKS_SQL = """
SELECT run_task.task_id, run_task.digest, task_payload.body FROM run_task
JOIN task_payload ON task_payload.payload_digest = run_task.payload_digest
WHERE run_task.run_no = ? ORDER BY run_task.task_idx"""
_SLOTS_SQL = f"{row_sql.select('slot', start=1)} ORDER BY schedule_idx"
_COMMITS_SQL = f"{row_sql.select('slot_commit', start=1)} ORDER BY schedule_idx"

_QUERIES = {
    "variant": (VARIANT_COLUMNS, _VARIANTS_SQL),
    "task": (TASK_COLUMNS, _TASKS_SQL),
    "slot": (SLOT_COLUMNS, _SLOTS_SQL),
    "commit": (COMMIT_COLUMNS, _COMMITS_SQL),
}


def stream_records(connection: Connection, run_no: int) -> Iterator[JsonObject]:
    """Yield the run, its variants, tasks, slots and commits, each as a `chain_record_v1`.

    The records do not depend on who owns the run or whether it has ended.
    """
    row = connection.exec_driver_sql(_RUN_SQL, (run_no,)).one()
    yield _record("run", (*statements.RUN_COLUMNS, *SCHEDULE_COLUMNS), row)
    for record_type, (columns, sql) in _QUERIES.items():
        for row in connection.exec_driver_sql(sql, (run_no,)):
            yield _record(record_type, columns, row)


def _record(record_type: str, columns: tuple[str, ...], row: Any) -> JsonObject:
    values = {
        name: json.loads(value) if name in JSON_COLUMNS else value
        for name, value in zip(columns, row, strict=True)
    }
    return {"schema_version": SCHEMA, "type": record_type, **values}
