"""What the trials of a run spent, as far as their metrics say it, which 0 or more does.

What they do not say is unknown, and never taken for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from labledger.ledger.connection import Connection
from labledger.ledger.model import SPENT_METRICS, Spent
from labledger.records import NOT_STARTED, TrialResult

OPTIONS = {"cost_usd": "--budget-usd", "tokens": "--budget-tokens"}
"""The option that limits each kind."""
UNITS = {"cost_usd": "USD", "tokens": "tokens"}

_RAN_SQL = """
SELECT count(*) FROM attempt
WHERE run_no = ? AND coalesce(reason, '') NOT IN (SELECT value FROM json_each(?))"""
_COMMITTED_SQL = """
SELECT total(value), count(DISTINCT schedule_idx) FROM metric
WHERE run_no = ? AND metric_id IN (SELECT value FROM json_each(?))
  AND typeof(value) IN ('integer', 'real') AND value >= 0"""
_STAGED_SQL = "SELECT payload FROM staged_result WHERE run_no = ? AND final ORDER BY schedule_idx"


def committed(connection: Connection, run_no: int) -> dict[str, Spent]:
    """What the committed trials of a run spent, by kind. Of earlier attempts it is not known."""
    ran = connection.exec_driver_sql(_RAN_SQL, (run_no, json.dumps([*NOT_STARTED]))).scalar_one()
    found = {}
    for kind, metric_ids in SPENT_METRICS.items():
        total, known = connection.exec_driver_sql(
            _COMMITTED_SQL, (run_no, json.dumps(metric_ids))
        ).one()
        found[kind] = Spent(total, known, ran - known)
    return found


def so_far(connection: Connection, run_no: int) -> dict[str, Spent]:
    """The same, with the trials that are finished and wait for their commits."""
    found = committed(connection, run_no)
    for payload in connection.exec_driver_sql(_STAGED_SQL, (run_no,)).scalars():
        for kind, amount in amounts(TrialResult.from_json(json.loads(payload))).items():
            found[kind] = found[kind].plus(amount)
    return found


def amounts(result: TrialResult) -> dict[str, float | None]:
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
