"""Count a run's committed slots per variant, and average their primary metrics.

All queries run inside the caller's snapshot. Counts are taken from `slot_outcome`, as the views
do. `LedgerReader` is the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import PrimaryMetric, VariantCounts
from labledger.ledger.read.runs import variants
from labledger.records.outcomes import SlotStatus, Verdict
from labledger.records.pass_rate import PassCounts

_SCHEDULED_SQL = "SELECT variant_idx, count(*) FROM slot WHERE run_no = ? GROUP BY variant_idx"


def _filtered(column: str, words: Iterable[str]) -> str:
    return ", ".join(f"count(*) FILTER (WHERE {column} = '{word}')" for word in words)


_STATUSES, _VERDICTS = [*map(str, SlotStatus)], [*map(str, Verdict)]
# FILTER counts in one pass along the key; GROUP BY status and verdict would sort every slot.
_COUNTS_SQL = f"""
SELECT variant_idx, count(*), total(passed = 1), total(passed = 0),
  {_filtered("status", _STATUSES)}, {_filtered("verdict", _VERDICTS)}
FROM slot_outcome
WHERE run_no = ?
GROUP BY variant_idx"""  # noqa: S608
_FAILURES_SQL = """
WITH committed AS (
  SELECT slot.variant_idx, slot.schedule_idx, slot_commit.status
  FROM slot_commit
  JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
  WHERE slot_commit.run_no = ?1
),
done AS (
  SELECT variant_idx, max(schedule_idx) AS last FROM committed
  WHERE status = 'completed' GROUP BY variant_idx
)
SELECT run_variant.variant_id, count(committed.status)
FROM run_variant
LEFT JOIN done ON done.variant_idx = run_variant.variant_idx
LEFT JOIN committed
  ON committed.variant_idx = run_variant.variant_idx
  AND committed.status NOT IN ('completed', 'skipped_pruned')
  AND committed.schedule_idx > coalesce(done.last, -1)
WHERE run_variant.run_no = ?1
GROUP BY run_variant.variant_idx"""
_METRICS_SQL = """
SELECT run_variant.variant_id, score.primary_metric_name, score.primary_metric_value
FROM score
JOIN slot_commit
  ON slot_commit.run_no = score.run_no AND slot_commit.schedule_idx = score.schedule_idx
JOIN slot ON slot.run_no = score.run_no AND slot.schedule_idx = score.schedule_idx
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
WHERE score.run_no = ? AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'"""


def variant_counts(connection: Connection, run_no: int) -> list[VariantCounts]:
    """Return the counts of each variant, in the order of the experiment."""
    scheduled = dict(map(tuple, connection.exec_driver_sql(_SCHEDULED_SQL, (run_no,))))
    counts_by_idx = [
        VariantCounts(variant.variant_id, scheduled.get(idx, 0))
        for idx, variant in enumerate(variants(connection, run_no))
    ]
    for idx, committed, passed, not_passed, *numbers in connection.exec_driver_sql(
        _COUNTS_SQL, (run_no,)
    ):
        counts_by_idx[idx] = replace(
            counts_by_idx[idx],
            committed=committed,
            statuses=_without_zeros(_STATUSES, numbers[: len(_STATUSES)]),
            verdicts=_without_zeros(_VERDICTS, numbers[len(_STATUSES) :]),
            passes=PassCounts(int(passed), int(not_passed)),
        )
    return counts_by_idx


def _without_zeros(words: Iterable[str], numbers: Iterable[int]) -> dict[str, int]:
    return {word: number for word, number in zip(words, numbers, strict=True) if number}


def consecutive_failures(connection: Connection, run_no: int) -> dict[str, int]:
    """Return each variant's committed slots since its last `completed` one, without pruned ones."""
    rows = connection.exec_driver_sql(_FAILURES_SQL, (run_no,)).all()
    return dict(map(tuple, rows))


def primary_metrics(connection: Connection, run_no: int) -> dict[str, PrimaryMetric]:
    """Return the mean primary metric of each variant whose scored slots all have the same one.

    The sum is exact (`math.fsum`), so that the mean does not depend on the order.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for variant_id, name, value in connection.exec_driver_sql(_METRICS_SQL, (run_no,)):
        values.setdefault(variant_id, {}).setdefault(name, []).append(value)
    return {
        variant_id: PrimaryMetric(name, math.fsum(numbers) / len(numbers))
        for variant_id, named in values.items()
        if len(named) == 1
        for name, numbers in named.items()
    }
