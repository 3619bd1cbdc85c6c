"""What the ledger keeps twice, so that queries are fast, against what was committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from labledger.ledger.commit import rows
from labledger.ledger.database.connection import Connection
from labledger.records import JsonObject
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
  WHERE slot_commit.run_no = ?1
),
kept AS (
  SELECT variant_idx, task_idx, repl_idx, schedule_idx, status, verdict, passed, metric_name,
    metric_value, duration_ms
  FROM slot_outcome WHERE run_no = ?1
)
SELECT DISTINCT schedule_idx FROM (
  SELECT * FROM (SELECT * FROM expected EXCEPT SELECT * FROM kept)
  UNION ALL
  SELECT * FROM (SELECT * FROM kept EXCEPT SELECT * FROM expected)
) ORDER BY 1"""  # noqa: S608


class _Repeated(NamedTuple):
    """A table whose rows repeat parts of their `record` in columns."""

    table: str
    row: type[rows.PredictionRow | rows.ScoreRow | rows.EvidenceRow]
    make: Callable[[int, int, int, str, JsonObject], tuple[Any, ...]]
    key: int
    """How many leading columns number the rows from 0 anew."""

    def agrees(self, row: tuple[Any, ...], seq: int, text: str) -> bool:
        try:
            return self.make(row[0], row[1], seq, text, json.loads(text)) == row
        except (ValueError, KeyError, TypeError):
            return False


_REPEATED = (
    _Repeated("prediction", rows.PredictionRow, rows.prediction_row, 2),
    _Repeated("score", rows.ScoreRow, rows.score_row, 2),
    _Repeated("evidence_record", rows.EvidenceRow, rows.evidence_row, 3),
)


def outcome_problems(connection: Connection, run_no: int) -> Iterator[tuple[int, str]]:
    """Find the slots whose row of `slot_outcome` is not what their commit makes of it."""
    for (idx,) in connection.exec_driver_sql(_OUTCOMES_SQL, (run_no,)):
        yield idx, "the slot's row of slot_outcome, which views count by, does not fit its commit"


def records_problems(driver: Any, run_no: int, start: int, stop: int) -> Iterator[tuple[int, str]]:
    """Find the slots, of a range, whose columns do not repeat what their records say."""
    for check in _REPEATED:
        yield from _columns(driver, run_no, start, stop, check)


def _columns(
    driver: Any, run_no: int, start: int, stop: int, check: _Repeated
) -> Iterator[tuple[int, str]]:
    columns = check.row._fields
    sql = (
        f"SELECT {', '.join(columns)} FROM {check.table} "  # noqa: S608
        "WHERE run_no = ? AND schedule_idx >= ? AND schedule_idx < ? "
        f"ORDER BY {', '.join(columns[: check.key + 1])}"
    )
    found = driver.execute(sql, (run_no, start, stop))
    for key, group in groupby(found, key=lambda row: row[: check.key]):
        for seq, row in enumerate(group):
            if not check.agrees(row, seq, row[-1]):
                yield key[1], f"the columns of a row of {check.table} do not fit its record"
