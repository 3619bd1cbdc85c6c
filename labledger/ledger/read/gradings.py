"""Read the gradings of a run, and check regradings against the run that they regrade.

All queries run inside the caller's snapshot. A regrading stores the chain head of its root, so it
belongs to exactly one history of that run. The reader, import and verification use this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import Grading

_GRADINGS_SQL = """
SELECT
  grading.root_id, grading.generation, run.run_id,
  grading.root_id || '.g' || grading.generation AS grading_id,
  coalesce(
    run.resolved ->> '$.regrades.grader_digest',
    (SELECT score.record ->> '$.ext.grader.digest' FROM score
     WHERE score.run_no = run.run_no ORDER BY score.schedule_idx, score.row_seq LIMIT 1)),
  schedule_progress.next_schedule_idx = schedule.total_slots,
  EXISTS (SELECT 1 FROM counted WHERE counted.run_no = run.run_no),
  run.created_at
FROM grading AS given
JOIN grading ON grading.root_id = given.root_id
JOIN run ON run.run_no = grading.run_no
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
WHERE given.run_no = ?
ORDER BY grading.generation"""


def read_gradings(connection: Connection, run_no: int) -> list[Grading]:
    """Return every grading of the run, or of the root of a regrading, the oldest first."""
    rows = connection.exec_driver_sql(_GRADINGS_SQL, (run_no,)).all()
    return [
        Grading(
            root_id, generation, run_id, grading_id, digest, bool(complete), bool(counts), created
        )
        for root_id, generation, run_id, grading_id, digest, complete, counts, created in rows
    ]


class Regrades(NamedTuple):
    """The run that a regrading grades again, as stored in its resolved experiment."""

    root_id: str
    generation: int
    head: str
    """The root's chain head."""


_REGRADES_KEYS = ("run_id", "generation", "head")


def read_regrades(connection: Connection, run_no: int) -> Regrades | None:
    """Return which run a regrading grades again; None for a run whose agents ran."""
    sql = "SELECT resolved FROM run WHERE run_no = ?"
    text = connection.exec_driver_sql(sql, (run_no,)).scalar_one()
    try:
        stored = json.loads(text).get("regrades")
        return None if stored is None else Regrades(*(stored[name] for name in _REGRADES_KEYS))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


_ROOT_SQL = """
SELECT run.run_no, schedule_progress.next_schedule_idx = schedule.total_slots,
  (SELECT chain_digest FROM slot_commit WHERE slot_commit.run_no = run.run_no
   ORDER BY schedule_idx DESC LIMIT 1)
FROM run
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
WHERE run.run_id = ?"""


def root_mismatch(connection: Connection, regraded: Regrades) -> str | None:
    """Return why the root in this ledger is not the run that was regraded; None if it is.

    A root that the ledger does not have is a mismatch.
    """
    root = connection.exec_driver_sql(_ROOT_SQL, (regraded.root_id,)).first()
    if root is None:
        return f"it regrades {regraded.root_id}, which the ledger does not have"
    _, complete, head = root
    if not complete:
        return f"it regrades {regraded.root_id}, which is not complete"
    if head != regraded.head:
        return (
            f"it regrades another history of {regraded.root_id}: "
            f"{regraded.head} was its last digest"
        )
    return None


_ORPHANS_SQL = """
SELECT run.run_id, grading.root_id FROM grading JOIN run ON run.run_no = grading.run_no
WHERE NOT EXISTS (SELECT 1 FROM run AS root WHERE root.run_id = grading.root_id)
ORDER BY run.run_no"""


def find_orphan_regradings(connection: Connection) -> list[tuple[str, str]]:
    """Return regradings whose root the ledger does not have, each with the root's id."""
    return [(row[0], row[1]) for row in connection.exec_driver_sql(_ORPHANS_SQL)]


_GRADING_ROW_SQL = """
SELECT run.run_id, grading.root_id, grading.generation
FROM run LEFT JOIN grading ON grading.run_no = run.run_no WHERE run.run_no = ?"""
_COUNTS_NEWEST_SQL = """
SELECT (SELECT run_no FROM counted WHERE counted.root_no = run.run_no) IS (
  SELECT grading.run_no FROM grading
  JOIN schedule ON schedule.run_no = grading.run_no
  JOIN schedule_progress ON schedule_progress.run_no = grading.run_no
  WHERE grading.root_id = run.run_id AND (grading.run_no = run.run_no
    OR schedule_progress.next_schedule_idx = schedule.total_slots)
  ORDER BY grading.generation DESC LIMIT 1)
FROM run WHERE run.run_no = ?"""
_HAS_COUNTED_SQL = "SELECT 1 FROM counted WHERE root_no = ?"
_PARTS = {
    "variants": f"SELECT {row_sql.columns('run_variant', start=1)} FROM run_variant",  # noqa: S608
    "tasks": f"SELECT {row_sql.columns('run_task', start=1)} FROM run_task",  # noqa: S608
    "slots": f"SELECT {row_sql.columns('slot', start=1)} FROM slot",  # noqa: S608
}


def find_problems(connection: Connection, run_no: int) -> Iterator[str]:
    """Yield problems of a run's rows in `grading` and `counted`, and of the run it regrades."""
    regraded = read_regrades(connection, run_no)
    run_id, *stored = connection.exec_driver_sql(_GRADING_ROW_SQL, (run_no,)).one()
    if stored != ([run_id, 1] if regraded is None else [regraded.root_id, regraded.generation]):
        yield "the run's row of grading does not fit its resolved experiment"
    if regraded is None:
        if not connection.exec_driver_sql(_COUNTS_NEWEST_SQL, (run_no,)).scalar():
            yield "the row of counted, which views use, is not the run's newest complete grading"
        return
    if connection.exec_driver_sql(_HAS_COUNTED_SQL, (run_no,)).first():
        yield "it is a regrading, and has a row of counted as if it were a run of its own"
    root = connection.exec_driver_sql(_ROOT_SQL, (regraded.root_id,)).first()
    if root is None:
        return
    problem = root_mismatch(connection, regraded)
    if problem is not None:
        yield problem
    for part, sql in _PARTS.items():
        own, of_root = f"{sql} WHERE run_no = ?1", f"{sql} WHERE run_no = ?2"
        difference = (
            f"SELECT 1 FROM ({own} EXCEPT {of_root}) "  # noqa: S608
            f"UNION ALL SELECT 1 FROM ({of_root} EXCEPT {own})"
        )
        if connection.exec_driver_sql(difference, (run_no, root[0])).first():
            yield f"its {part} are not those of {regraded.root_id}"
