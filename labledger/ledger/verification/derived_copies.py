"""Check copies of values, which the ledger stores for fast queries, against what was committed.

`slot_outcome` repeats parts of commits, trials and scores; columns of predictions, scores and
evidence repeat parts of their records. `run_checks` and `slot_checks` use this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from labledger.ledger.commit_rows.slot_rows import TEXT_TABLES, RowOfRecord
from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import KEYS
from labledger.records.pass_rate import PASSED_SQL

_PASSED = PASSED_SQL.format(
    status="slot_commit.status",
    verdict="score.verdict",
    agent_exit_status="trial.agent_exit_status",
)
_OUTCOMES_SQL = f"""
WITH expected AS (
  SELECT slot.variant_idx, slot.task_idx, slot.repl_idx, slot.schedule_idx, slot_commit.status,
    score.verdict, {_PASSED} AS passed,
    score.primary_metric_name, score.primary_metric_value, trial.duration_ms
  FROM slot_commit
  JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
  LEFT JOIN trial
    ON trial.run_no = slot_commit.run_no AND trial.schedule_idx = slot_commit.schedule_idx
  LEFT JOIN score
    ON score.run_no = slot_commit.run_no AND score.schedule_idx = slot_commit.schedule_idx
    AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'
  WHERE slot_commit.run_no = ?1 AND NOT EXISTS (
    SELECT 1 FROM slot AS later
    JOIN slot_commit AS later_commit
      ON later_commit.run_no = later.run_no AND later_commit.schedule_idx = later.schedule_idx
    WHERE later.run_no = slot.run_no AND later.variant_idx = slot.variant_idx
      AND later.task_idx = slot.task_idx AND later.repl_idx = slot.repl_idx
      AND later.schedule_idx > slot.schedule_idx)
),
stored AS (
  SELECT {row_sql.columns("slot_outcome", start=1)} FROM slot_outcome WHERE run_no = ?1
)
SELECT DISTINCT schedule_idx FROM (
  SELECT * FROM (SELECT * FROM expected EXCEPT SELECT * FROM stored)
  UNION ALL
  SELECT * FROM (SELECT * FROM stored EXCEPT SELECT * FROM expected)
) ORDER BY 1"""  # noqa: S608


def find_wrong_outcomes(connection: Connection, run_no: int) -> Iterator[tuple[int, str]]:
    """Yield the slots whose row of `slot_outcome` does not follow from their commit.

    A cell has the row of its newest committed slot.
    """
    for (idx,) in connection.exec_driver_sql(_OUTCOMES_SQL, (run_no,)):
        yield idx, "the slot's row of slot_outcome, which views count by, does not fit its commit"


def find_wrong_columns(
    driver: Any, run_no: int, start: int, stop: int
) -> Iterator[tuple[int, str]]:
    """Yield the slots of a range with columns that differ from their records."""
    for table, row_of_record in TEXT_TABLES.values():
        key = KEYS[table]
        sql = (
            f"{row_sql.select(table)} AND schedule_idx >= ? AND schedule_idx < ? "
            f"ORDER BY {', '.join(key)}"
        )
        stored_rows = driver.execute(sql, (run_no, start, stop))
        # `row_seq`, the last column of the key, counts from 0 within the others.
        for _, group in groupby(stored_rows, key=itemgetter(slice(len(key) - 1))):
            for seq, row in enumerate(group):
                if not _repeats_record(row, seq, row_of_record):
                    yield row[1], f"the columns of a row of {table} do not fit its record"


def _repeats_record(row: tuple[Any, ...], seq: int, row_of_record: RowOfRecord) -> bool:
    text = row[-1]
    try:
        return row_of_record(row[0], row[1], seq, text, json.loads(text)) == row
    except (ValueError, KeyError, TypeError):
        return False
