"""Find the recorded calls of the trials of a run, which another run may replay.

They are those of the attempt that was committed for a cell, and the newest if it was run again. All
queries run inside the caller's snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator

from labledger.ledger.database.connection import Connection
from labledger.records.identity import Slot

_RECORDS = """
FROM slot_outcome
JOIN run_variant ON run_variant.run_no = slot_outcome.run_no
  AND run_variant.variant_idx = slot_outcome.variant_idx
JOIN run_task ON run_task.run_no = slot_outcome.run_no
  AND run_task.task_idx = slot_outcome.task_idx
JOIN trial ON trial.run_no = slot_outcome.run_no
  AND trial.schedule_idx = slot_outcome.schedule_idx
JOIN evidence_record ON evidence_record.run_no = trial.run_no
  AND evidence_record.schedule_idx = trial.schedule_idx
  AND evidence_record.attempt = trial.attempt
WHERE slot_outcome.run_no = ?
  AND evidence_record.record ->> '$.evidence.model_record' IS NOT NULL"""
_CELLS_SQL = f"SELECT variant_id, task_id, repl_idx {_RECORDS}"
_OF_CELL_SQL = f"""
SELECT evidence_record.record ->> '$.evidence.model_record' {_RECORDS}
  AND run_variant.variant_id = ? AND run_task.task_id = ? AND slot_outcome.repl_idx = ?"""


def read_slots_with_model_record(
    connection: Connection, run_no: int
) -> Iterator[tuple[str, str, int]]:
    """Yield variant, task and replication of each cell of a run whose calls were recorded."""
    yield from map(tuple, connection.execute(_CELLS_SQL, (run_no,)))


def read_model_record(connection: Connection, run_no: int, slot: Slot) -> str | None:
    """Return the reference to the recorded calls of the cell of a slot; None if it has none."""
    cell = (run_no, slot.variant_id, slot.task_id, slot.repl_idx)
    reference: str | None = connection.execute(_OF_CELL_SQL, cell).scalar()
    return reference
