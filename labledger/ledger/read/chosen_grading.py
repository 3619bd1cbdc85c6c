"""Make the views of one connection show an earlier generation, or one chosen run.

A temporary table `counted` and temporary views shadow the ledger's own, for this connection only.
The views must be created again, because the ledger's own views always read its own `counted`.
`ledger.query` uses this for `--generation` and for comparisons.
"""

from __future__ import annotations

from typing import Any

from labledger.ledger.database import views_and_triggers
from labledger.ledger.database.connection import Connection

_TABLE = """
CREATE TEMP TABLE counted (root_no INTEGER PRIMARY KEY, run_no INTEGER NOT NULL UNIQUE) STRICT"""
_NEWEST = """
INSERT INTO temp.counted
SELECT root_no, run_no FROM (
  SELECT root.root_no, grading.run_no, max(grading.generation)
  FROM main.counted AS root
  JOIN run ON run.run_no = root.root_no
  JOIN grading ON grading.root_id = run.run_id
  JOIN schedule ON schedule.run_no = grading.run_no
  JOIN schedule_progress ON schedule_progress.run_no = grading.run_no
  WHERE grading.generation <= ? AND (
    grading.generation = 1 OR schedule_progress.next_schedule_idx = schedule.total_slots)
  GROUP BY root.root_no)"""
_ONE = """
INSERT INTO temp.counted
SELECT run.run_no, grading.run_no FROM grading JOIN run ON run.run_id = grading.root_id
WHERE grading.run_no = (SELECT run_no FROM run WHERE run_id = ?)"""


def select_generation(connection: Connection, generation: int) -> None:
    """Make the views use, for every run, its newest complete grading up to `generation`."""
    _create_views(connection, _NEWEST, generation)


def select_run(connection: Connection, run_id: str) -> None:
    """Make the views show the rows of this run or regrading only, even if it is not current."""
    _create_views(connection, _ONE, run_id)


def _create_views(connection: Connection, rows: str, value: int | str) -> None:
    driver: Any = connection.driver
    driver.execute(_TABLE)
    driver.execute(rows, (value,))
    for name, view in views_and_triggers.VIEWS.items():
        driver.execute(f"CREATE TEMP VIEW {name} AS {view.sql.strip()}")
