"""Make the views of one connection show an earlier generation or time, or a single run.

A temporary table `counted` and temporary views hide the ledger's own, for this connection only. The
views must be created again, because the ledger's own views always read the ledger's own `counted`.
For an earlier time, temporary views also hide what was committed later: each run ends at its
*horizon*, the number of slots that it had committed then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from labledger.ledger.database import statements, views_and_triggers
from labledger.ledger.database.connection import Connection
from labledger.ledger.slot_rows import SLOT_TABLES

_CREATE_COUNTED_SQL = """
CREATE TEMP TABLE counted (root_no INTEGER PRIMARY KEY, run_no INTEGER NOT NULL UNIQUE) STRICT"""
_INSERT_NEWEST_SQL = """
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
_INSERT_RUN_SQL = """
INSERT INTO temp.counted
SELECT run.run_no, grading.run_no FROM grading JOIN run ON run.run_id = grading.root_id
WHERE grading.run_no = (SELECT run_no FROM run WHERE run_id = ?)"""

_CREATE_HORIZON_SQL = """
CREATE TEMP TABLE horizon (
  run_no INTEGER PRIMARY KEY, committed INTEGER NOT NULL, scheduled INTEGER NOT NULL,
  moment TEXT) STRICT"""
_INSERT_HORIZON_SQL = """
INSERT INTO temp.horizon
SELECT run.run_no,
  (SELECT count(*) FROM slot_commit
   WHERE slot_commit.run_no = run.run_no AND slot_commit.committed_at <= ?1),
  (SELECT total_slots FROM schedule WHERE schedule.run_no = run.run_no) - (
   SELECT coalesce(sum(slot_count), 0) FROM run_part
   WHERE run_part.run_no = run.run_no AND run_part.created_at > ?1),
  ?1
FROM run WHERE run.created_at <= ?1"""
_INSERT_AS_OF_SQL = """
INSERT INTO temp.counted
SELECT root_no, run_no FROM (
  SELECT root.root_no, grading.run_no, max(grading.generation)
  FROM main.counted AS root
  JOIN run ON run.run_no = root.root_no
  JOIN temp.horizon AS of_root ON of_root.run_no = root.root_no
  JOIN grading ON grading.root_id = run.run_id
  JOIN temp.horizon AS own ON own.run_no = grading.run_no
  WHERE grading.generation = 1 OR (
    own.committed = own.scheduled AND own.scheduled = of_root.scheduled)
  GROUP BY root.root_no)"""

_INSERT_RUN_HORIZON_SQL = """
INSERT INTO temp.horizon
SELECT run.run_no, ?2, schedule.total_slots, NULL
FROM run JOIN schedule ON schedule.run_no = run.run_no WHERE run.run_id = ?1"""

