"""Count the outcomes of a run's slots in one pass: by variant, by task and by error.

`Tally.counting` passes trials on while it counts them, so that a report need not hold all trials in
memory. The counts become pass rates with intervals, a cell for each task and variant, and rankings
of hard and flaky tasks.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from labledger import resources
from labledger.compare.statistics import rates
from labledger.compare.statistics.samples import Estimate
from labledger.ledger.database.run_info import Variant
from labledger.records.outcomes import NEVER_RUN, SlotStatus, Verdict
from labledger.report.report_document import (
    Cell,
    ErrorGroup,
    PrimaryMetric,
    TaskOutcomes,
    VariantOutcomes,
)
from labledger.report.report_queries import ReportedTrial

_EXAMPLES = 3
PHASES = ("setup", "agent", "grader")


class CellTally(NamedTuple):
    """The committed slots of a variant on a task."""

    committed: int = 0
    scored: int = 0
    passed: int = 0
    not_passed: int = 0


_NOTHING = CellTally()


@dataclass(slots=True)
class VariantTally:
    """The committed slots of a variant."""

    statuses: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    """The verdicts of scored slots."""
    cells: dict[str, CellTally] = field(default_factory=dict)
    """By task."""
    agent_failed: int = 0
    """Slots without a verdict that did not pass."""
    left_out: int = 0
    """Slots that ran, but that the pass rate leaves out."""
    ran: int = 0
    """Slots whose container ran."""
    metric_names: set[str | None] = field(default_factory=set)
    """The names of the primary metrics of scored slots."""
    metric_values: array[float] = field(default_factory=lambda: array("d"))
    """The known values of the primary metrics."""
    times: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in ("trial", *PHASES)}
    )
    """Known durations in milliseconds, of whole trials and of phases."""

    @property
    def committed(self) -> int:
        return self.statuses.total()

    @property
    def scored(self) -> int:
        return self.verdicts.total()

    @property
    def passed(self) -> int:
        return sum(cell.passed for cell in self.cells.values())

    @property
    def not_passed(self) -> int:
        return sum(cell.not_passed for cell in self.cells.values())

    def add(self, trial: ReportedTrial, shared_cells: dict[CellTally, CellTally]) -> None:
        """Count a trial. `shared_cells` has one object for all equal cells."""
        committed, scored, passed, not_passed = self.cells.get(trial.task_id, _NOTHING)
        cell = CellTally(
            committed + 1,
            scored + trial.counted,
            passed + (trial.passed == 1),
            not_passed + (trial.passed == 0),
        )
        self.cells[trial.task_id] = shared_cells.setdefault(cell, cell)
        self.statuses[trial.status] += 1
        self.ran += trial.attempt is not None
        self.left_out += trial.passed is None and trial.status not in NEVER_RUN
        verdict = trial.counted_verdict
        if verdict is None:
            self.agent_failed += trial.passed == 0
        else:
            self.verdicts[verdict] += 1
            self.metric_names.add(trial.metric_name)
            if trial.metric_value is not None:
                self.metric_values.append(trial.metric_value)
        durations = (trial.duration_ms, trial.setup_ms, trial.agent_ms, trial.grader_ms)
        for values, milliseconds in zip(self.times.values(), durations, strict=True):
            if milliseconds is not None:
                values.append(milliseconds)


@dataclass(slots=True)
class ErrorTally:
    """The slots that ended with the same status and reason."""

    variants: Counter[str] = field(default_factory=Counter)
    examples: list[int | str] = field(default_factory=list)
    """The first few slots, as RUN:SLOT if there are several runs."""
    message: str | None = None
    """The first message that is not empty."""

    def add(self, trial: ReportedTrial) -> None:
        self.variants[trial.variant_id] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(trial.schedule_idx if trial.run_id is None else trial.key)
        self.message = self.message or trial.message or None


@dataclass(slots=True)
class Tally:
    """The committed slots of a run, counted."""

    variants: dict[str, VariantTally] = field(default_factory=lambda: defaultdict(VariantTally))
    errors: dict[tuple[str, str], ErrorTally] = field(
        default_factory=lambda: defaultdict(ErrorTally)
    )
    """By status and reason; the reason is "" if there is none."""
    images: dict[str, str | None] = field(default_factory=dict)
    """The id of each image by its reference, as the last trial used it."""

    def counting(self, trials: Iterable[ReportedTrial]) -> Iterator[ReportedTrial]:
        """Count the trials, and yield them in the same order."""
        shared_cells: dict[CellTally, CellTally] = {}
        for trial in trials:
            self.variants[trial.variant_id].add(trial, shared_cells)
            if trial.status != SlotStatus.COMPLETED.value:
                self.errors[trial.status, trial.reason or ""].add(trial)
            if trial.image_ref is not None:
                self.images[trial.image_ref] = trial.image_id
            yield trial


Scheduled = Mapping[str, Mapping[str, int]]
"""The number of slots of each task, by variant."""


def by_variant(
    variants: Sequence[Variant],
    tally: Tally,
    scheduled: Scheduled,
    confidence: float,
    clusters: Mapping[str, str],
) -> tuple[VariantOutcomes, ...]:
    """Return the outcomes of each variant, in the order of the experiment.

    `clusters` names the cluster of each task; it is empty if tasks are the sample.
    """
    pass_rates = [_pass_rate(tally.variants[v.variant_id], confidence, clusters) for v in variants]
    return tuple(
        _variant(v, tally.variants[v.variant_id], sum(scheduled[v.variant_id].values()), pass_rate)
        for v, pass_rate in zip(variants, pass_rates, strict=True)
    )


def _variant(
    variant: Variant, tally: VariantTally, scheduled: int, pass_rate: Estimate | None
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
        pass_rate=pass_rate,
        primary_metric=_primary_metric(tally),
    )


def _pass_rate(
    tally: VariantTally, confidence: float, clusters: Mapping[str, str]
) -> Estimate | None:
    """Return the share of counted trials that passed.

    The interval takes into account that trials of a task, or of a cluster, are not independent.
    """
    values = {
        cell: [1.0] * cell.passed + [0.0] * cell.not_passed for cell in set(tally.cells.values())
    }
    by_task = {task_id: values[cell] for task_id, cell in tally.cells.items() if values[cell]}
    if not by_task:
        return None
    if resources.has_analysis():
        named = [clusters[task_id] for task_id in by_task] if clusters else None
        return rates.pooled_rate(list(by_task.values()), confidence, named)
    return Estimate(tally.passed / (tally.passed + tally.not_passed), None, None)


def _primary_metric(tally: VariantTally) -> PrimaryMetric | None:
    """Return the mean of the primary metric; None unless all scored trials have the same one."""
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
            (slots.get(task_id, 0), cells.get(task_id, _NOTHING)) for slots, cells in columns
        )
        if any(slots for slots, _ in counts):
            if counts not in shared:
                shared[counts] = tuple(Cell(slots, *committed) for slots, committed in counts)
            tasks.append(TaskOutcomes(task_id, shared[counts]))
    return tuple(tasks)


def errors(variants: Sequence[Variant], tally: Tally) -> tuple[ErrorGroup, ...]:
    """Group the slots that did not complete by status and reason, the most frequent first."""
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
    """Return tasks by their pass rate. Tasks without a pass rate come last."""

    def rank(task: TaskOutcomes) -> tuple[float, int, str]:
        share = task.share
        return 2.0 if share is None else share, -task.counted, task.task_id

    return sorted(tasks, key=rank)


def hardest(tasks: Iterable[TaskOutcomes]) -> list[TaskOutcomes]:
    """Return the tasks that not every trial passed, the hardest first."""
    return [task for task in hardest_first(tasks) if task.share is not None and task.share < 1]


def flaky(tasks: Sequence[TaskOutcomes]) -> list[TaskOutcomes]:
    """Return the flaky tasks, the flakiest first; among equals, tasks with more trials first."""
    return sorted(
        (task for task in tasks if task.is_flaky),
        key=lambda task: (-task.flakiness, -task.counted, task.task_id),
    )
