"""Count a run's committed attempts that timed out while they were short of processors.

The numbers are in the evidence, `ext.pressure`. Records of attempts without a time-out are read
only if some time-out happened under pressure. `LedgerReader` is the caller.
"""

from __future__ import annotations

import json

from labledger.ledger.database.connection import Connection
from labledger.records.timeouts import TIMEOUTS, TimeoutCounts

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


def timeout_counts(connection: Connection, run_no: int) -> TimeoutCounts | None:
    """Return how many attempts timed out with and without pressure; None if none did with it."""
    if not _counted(connection, _TIMEOUTS_SQL, run_no).short_timed_out:
        return None
    return _counted(connection, _SQL, run_no)


def _counted(connection: Connection, sql: str, run_no: int) -> TimeoutCounts:
    counts = TimeoutCounts()
    for reason, pressure in connection.exec_driver_sql(sql, (run_no,)):
        counts = counts.plus(reason, None if pressure is None else json.loads(pressure))
    return counts
