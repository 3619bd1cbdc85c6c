"""Count a run's committed slots per variant, and average their primary metrics.

All queries run inside the caller's snapshot. Statuses, verdicts and passes are counted in
`outcome`, as in the views; scheduled slots, consecutive failures and primary metrics come from
other tables. A cell whose slot was run again is scheduled once. `LedgerReader` is the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import PrimaryMetric, VariantCounts
from labledger.ledger.read.runs import read_variants
from labledger.records.outcomes import NEVER_RUN, SlotStatus, Verdict
from labledger.records.pass_rate import PassCounts

_SCHEDULED_SQL = """
SELECT variant_idx, count(*) FROM slot WHERE run_no = ? AND supersedes IS NULL
GROUP BY variant_idx"""


def _filtered_counts(column: str, words: Iterable[str]) -> str:
    """Return SQL that counts, for each of `words`, the rows whose `column` is that word."""
    return ", ".join(f"count(*) FILTER (WHERE {column} = '{word}')" for word in words)


_NEVER_RUN = ", ".join(map(repr, NEVER_RUN))
_STATUSES, _VERDICTS = [*map(str, SlotStatus)], [*map(str, Verdict)]
# What other slots show is looked up for those alone whose own trial leaves it open.
# FILTER counts in one pass in key order; GROUP BY status and verdict would sort every slot.
_COUNTS_SQL = f"""
SELECT variant_idx, count(*), count(*) FILTER (WHERE passed_alone = 1),
  count(*) FILTER (WHERE passed_alone = 0),
  count(*) FILTER (WHERE passed_alone IS NULL AND passed = 0),
  count(*) FILTER (WHERE passed_alone IS NULL AND status NOT IN ({_NEVER_RUN})),
  {_filtered_counts("status", _STATUSES)}, {_filtered_counts("verdict", _VERDICTS)}
FROM outcome
WHERE run_no = ? {{condition}}
GROUP BY variant_idx"""  # noqa: S608
_NOT_RUN_AGAIN = """AND NOT EXISTS (
  SELECT 1 FROM slot AS newer
  WHERE newer.run_no = outcome.run_no AND newer.supersedes = outcome.schedule_idx)"""
_CONSECUTIVE_FAILURES_SQL = """
WITH committed AS (
  SELECT slot.variant_idx, slot.schedule_idx, slot_commit.status
  FROM slot_commit
  JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
  WHERE slot_commit.run_no = ?1 AND NOT EXISTS (
    SELECT 1 FROM slot AS newer
    WHERE newer.run_no = slot.run_no AND newer.supersedes = slot.schedule_idx)
),
last_completed AS (
  SELECT variant_idx, max(schedule_idx) AS schedule_idx FROM committed
  WHERE status = 'completed' GROUP BY variant_idx
)
SELECT run_variant.variant_id, count(committed.status)
FROM run_variant
LEFT JOIN last_completed ON last_completed.variant_idx = run_variant.variant_idx
LEFT JOIN committed
  ON committed.variant_idx = run_variant.variant_idx
  AND committed.status NOT IN ('completed', 'skipped_pruned')
  AND committed.schedule_idx > coalesce(last_completed.schedule_idx, -1)
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
WHERE score.run_no = ? AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'
  AND NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = slot.run_no AND newer.supersedes = slot.schedule_idx)"""


def variant_counts(
    connection: Connection, run_no: int, *, without_pending: bool = False
) -> list[VariantCounts]:
    """Return the counts of each variant, in the order of the experiment.

    With `without_pending`, slots that are about to be superseded are not counted as committed.
    """
    scheduled = dict(map(tuple, connection.exec_driver_sql(_SCHEDULED_SQL, (run_no,))))
    counts_by_idx = [
        VariantCounts(variant.variant_id, scheduled.get(idx, 0))
        for idx, variant in enumerate(read_variants(connection, run_no))
    ]
    sql = _COUNTS_SQL.format(condition=_NOT_RUN_AGAIN if without_pending else "")
    rows = connection.exec_driver_sql(sql, (run_no,))
    for idx, committed, passed, failed_alone, broken, unknown_alone, *word_counts in rows:
        counts_by_idx[idx] = replace(
            counts_by_idx[idx],
            committed=committed,
            statuses=_without_zeros(_STATUSES, word_counts[: len(_STATUSES)]),
            verdicts=_without_zeros(_VERDICTS, word_counts[len(_STATUSES) :]),
            passes=PassCounts(passed, failed_alone + broken, broken, unknown_alone - broken),
        )
    return counts_by_idx


def _without_zeros(words: Iterable[str], counts: Iterable[int]) -> dict[str, int]:
    return {word: count for word, count in zip(words, counts, strict=True) if count}


def consecutive_failures(connection: Connection, run_no: int) -> dict[str, int]:
    """Return how many slots of each variant were committed since its last `completed` one.

    Pruned slots are not counted: they did not fail, and do not end a series of failures. Neither
    are slots that a rerun supersedes, committed or not: it gives the variant another chance.
    """
    rows = connection.exec_driver_sql(_CONSECUTIVE_FAILURES_SQL, (run_no,)).all()
    return dict(map(tuple, rows))


def primary_metrics(connection: Connection, run_no: int) -> dict[str, PrimaryMetric]:
    """Return the mean primary metric of each variant whose scored slots all have the same one.

    Scores of slots with the status `grade_error` are not counted. The sum is exact (`math.fsum`),
    so that the mean does not depend on the order.
    """
    values_by_variant: dict[str, dict[str, list[float]]] = {}
    for variant_id, name, value in connection.exec_driver_sql(_METRICS_SQL, (run_no,)):
        values_by_variant.setdefault(variant_id, {}).setdefault(name, []).append(value)
    return {
        variant_id: PrimaryMetric(name, math.fsum(values) / len(values))
        for variant_id, values_by_name in values_by_variant.items()
        if len(values_by_name) == 1
        for name, values in values_by_name.items()
    }
