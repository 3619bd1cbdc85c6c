"""Read runs as `RunInfo`, and the counts of their variants.

All queries run inside the caller's snapshot. The experiment of a run that was extended is that of
its newest part which extends it. Statuses, verdicts and passes are counted in `outcome`, as in the
views; scheduled slots, consecutive failures and primary metrics come from other tables. A cell
whose slot was run again is scheduled once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import (
    ExperimentRevision,
    LeaseInfo,
    LostHost,
    Owner,
    PrimaryMetric,
    RunInfo,
    RunPart,
    Stop,
    TakeoverRequest,
    Variant,
    VariantCounts,
)
from labledger.records.outcomes import NEVER_RUN, RunStatus, SlotStatus, Verdict
from labledger.records.pass_rate import PassCounts

_RUN_SQL = statements.expand("""
SELECT run.run_no, run.run_id, run.experiment_id, run.name, run.created_at,
  {newest resolved run resolved} AS resolved_text,
  {newest authored run authored} AS authored,
  {newest run_digest run digest} AS digest,
  {newest source_path run source_path} AS source_path,
  {newest images run images} AS images,
  run.labledger_version, schedule.total_slots, schedule.genesis_digest,
  progress.next_schedule_idx, progress.epoch, progress.status, progress.updated_at,
  progress.ended_at, progress.stop_cause, progress.stop_message,
  lease.epoch AS lease_epoch, lease.host AS owner_host, lease.pid AS owner_pid,
  lease.process_token AS owner_token, lease.acquired_at, lease.renewed_at,
  lease.expires_at AS lease_expires_at,
  claim.host AS claim_host, claim.pid AS claim_pid, claim.process_token AS claim_token,
  claim.claimed_at, claim.expires_at AS claim_expires_at,
  (SELECT json_group_object(kind, amount) FROM budget WHERE budget.run_no = run.run_no) AS budget,
  (SELECT json_group_array(tag) FROM
    (SELECT tag FROM run_tag WHERE run_tag.run_no = run.run_no ORDER BY tag)) AS tags,
  (SELECT json_group_object(name, value) FROM run_setting
   WHERE run_setting.run_no = run.run_no) AS settings
FROM run
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress AS progress ON progress.run_no = run.run_no
LEFT JOIN lease ON lease.run_no = run.run_no
LEFT JOIN claim ON claim.run_no = run.run_no
""")
"""Each column has the name of the field of `RunInfo` that it is; the others make `_run_info`."""


def read_runs(connection: Connection) -> list[RunInfo]:
    """Return every run, the newest first."""
    rows = connection.execute(f"{_RUN_SQL} ORDER BY run.run_no DESC").all()
    return [_run_info(connection, row) for row in rows]


def read_run(connection: Connection, run_no: int) -> RunInfo:
    """Return the run with the number `run_no`."""
    result = connection.execute(f"{_RUN_SQL} WHERE run.run_no = ?", (run_no,))
    return _run_info(connection, result.one())


def read_variants(connection: Connection, run_no: int) -> tuple[Variant, ...]:
    """Return the variants of a run, in the order of the experiment."""
    rows = connection.execute(
        "SELECT variant_id, role, bindings FROM run_variant WHERE run_no = ? ORDER BY variant_idx",
        (run_no,),
    ).all()
    return tuple(Variant(name, role, json.loads(bindings)) for name, role, bindings in rows)


_PART_COLUMNS = (
    *("part", "kind", "first_idx", "slot_count"),
    *("because", "selection", "created_at", "digest"),
)
_PARTS_SQL = f"SELECT {', '.join(_PART_COLUMNS)} FROM run_part WHERE run_no = ? ORDER BY part"  # noqa: S608
_REVISIONS_SQL = """
SELECT 1, resolved, authored, digest, source_path, images FROM run WHERE run_no = ?1
UNION ALL SELECT part, resolved, authored, run_digest, source_path, images FROM run_part
WHERE run_no = ?1 AND kind = 'extended' ORDER BY 1"""


def read_parts(connection: Connection, run_no: int) -> tuple[RunPart, ...]:
    """Return the parts of a run's schedule after the first, in order."""
    parts = []
    for row in connection.execute(_PARTS_SQL, (run_no,)):
        part, kind, first_idx, slot_count, because, selection, created_at, digest = row
        chosen = None if selection is None else json.loads(selection)
        parts.append(
            RunPart(part, kind, first_idx, slot_count, because, chosen, created_at, digest)
        )
    return tuple(parts)


