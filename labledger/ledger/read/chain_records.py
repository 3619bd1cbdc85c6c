"""Stream a run's chain as records: its creation, and the digests of each commit.

Together with the mirrors of the other records they contain the whole history of a run, so that
`rebuilding` can restore it. Their bytes depend on the commits only, not on owner or progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from labledger.ledger.commit import statements
from labledger.ledger.database.connection import Connection
from labledger.records import JsonObject

SCHEMA = "chain_record_v1"

COMMIT_COLUMNS = (
    "schedule_idx",
    "slot_commit_id",
    "status",
    "reason",
    "epoch",
    "committed_at",
    "payload_digest",
    "chain_digest",
)
VARIANT_COLUMNS = ("variant_id", "role", "bindings")
TASK_COLUMNS = ("task_id", "digest", "payload")
SLOT_COLUMNS = ("schedule_idx", "variant_idx", "task_idx", "repl_idx")
SCHEDULE_COLUMNS = ("total_slots", "genesis_digest")
JSON_COLUMNS = frozenset({"resolved", "images", "bindings", "payload"})
"""Columns that hold canonical JSON; in a record it appears as a JSON value."""

_RUN_SQL = (
    f"SELECT {', '.join(f'run.{name}' for name in statements.RUN_COLUMNS)}, "  # noqa: S608
    "schedule.total_slots, schedule.genesis_digest "
    "FROM run JOIN schedule ON schedule.run_no = run.run_no WHERE run.run_no = ?"
)
_VARIANTS_SQL = """
SELECT variant_id, role, bindings FROM run_variant WHERE run_no = ? ORDER BY variant_idx"""
_TASKS_SQL = """
SELECT run_task.task_id, run_task.digest, task_payload.body FROM run_task
JOIN task_payload ON task_payload.payload_digest = run_task.payload_digest
WHERE run_task.run_no = ? ORDER BY run_task.task_idx"""
_SLOTS_SQL = f"""
SELECT {", ".join(SLOT_COLUMNS)} FROM slot WHERE run_no = ? ORDER BY schedule_idx"""  # noqa: S608
_COMMITS_SQL = f"""
SELECT {", ".join(COMMIT_COLUMNS)} FROM slot_commit WHERE run_no = ?
ORDER BY schedule_idx"""  # noqa: S608

_SQL = {
    "variant": (VARIANT_COLUMNS, _VARIANTS_SQL),
    "task": (TASK_COLUMNS, _TASKS_SQL),
    "slot": (SLOT_COLUMNS, _SLOTS_SQL),
    "commit": (COMMIT_COLUMNS, _COMMITS_SQL),
}


def records(connection: Connection, run_no: int) -> Iterator[JsonObject]:
    """Yield the run, its variants, tasks, slots and commits, each as a `chain_record_v1`.

    The records depend on the commits only, not on who owns the run or whether it has ended.
    """
    row = connection.exec_driver_sql(_RUN_SQL, (run_no,)).one()
    yield _record("run", (*statements.RUN_COLUMNS, *SCHEDULE_COLUMNS), row)
    for kind, (columns, sql) in _SQL.items():
        for row in connection.exec_driver_sql(sql, (run_no,)):
            yield _record(kind, columns, row)


def _record(kind: str, columns: tuple[str, ...], row: Any) -> JsonObject:
    values = {
        name: json.loads(value) if name in JSON_COLUMNS else value
        for name, value in zip(columns, row, strict=True)
    }
    return {"schema_version": SCHEMA, "type": kind, **values}
