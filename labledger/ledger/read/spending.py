"""What the trials of a run spent, as far as their metrics say it, which 0 or more does.

What they do not say is unknown, and never taken for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import SPENT_METRICS, Spent
from labledger.records.attempt_result import AttemptResult
from labledger.records.outcomes import NOT_STARTED

OPTIONS = {"cost_usd": "--budget-usd", "tokens": "--budget-tokens"}
"""The option that limits each kind."""
UNITS = {"cost_usd": "USD", "tokens": "tokens"}

_NEVER_BEGAN = ", ".join(f"'{reason}'" for reason in sorted(NOT_STARTED))
_RAN_SQL = f"""
SELECT count(*) FROM attempt
WHERE run_no = ? AND (reason IS NULL OR reason NOT IN ({_NEVER_BEGAN}))"""  # noqa: S608


def _committed_sql(metric_ids: Iterable[str]) -> str:
    """The sum of some metrics, and how many slots have one of them.

    Each id is a literal, so that SQLite can use the partial index of the usual metrics.
    """
    found = (
        "SELECT schedule_idx, value FROM metric "  # noqa: S608
        f"WHERE run_no = ?1 AND metric_id = '{metric_id}' "
        "AND typeof(value) IN ('integer', 'real') AND value >= 0"
        for metric_id in metric_ids
    )
    return f"SELECT total(value), count(DISTINCT schedule_idx) FROM ({' UNION ALL '.join(found)})"  # noqa: S608


_COMMITTED_SQL = {kind: _committed_sql(metric_ids) for kind, metric_ids in SPENT_METRICS.items()}
_STAGED_SQL = "SELECT payload FROM staged_result WHERE run_no = ? AND final ORDER BY schedule_idx"


def committed(connection: Connection, run_no: int) -> dict[str, Spent]:
    """What the committed trials of a run spent, by kind. Of earlier attempts it is not known."""
    ran = connection.exec_driver_sql(_RAN_SQL, (run_no,)).scalar_one()
    found = {}
    for kind, sql in _COMMITTED_SQL.items():
        total, known = connection.exec_driver_sql(sql, (run_no,)).one()
        found[kind] = Spent(total, known, ran - known)
    return found


def so_far(connection: Connection, run_no: int) -> dict[str, Spent]:
    """The same, with the trials that are finished and wait for their commits."""
    found = committed(connection, run_no)
    for payload in connection.exec_driver_sql(_STAGED_SQL, (run_no,)).scalars():
        for kind, amount in amounts(AttemptResult.from_json(json.loads(payload))).items():
            found[kind] = found[kind].plus(amount)
    return found


def amounts(result: AttemptResult) -> dict[str, float | None]:
    """What an attempt spent of each kind: None where it does not say it, nothing if none ran."""
    if result.reason in NOT_STARTED:
        return {}
    known = {
        metric.metric_id: metric.value
        for metric in result.metrics
        if isinstance(metric.value, int | float) and metric.value >= 0
    }
    found: dict[str, float | None] = {}
    for kind, metric_ids in SPENT_METRICS.items():
        said = [known[metric_id] for metric_id in metric_ids if metric_id in known]
        found[kind] = sum(said) if said else None
    return found


def used_up(limits: Mapping[str, float], spent: Mapping[str, Spent]) -> tuple[str, ...]:
    """The kinds of which as much is spent as may be."""
    return tuple(kind for kind, limit in limits.items() if spent[kind].total >= limit)