def read_revisions(connection: Connection, run_no: int) -> dict[int, ExperimentRevision]:
    """Return each revision of a run's experiment by the part that brought it, from part 1."""
    return {
        part: ExperimentRevision(
            json.loads(resolved), authored, digest, source_path, json.loads(images)
        )
        for part, resolved, authored, digest, source_path, images in connection.execute(
            _REVISIONS_SQL, (run_no,)
        )
    }


def read_lost_hosts(connection: Connection, run_no: int) -> tuple[LostHost, ...]:
    """Return the hosts that were declared lost for a run, by name."""
    rows = connection.execute(
        "SELECT host, declared_at, because FROM host_fence WHERE run_no = ? ORDER BY host",
        (run_no,),
    ).all()
    return tuple(LostHost(*row) for row in rows)


def _run_info(connection: Connection, row: Any) -> RunInfo:
    stored = row._asdict()
    stop = lease = request = None
    if row.stop_cause is not None:
        stop = Stop(row.stop_cause, row.stop_message or "")
    if row.lease_epoch is not None:
        owner = Owner(row.owner_host, row.owner_pid, row.owner_token)
        times = (row.acquired_at, row.renewed_at, row.lease_expires_at)
        lease = LeaseInfo(row.run_id, row.lease_epoch, owner, *times)
    if row.claimed_at is not None:
        owner = Owner(row.claim_host, row.claim_pid, row.claim_token)
        request = TakeoverRequest(owner, row.claimed_at, row.claim_expires_at)
    values: dict[str, Any] = {
        **{each.name: stored[each.name] for each in fields(RunInfo) if each.name in stored},
        **{name: json.loads(stored[name]) for name in ("images", "budget", "settings")},
        "tags": tuple(json.loads(row.tags)),
        "status": RunStatus(row.status),
        "variants": read_variants(connection, row.run_no),
        "parts": read_parts(connection, row.run_no),
        "lost_hosts": read_lost_hosts(connection, row.run_no),
    }
    return RunInfo(**values, stop=stop, lease=lease, takeover_request=request)


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
_NOT_RUN_AGAIN = statements.expand("AND {not_run_again outcome}")
_CONSECUTIVE_FAILURES_SQL = statements.expand("""
WITH committed AS (
  SELECT slot.variant_idx, slot.schedule_idx, slot_commit.status
  FROM slot_commit
  JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
  WHERE slot_commit.run_no = ?1 AND {not_run_again slot}
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
GROUP BY run_variant.variant_idx""")
_METRICS_SQL = statements.expand("""
SELECT run_variant.variant_id, score.primary_metric_name, score.primary_metric_value
FROM score
JOIN slot_commit
  ON slot_commit.run_no = score.run_no AND slot_commit.schedule_idx = score.schedule_idx
JOIN slot ON slot.run_no = score.run_no AND slot.schedule_idx = score.schedule_idx
{slot_variant}
WHERE score.run_no = ? AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'
  AND {not_superseded slot}""")


def count_slots(
    connection: Connection, run_no: int, *, without_pending: bool = False
) -> list[VariantCounts]:
    """Return the counts of each variant, in the order of the experiment.

    With `without_pending`, slots that are about to be superseded are not counted as committed.
    """
    scheduled = dict(map(tuple, connection.execute(_SCHEDULED_SQL, (run_no,))))
    counts_by_idx = [
        VariantCounts(variant.variant_id, scheduled.get(idx, 0))
        for idx, variant in enumerate(read_variants(connection, run_no))
    ]
    sql = _COUNTS_SQL.format(condition=_NOT_RUN_AGAIN if without_pending else "")
    rows = connection.execute(sql, (run_no,))
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


def count_consecutive_failures(connection: Connection, run_no: int) -> dict[str, int]:
    """Return how many slots of each variant were committed since its last `completed` one.

    Pruned slots are not counted: they did not fail, and do not end a series of failures. Neither
    are slots that a rerun supersedes, committed or not: it gives the variant another chance.
    """
    rows = connection.execute(_CONSECUTIVE_FAILURES_SQL, (run_no,)).all()
    return dict(map(tuple, rows))


def read_primary_metrics(connection: Connection, run_no: int) -> dict[str, PrimaryMetric]:
    """Return the mean primary metric of each variant whose scored slots all have the same one.

    Scores of slots with the status `grade_error` are not counted. The sum is exact (`math.fsum`),
    so that the mean does not depend on the order.
    """
    values_by_variant: dict[str, dict[str, list[float]]] = {}
    for variant_id, name, value in connection.execute(_METRICS_SQL, (run_no,)):
        values_by_variant.setdefault(variant_id, {}).setdefault(name, []).append(value)
    return {
        variant_id: PrimaryMetric(name, math.fsum(values) / len(values))
        for variant_id, values_by_name in values_by_variant.items()
        if len(values_by_name) == 1
        for name, values in values_by_name.items()
    }
