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
from labledger.ledger.database.table_rows import COLUMNS, KEYS
from labledger.records.pass_rate import PASSED_SQL

_PASSED = PASSED_SQL.format(
    status="slot_commit.status",
    verdict="score.verdict",
    agent_exit_status="trial.agent_exit_status",
)
_VALUES = [name for name in COLUMNS["slot_outcome"] if name not in KEYS["slot_outcome"]]
_OUTCOMES_SQL = f"""
WITH committed AS (
  SELECT slot.run_no, slot.variant_idx, slot.task_idx, slot.repl_idx, slot.schedule_idx,
    slot_commit.status, score.verdict, {_PASSED} AS passed,
    score.primary_metric_name AS metric_name, score.primary_metric_value AS metric_value,
    trial.duration_ms
  FROM slot_commit
  JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
  LEFT JOIN trial
    ON trial.run_no = slot_commit.run_no AND trial.schedule_idx = slot_commit.schedule_idx
  LEFT JOIN score
    ON score.run_no = slot_commit.run_no AND score.schedule_idx = slot_commit.schedule_idx
    AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'
  WHERE slot_commit.run_no = ?1
)
SELECT committed.schedule_idx, stored.schedule_idx
FROM committed LEFT JOIN slot_outcome AS stored
  ON stored.run_no = committed.run_no AND stored.variant_idx = committed.variant_idx
  AND stored.task_idx = committed.task_idx AND stored.repl_idx = committed.repl_idx
WHERE stored.schedule_idx IS NULL OR stored.schedule_idx < committed.schedule_idx
  OR (stored.schedule_idx = committed.schedule_idx
    AND ({", ".join(f"stored.{name}" for name in _VALUES)})
      IS NOT ({", ".join(f"committed.{name}" for name in _VALUES)}))
UNION ALL
SELECT NULL, stored.schedule_idx FROM slot_outcome AS stored
WHERE stored.run_no = ?1 AND NOT EXISTS (
  SELECT 1 FROM committed WHERE committed.schedule_idx = stored.schedule_idx
    AND committed.variant_idx = stored.variant_idx AND committed.task_idx = stored.task_idx
    AND committed.repl_idx = stored.repl_idx)"""  # noqa: S608
"""The slots whose cell has no row, an older one or one with other values, and the slots of rows
that are not those of a committed slot of their cell.

Each row is found by its primary key. To search for later slots of a cell takes time that grows with
the square of the run, because SQLite, which has no statistics here, searches all later slots."""


def find_wrong_outcomes(connection: Connection, run_no: int) -> Iterator[tuple[int, str]]:
    """Yield the slots whose row of `slot_outcome` does not follow from their commit.

    A cell has the row of its newest committed slot.
    """
    rows = connection.exec_driver_sql(_OUTCOMES_SQL, (run_no,))
    for idx in sorted({idx for row in rows for idx in row if idx is not None}):
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
