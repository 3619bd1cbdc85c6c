"""Write a new run into the ledger: its row, variants, tasks, slots and budget.

Tasks and slots are streamed: their rows are never all in memory. The writer calls these
functions inside its transactions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from labledger.errors import LedgerError, RunExists
from labledger.ledger.commit_rows import notes_and_tags, statements
from labledger.ledger.commit_rows.digest_chain import Genesis
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import NewRun
from labledger.records import JsonObject, canonical_json
from labledger.records.identity import Slot
from labledger.records.outcomes import RunStatus
from labledger.storage.batches import batched

TaskRow = tuple[str, str, JsonObject]
"""Task id, digest, and the frozen task row."""

_BATCH = 5_000


def register(
    connection: Connection,
    run: NewRun,
    tasks: Iterable[TaskRow],
    slots: Iterable[Slot],
    now: str,
) -> None:
    """Insert a run with its tasks and slots, inside the caller's transaction.

    `now` becomes its time of creation. Raises `RunExists`, and `LedgerError` for slots that are not
    numbered from 0 in order, or that name no task or variant of the run.
    """
    if connection.exec_driver_sql("SELECT 1 FROM run WHERE run_id = ?", (run.run_id,)).first():
        raise RunExists(
            f"the ledger holds a run {run.run_id} already",
            hint=f"`labledger resume {run.run_id}` continues it; --run-id names another",
        )
    run_no = connection.exec_driver_sql("SELECT coalesce(max(run_no), 0) + 1 FROM run").scalar_one()
    row = {name: _as_text(getattr(run, name, now)) for name in statements.RUN_COLUMNS}
    connection.exec_driver_sql(statements.INSERT_RUN, (run_no, *row.values()))
    genesis = Genesis(row)
    variants = _insert_variants(connection, run_no, run, genesis)
    task_idx_by_id = _insert_tasks(connection, run_no, tasks, genesis)
    total = _insert_slots(connection, run_no, slots, variants, task_idx_by_id, genesis)
    connection.exec_driver_sql(statements.INSERT_SCHEDULE, (run_no, total, genesis.hexdigest()))
    progress = (run_no, 0, 0, RunStatus.INTERRUPTED.value, now, None, None, None)
    connection.exec_driver_sql(statements.INSERT_PROGRESS, progress)
    write_budget(connection, run_no, run.budget)
    notes_and_tags.add_tags(connection, run_no, run.tags, now)


def _as_text(value: str | JsonObject) -> str:
    return value if isinstance(value, str) else canonical_json.dumps(value)


def _insert_variants(
    connection: Connection, run_no: int, run: NewRun, genesis: Genesis
) -> dict[str, int]:
    for idx, variant in enumerate(run.variants):
        bindings = canonical_json.dumps(variant.bindings)
        genesis.add_variant(variant.variant_id, variant.role, bindings)
        connection.exec_driver_sql(
            statements.INSERT_VARIANT, (run_no, idx, variant.variant_id, variant.role, bindings)
        )
    return {variant.variant_id: idx for idx, variant in enumerate(run.variants)}


def _insert_tasks(
    connection: Connection, run_no: int, tasks: Iterable[TaskRow], genesis: Genesis
) -> dict[str, int]:
    idx_by_task_id: dict[str, int] = {}
    for batch in batched(tasks, 500):
        payloads: list[tuple[str, str]] = []
        rows: list[tuple[int, int, str, str, str]] = []
        for task_id, digest, payload in batch:
            body = canonical_json.dumps(payload)
            payload_digest = canonical_json.sha256_hex(body.encode())
            genesis.add_task(task_id, digest, payload_digest)
            payloads.append((payload_digest, body))
            rows.append((run_no, len(idx_by_task_id), task_id, digest, payload_digest))
            idx_by_task_id[task_id] = len(idx_by_task_id)
        connection.exec_driver_sql(statements.INSERT_PAYLOAD, payloads)
        connection.exec_driver_sql(statements.INSERT_TASK, rows)
    return idx_by_task_id


def _insert_slots(
    connection: Connection,
    run_no: int,
    slots: Iterable[Slot],
    variants: dict[str, int],
    tasks: dict[str, int],
    genesis: Genesis,
) -> int:
    total = 0
    for batch in batched(slots, _BATCH):
        rows: list[tuple[int, int, int, int, int]] = []
        for slot in batch:
            variant_idx = variants.get(slot.variant_id)
            task_idx = tasks.get(slot.task_id)
            if slot.schedule_idx != total or variant_idx is None or task_idx is None:
                raise LedgerError(f"slot {total} of the schedule cannot be stored: it is {slot}")
            genesis.add_slot(variant_idx, task_idx, slot.repl_idx)
            rows.append((run_no, total, variant_idx, task_idx, slot.repl_idx))
            total += 1
        connection.exec_driver_sql(statements.INSERT_SLOT, rows)
    return total


def write_budget(connection: Connection, run_no: int, limits: Mapping[str, float]) -> None:
    """Replace a run's limits of these kinds, in the caller's transaction. Infinity removes one."""
    for kind, limit in limits.items():
        if math.isinf(limit):
            connection.exec_driver_sql(statements.DELETE_BUDGET, (run_no, kind))
        else:
            connection.exec_driver_sql(statements.UPSERT_BUDGET, (run_no, kind, float(limit)))
