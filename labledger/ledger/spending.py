"""What the attempts of a run spent, and how many timed out while they were short of processors.

Spending is the sum of metrics of cost and tokens that are 0 or more. An attempt without such a
metric spent an unknown amount: it is counted as unknown, never as 0. Pressure is in the evidence
(`ext.pressure`); records of attempts without a time-out are read only if some time-out happened
under pressure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import SPENT_METRICS, Spent
from labledger.records.attempt_result import AttemptResult
from labledger.records.outcomes import NOT_STARTED
from labledger.records.resource_pressure import TIMEOUTS, TimeoutCounts

UNITS = {"cost_usd": "USD", "tokens": "tokens"}

_NOT_STARTED_LIST = ", ".join(f"'{reason}'" for reason in sorted(NOT_STARTED))
_STARTED_ATTEMPTS_SQL = f"""
SELECT count(*) FROM attempt
WHERE run_no = ? AND (reason IS NULL OR reason NOT IN ({_NOT_STARTED_LIST}))"""  # noqa: S608


def _committed_sql(metric_ids: Iterable[str]) -> str:
    """Return the SQL of the sum of some metrics, and of how many slots have one of them.

    Each id is a literal, so that SQLite can use the partial index of the usual metrics.
    """
    selects = (
        "SELECT schedule_idx, value FROM metric "  # noqa: S608
        f"WHERE run_no = ?1 AND metric_id = '{metric_id}' "
        "AND typeof(value) IN ('integer', 'real') AND value >= 0"
        for metric_id in metric_ids
    )
    return f"SELECT total(value), count(DISTINCT schedule_idx) FROM ({' UNION ALL '.join(selects)})"  # noqa: S608


_COMMITTED_SQL = {kind: _committed_sql(metric_ids) for kind, metric_ids in SPENT_METRICS.items()}
_STAGED_SQL = "SELECT payload FROM staged_result WHERE run_no = ? ORDER BY schedule_idx, attempt"


def read_committed_spending(connection: Connection, run_no: int) -> dict[str, Spent]:
    """Return what the attempts of a run's committed slots spent, by kind.

    Attempts that were never started are not counted. Of each slot, only the last attempt has
    metrics; what earlier ones spent is unknown.
    """
    started_attempts = connection.execute(_STARTED_ATTEMPTS_SQL, (run_no,)).scalar_one()
    spent = {}
    for kind, sql in _COMMITTED_SQL.items():
        total, known = connection.execute(sql, (run_no,)).one()
        spent[kind] = Spent(total, known, started_attempts - known)
    return spent


def read_spending_so_far(connection: Connection, run_no: int) -> dict[str, Spent]:
    """Return what `read_committed_spending` does, plus the spending of staged attempts."""
    spent = read_committed_spending(connection, run_no)
    for payload in connection.execute(_STAGED_SQL, (run_no,)).scalars():
        for kind, amount in attempt_spending(AttemptResult.from_json(json.loads(payload))).items():
            spent[kind] = spent[kind].plus(amount)
    return spent


def attempt_spending(result: AttemptResult) -> dict[str, float | None]:
    """Return what an attempt spent, by kind: None if unknown. Empty if it was never started."""
    if result.reason in NOT_STARTED:
        return {}
    known = {
        metric.metric_id: metric.value
        for metric in result.metrics
        if isinstance(metric.value, int | float) and metric.value >= 0
    }
    spent: dict[str, float | None] = {}
    for kind, metric_ids in SPENT_METRICS.items():
        values = [known[metric_id] for metric_id in metric_ids if metric_id in known]
        spent[kind] = sum(values) if values else None
    return spent


def exhausted_kinds(limits: Mapping[str, float], spent: Mapping[str, Spent]) -> tuple[str, ...]:
    """Return the kinds of spending that have reached their limit."""
    return tuple(kind for kind, limit in limits.items() if spent[kind].total >= limit)


_SQL = """
SELECT attempt.reason, evidence_record.record -> '$.ext.pressure'
FROM attempt
JOIN evidence_record
  ON evidence_record.run_no = attempt.run_no
  AND evidence_record.schedule_idx = attempt.schedule_idx
  AND evidence_record.attempt = attempt.attempt
WHERE attempt.run_no = ?"""
_TIMEOUTS_SQL = (
    f"{_SQL} AND attempt.reason IN ({', '.join(repr(str(r)) for r in sorted(TIMEOUTS))})"
)


def count_timeouts(connection: Connection, run_no: int) -> TimeoutCounts | None:
    """Return how many attempts timed out with and without pressure; None if none did with it."""
    if not _counted(connection, _TIMEOUTS_SQL, run_no).short_timed_out:
        return None
    return _counted(connection, _SQL, run_no)


def _counted(connection: Connection, sql: str, run_no: int) -> TimeoutCounts:
    counts = TimeoutCounts()
    for reason, pressure in connection.execute(sql, (run_no,)):
        counts = counts.plus(reason, None if pressure is None else json.loads(pressure))
    return counts
