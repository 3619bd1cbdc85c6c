"""Read which slots of a run were run again, by what reruns, and which wait for their replacement.

A slot is superseded once the slot that names it in `supersedes` is committed; until then it counts.
All queries run inside the caller's snapshot. `LedgerReader` is the caller.
"""

from __future__ import annotations

import json

from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import Rerun

_RERUNS_SQL = """
SELECT run_part.part, run_part.created_at, run_part.slot_count,
  (SELECT count(*) FROM slot_commit
   WHERE slot_commit.run_no = run_part.run_no AND slot_commit.schedule_idx >= run_part.first_idx
     AND slot_commit.schedule_idx < run_part.first_idx + run_part.slot_count),
  (SELECT json_group_object(status, slots) FROM (
     SELECT slot_commit.status, count(*) AS slots FROM slot
     JOIN slot_commit
       ON slot_commit.run_no = slot.run_no AND slot_commit.schedule_idx = slot.supersedes
     WHERE slot.run_no = run_part.run_no AND slot.schedule_idx >= run_part.first_idx
       AND slot.schedule_idx < run_part.first_idx + run_part.slot_count
     GROUP BY slot_commit.status ORDER BY slot_commit.status)),
  run_part.because, run_part.selection
FROM run_part
WHERE run_part.run_no = ? AND run_part.kind = 'rerun' AND run_part.first_idx < coalesce(?,
  run_part.first_idx + 1)
ORDER BY run_part.part"""
_PENDING_SQL = """
SELECT slot.supersedes FROM slot
WHERE slot.run_no = ? AND slot.supersedes IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM slot_commit
  WHERE slot_commit.run_no = slot.run_no AND slot_commit.schedule_idx = slot.schedule_idx)"""
_REPLACEMENT_SQL = "SELECT schedule_idx FROM slot WHERE run_no = ? AND supersedes = ?"


def read_reruns(connection: Connection, run_no: int, slots: int | None = None) -> list[Rerun]:
    """Return the reruns of a run, the oldest first: all, or those among its first `slots` slots."""
    reruns = []
    rows = connection.exec_driver_sql(_RERUNS_SQL, (run_no, slots))
    for part, created_at, slots, committed, superseded, because, selection in rows:
        chosen = {} if selection is None else json.loads(selection)
        despite_verdict = chosen.get("despite_verdict") is True
        statuses = json.loads(superseded)
        reruns.append(Rerun(part, created_at, slots, committed, statuses, despite_verdict, because))
    return reruns


def pending_slots(connection: Connection, run_no: int) -> set[int]:
    """Return the slots of a run whose replacement is scheduled and not committed yet."""
    return set(connection.exec_driver_sql(_PENDING_SQL, (run_no,)).scalars())


def replacement(connection: Connection, run_no: int, schedule_idx: int) -> int | None:
    """Return the slot that supersedes another one, committed or not; None if none does."""
    idx = connection.exec_driver_sql(_REPLACEMENT_SQL, (run_no, schedule_idx)).scalar()
    return None if idx is None else int(idx)
