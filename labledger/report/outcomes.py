"""The outcomes of a run's slots: by variant, by task and by error, from a `Tally`.

Each variant has its pass rate with an interval; each task a cell for every variant. Tasks are also
ranked here, by how hard and how flaky they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from labledger import optional_libraries
from labledger.compare.statistics import rates
from labledger.compare.statistics.samples import Estimate
from labledger.errors import ExtraMissing
from labledger.ledger.database.model import Variant
from labledger.records.outcomes import SlotStatus, Verdict
from labledger.report.document import (
    Cell,
    ErrorGroup,
    PrimaryMetric,
    TaskOutcomes,
    VariantOutcomes,
)
from labledger.report.tally import CellTally, Tally, VariantTally

_NOT_COMMITTED = CellTally()

Scheduled = Mapping[str, Mapping[str, int]]
"""How many slots each task has, by variant."""


def by_variant(
    variants: Sequence[Variant], tally: Tally, scheduled: Scheduled, confidence: float
) -> tuple[VariantOutcomes, ...]:
    """Return the outcomes of each variant, in the order of the experiment."""
    return tuple(
        _variant(v, tally.variants[v.variant_id], sum(scheduled[v.variant_id].values()), confidence)
        for v in variants
    )


def _variant(
    variant: Variant, tally: VariantTally, scheduled: int, confidence: float
) -> VariantOutcomes:
    return VariantOutcomes(
        variant_id=variant.variant_id,
        role=variant.role,
        bindings=variant.bindings,
        scheduled=scheduled,
        committed=tally.committed,
        scored=tally.scored,
        verdicts={verdict.value: tally.verdicts[verdict.value] for verdict in Verdict},
        statuses={status.value: tally.statuses[status.value] for status in SlotStatus},
        not_passed=tally.not_passed,
        agent_failed=tally.agent_failed,
        left_out=tally.left_out,
        pass_rate=_pass_rate(tally, confidence),
        primary_metric=_primary_metric(tally),
    )


def _pass_rate(tally: VariantTally, confidence: float) -> Estimate | None:
    """Return the share that passed; its interval takes account of which trials share a task."""
    values = {
        cell: [1.0] * cell.passed + [0.0] * cell.not_passed for cell in set(tally.cells.values())
    }
    groups = [of_cell for cell in tally.cells.values() if (of_cell := values[cell])]
    if not groups:
        return None
    share = tally.passed / (tally.passed + tally.not_passed)
    try:
        optional_libraries.require_analysis()
    except ExtraMissing:
        return Estimate(share, None, None)
    estimate = rates.pooled_rate(groups, confidence)
    return Estimate(share, estimate.low, estimate.high)


def _primary_metric(tally: VariantTally) -> PrimaryMetric | None:
    """Return the mean of the primary metric, where all scored trials have the same one."""
    values = tally.metric_values
    if len(tally.metric_names) != 1 or not values:
        return None
    (name,) = tally.metric_names
    return PrimaryMetric(str(name), math.fsum(values) / len(values))


def by_task(
    variants: Sequence[Variant], tally: Tally, scheduled: Scheduled, task_ids: Iterable[str]
) -> tuple[TaskOutcomes, ...]:
    """Return the outcomes of each scheduled task, in the order of the dataset.

    Tasks with equal outcomes share their cells.
    """
    ids = [variant.variant_id for variant in variants]
    columns = [(scheduled[id_], tally.variants[id_].cells) for id_ in ids]
    shared: dict[tuple[tuple[int, CellTally], ...], tuple[Cell, ...]] = {}
    tasks = []
    for task_id in task_ids:
        counts = tuple(
            (slots.get(task_id, 0), cells.get(task_id, _NOT_COMMITTED)) for slots, cells in columns
        )
        if any(slots for slots, _ in counts):
            if counts not in shared:
                shared[counts] = tuple(Cell(slots, *committed) for slots, committed in counts)
            tasks.append(TaskOutcomes(task_id, shared[counts]))
    return tuple(tasks)


def errors(variants: Sequence[Variant], tally: Tally) -> tuple[ErrorGroup, ...]:
    """Return the slots that did not complete, by status and reason, the most frequent first."""
    ranked = sorted(tally.errors.items(), key=lambda item: (-item[1].variants.total(), item[0]))
    return tuple(
        ErrorGroup(
            status=status,
            reason=reason or None,
            count=group.variants.total(),
            variants={
                variant.variant_id: count
                for variant in variants
                if (count := group.variants[variant.variant_id])
            },
            examples=tuple(group.examples),
            message=group.message,
        )
        for (status, reason), group in ranked
    )


# -- ranking tasks


def hardest_first(tasks: Iterable[TaskOutcomes]) -> list[TaskOutcomes]:
    """Return tasks by their pass rate; those without one come last."""

    def rank(task: TaskOutcomes) -> tuple[float, int, str]:
        share = task.share
        return 2.0 if share is None else share, -task.counted, task.task_id

    return sorted(tasks, key=rank)


def hardest(tasks: Iterable[TaskOutcomes]) -> list[TaskOutcomes]:
    """Return the tasks that not every trial passed, the hardest first."""
    return [task for task in hardest_first(tasks) if task.share is not None and task.share < 1]


def flaky(tasks: Sequence[TaskOutcomes]) -> list[TaskOutcomes]:
    """Return the flaky tasks, the flakiest first; of equally flaky ones those with more trials."""
    return sorted(
        (task for task in tasks if task.is_flaky),
        key=lambda task: (-task.flakiness, -task.counted, task.task_id),
    )
