"""Whether runs that are compared can grow, or have grown, after someone looked at them.

A fixed-sample test that is looked at again and again while slots are committed shows differences
that do not exist. So a comparison of such runs uses a confidence sequence, which holds at all looks
together, or states no interval and no decision.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from labledger.compare.options import CompareOptions, Estimand, Validity
from labledger.compare.pairs import LeftOut, Paired
from labledger.compare.side_trials import CombinedRuns, Side, Trials
from labledger.ledger.query import query
from labledger.ledger.reader import LedgerReader
from labledger.records.outcomes import RunStatus

_EXTENDED_SQL = """
SELECT count(*) FROM json_each(:variants) AS asked
JOIN run ON run.run_id = :run
JOIN run_variant ON run_variant.run_no = run.run_no AND run_variant.variant_id = asked.value
WHERE EXISTS (
    SELECT 1 FROM slot WHERE slot.run_no = run.run_no AND slot.variant_idx = run_variant.variant_idx
    AND slot.schedule_idx BETWEEN :first AND :last
)"""

_NOT_COMMITTED = "not_committed"
_TASK_NOT_FINISHED = "task_not_finished"

EXTENDED = (
    "a run was extended, and p value and interval are those of a run that was not; if it was "
    "extended because of its results, differences are shown too often"
)


def validity(
    reader: LedgerReader,
    sides: Collection[Side],
    runs: Mapping[str, CombinedRuns],
    options: CompareOptions,
) -> tuple[Validity, tuple[str, ...]]:
    """Return for which looks the interval of two sides holds, and warnings."""
    all_runs = {runs[side.run_id].name: runs[side.run_id] for side in sides}.values()
    is_unfinished = any(
        graded.run.status is not RunStatus.COMPLETED
        for combined in all_runs
        for graded in combined.runs
    )
    is_extended = any(_was_extended(reader, side, runs[side.run_id]) for side in sides)
    if not is_unfinished and not is_extended:
        return Validity.FIXED_SAMPLE, ()
    if options.is_rate and options.estimand is Estimand.TASKS:
        return Validity.ANYTIME, ()
    return (Validity.NONE, ()) if is_unfinished else (Validity.FIXED_SAMPLE, (EXTENDED,))


def _was_extended(reader: LedgerReader, side: Side, runs: CombinedRuns) -> bool:
    """Return whether slots of a side were added to its run after it was created."""
    for root_id in runs.roots:
        for part in reader.run(root_id).parts:
            params = {
                "variants": json.dumps([side.variant_id]),
                "run": root_id,
                "first": part.first_idx,
                "last": part.first_idx + part.slot_count - 1,
            }
            if part.kind == "extended" and next(query(reader.path, _EXTENDED_SQL, params)[1])[0]:
                return True
    return False


def only_whole(paired: Paired, clusters: Mapping[str, str | None] | None) -> Paired:
    """Leave out each task (or each cluster) of which a slot is not committed.

    What remains of it to come depends on what is known of it, so that a part of it is not yet one
    of the independent observations that a confidence sequence counts.
    """
    units = clusters or {}
    open_units = {
        units.get(left.task_id, left.task_id)
        for left in paired.left_out
        if _NOT_COMMITTED in left.reason
    }
    rows = list(zip(paired.task_ids, paired.a, paired.b, strict=True))
    whole = [row for row in rows if units.get(row[0], row[0]) not in open_units]
    if len(whole) == len(rows):
        return paired
    waiting = tuple(
        LeftOut(task_id, number, "both", _TASK_NOT_FINISHED)
        for task_id, a, b in rows
        if units.get(task_id, task_id) in open_units
        for number in range(min(len(a), len(b)))
    )
    return replace(
        paired,
        task_ids=tuple(row[0] for row in whole),
        a=tuple(row[1] for row in whole),
        b=tuple(row[2] for row in whole),
        left_out=(*paired.left_out, *waiting),
    )


def largest_cluster(trials: Sequence[Trials], clusters: Mapping[str, str | None] | None) -> int:
    """Return the largest number of scheduled tasks that are in one cluster."""
    task_ids = {task_id for of_side in trials for task_id in of_side.by_task}
    if clusters is None or not task_ids:
        return 1
    return max(Counter(clusters[task_id] for task_id in task_ids).values())
