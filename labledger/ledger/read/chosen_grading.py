"""Make the views of one connection show an earlier generation of gradings, or a single run.

A temporary table `counted` and temporary views hide the ledger's own, for this connection only. The
views must be created again, because the ledger's own views always read the ledger's own `counted`.
`ledger.query` uses this module for `--generation` and for `query_run`.
"""

from __future__ import annotations

from typing import Any

from labledger.ledger.database import views_and_triggers
from labledger.ledger.database.connection import Connection

_CREATE_COUNTED_SQL = """
CREATE TEMP TABLE counted (root_no INTEGER PRIMARY KEY, run_no INTEGER NOT NULL UNIQUE) STRICT"""
_INSERT_NEWEST_SQL = """
INSERT INTO temp.counted
SELECT root_no, run_no FROM (
  SELECT root.root_no, grading.run_no, max(grading.generation)
  FROM main.counted AS root
  JOIN run ON run.run_no = root.root_no
  JOIN grading ON grading.root_id = run.run_id
  JOIN schedule ON schedule.run_no = root.root_no
  JOIN schedule_progress ON schedule_progress.run_no = grading.run_no
  WHERE grading.generation <= ? AND (
    grading.generation = 1 OR schedule_progress.next_schedule_idx = schedule.total_slots)
  GROUP BY root.root_no)"""
_INSERT_RUN_SQL = """
INSERT INTO temp.counted
SELECT run.run_no, grading.run_no FROM grading JOIN run ON run.run_id = grading.root_id
WHERE grading.run_no = (SELECT run_no FROM run WHERE run_id = ?)"""


def select_generation(connection: Connection, generation: int) -> None:
    """Make the views use, for every run, its newest complete grading up to `generation`."""
    _create_views(connection, _INSERT_NEWEST_SQL, generation)


def select_run(connection: Connection, run_id: str) -> None:
    """Make the views show the rows of this run or regrading only, even if it is not current."""
    _create_views(connection, _INSERT_RUN_SQL, run_id)


def _create_views(connection: Connection, insert_sql: str, value: int | str) -> None:
    driver: Any = connection.driver
    driver.execute(_CREATE_COUNTED_SQL)
    driver.execute(insert_sql, (value,))
    for name, view in views_and_triggers.VIEWS.items():
        driver.execute(f"CREATE TEMP VIEW {name} AS {view.sql.strip()}")