_CONDITIONS = {
    **dict.fromkeys(SLOT_TABLES, "{0}.schedule_idx < horizon.committed"),
    "slot": "slot.schedule_idx < horizon.scheduled",
    "run_variant": """run_variant.variant_idx < coalesce(
  (SELECT count(*) FROM main.run_variant AS each WHERE each.run_no = horizon.run_no)
  - (SELECT sum(part.variant_count) FROM main.run_part AS part
     WHERE part.run_no = horizon.run_no AND part.first_idx >= horizon.scheduled),
  run_variant.variant_idx + 1)""",
    "grading": "TRUE",
    "dispatch": "horizon.moment IS NULL OR dispatch.dispatched_at <= horizon.moment",
    "run_part": "run_part.first_idx < horizon.scheduled",
}
"""Which rows of a table were there; those of `SLOT_TABLES` come with the commit of their slot."""
_EARLIER_ROWS_SQL = """
SELECT {0}.* FROM main.{0} JOIN temp.horizon ON horizon.run_no = {0}.run_no WHERE """
_HIDING_VIEWS = {
    **{
        name: (_EARLIER_ROWS_SQL + condition).format(name)
        for name, condition in _CONDITIONS.items()
    },
    "schedule": """
SELECT schedule.run_no, horizon.scheduled AS total_slots, schedule.genesis_digest
FROM main.schedule JOIN temp.horizon ON horizon.run_no = schedule.run_no""",
    "schedule_progress": """
SELECT progress.run_no, horizon.committed AS next_schedule_idx, progress.epoch, progress.status,
  progress.updated_at, progress.ended_at, progress.stop_cause, progress.stop_message
FROM main.schedule_progress AS progress JOIN temp.horizon ON horizon.run_no = progress.run_no""",
    "slot_outcome": statements.expand("""
SELECT slot_outcome.* FROM main.slot_outcome
JOIN temp.horizon ON horizon.run_no = slot_outcome.run_no
WHERE slot_outcome.schedule_idx < horizon.committed
UNION ALL SELECT
  slot.run_no, slot.variant_idx, slot.task_idx, slot.repl_idx, slot.schedule_idx,
  slot_commit.status, score.verdict,
  {passed slot_commit.status score.verdict trial.agent_exit_status},
  score.primary_metric_name, score.primary_metric_value, trial.duration_ms
FROM main.slot AS newer
JOIN temp.horizon ON horizon.run_no = newer.run_no
JOIN main.slot ON slot.run_no = newer.run_no AND slot.schedule_idx = newer.supersedes
JOIN main.slot_commit
  ON slot_commit.run_no = slot.run_no AND slot_commit.schedule_idx = slot.schedule_idx
LEFT JOIN main.trial
  ON trial.run_no = slot.run_no AND trial.schedule_idx = slot.schedule_idx
LEFT JOIN main.score
  ON score.run_no = slot.run_no AND score.schedule_idx = slot.schedule_idx
  AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'
WHERE newer.supersedes IS NOT NULL AND newer.schedule_idx >= horizon.committed
  AND slot.schedule_idx < horizon.committed AND EXISTS (
    SELECT 1 FROM main.slot_commit AS replacement
    WHERE replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx)"""),
}
"""What hides later rows. A cell whose slot was superseded later has the outcome of that slot."""

_INDEX_HINT = re.compile(r" INDEXED BY \w+")
"""What SQLite refuses where a view takes the place of a table."""

VIEW_NAMES = frozenset(_HIDING_VIEWS)
"""The names of temporary views that read the ledger's own tables of the same name."""


_Statement = tuple[str, tuple[str | int, ...]]
"""A statement and its values."""

_HIDING_STATEMENTS: list[_Statement] = [
    (f"CREATE TEMP VIEW {name} AS {sql.strip()}", ()) for name, sql in _HIDING_VIEWS.items()
]


def select_generation(connection: Connection, generation: int) -> None:
    """Make the views use, for every run, its newest complete grading up to `generation`."""
    _create_views(connection, [(_CREATE_COUNTED_SQL, ()), (_INSERT_NEWEST_SQL, (generation,))])


def select_run(connection: Connection, run_id: str, committed: int | None = None) -> None:
    """Make the views show the rows of this run or regrading only, even if it is not current.

    With `committed` they show its first so many slots as they counted when these were committed.
    """
    statements: list[_Statement] = [(_CREATE_COUNTED_SQL, ()), (_INSERT_RUN_SQL, (run_id,))]
    if committed is not None:
        statements += [(_CREATE_HORIZON_SQL, ()), (_INSERT_RUN_HORIZON_SQL, (run_id, committed))]
        statements += _HIDING_STATEMENTS
    _create_views(connection, statements)


def select_time(connection: Connection, moment: str) -> None:
    """Make the views show what was committed at a time, which is text of `labledger.clock`.

    Status, end and owner of a run, notes and tags are those of today.
    """
    counted = [(_CREATE_COUNTED_SQL, ()), (_INSERT_AS_OF_SQL, ())]
    horizon = [(_CREATE_HORIZON_SQL, ()), (_INSERT_HORIZON_SQL, (moment,))]
    _create_views(connection, [*horizon, *counted, *_HIDING_STATEMENTS])


def _create_views(connection: Connection, statements: Iterable[_Statement]) -> None:
    """Execute the statements, and create the views again over what they created."""
    driver: Any = connection.driver
    for sql, values in statements:
        driver.execute(sql, values)
    for name, view in views_and_triggers.ALL_VIEWS.items():
        driver.execute(f"CREATE TEMP VIEW {name} AS {_INDEX_HINT.sub('', view.sql.strip())}")
