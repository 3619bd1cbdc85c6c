"""Count a run's trials in one pass, so that a report need not hold every trial in memory.

`Tally.counting` passes the trials on while it counts them. Afterwards `outcomes` and `spending`
read it. Its memory grows with the number of tasks, and by a few numbers a trial; equal cells are
one object.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from labledger.records.outcomes import NEVER_RUN, SlotStatus
from labledger.report.ledger_queries import Trial

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
    """Of scored slots."""
    cells: dict[str, CellTally] = field(default_factory=dict)
    """By task."""
    agent_failed: int = 0
    """Slots without a verdict that did not pass."""
    left_out: int = 0
    """Slots that ran and that the pass rate leaves out."""
    ran: int = 0
    """Slots for which a container ran."""
    metric_names: set[str | None] = field(default_factory=set)
    """The primary metrics of scored slots."""
    metric_values: array[float] = field(default_factory=lambda: array("d"))
    """The known values of those."""
    times: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in ("trial", *PHASES)}
    )
    """Known durations in milliseconds, of whole trials and by phase."""

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

    def add(self, trial: Trial, shared_cells: dict[CellTally, CellTally]) -> None:
        """Count a trial; `shared_cells` has each different cell once."""
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
    """The first few slots; RUN:SLOT where there are several runs."""
    message: str | None = None
    """The first message."""

    def add(self, trial: Trial) -> None:
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
    """By status and reason; "" where there is no reason."""
    images: dict[str, str | None] = field(default_factory=dict)
    """The id of each image by its reference, as the last trial had it."""

    def counting(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """Yield the trials, in schedule order, and count each."""
        shared_cells: dict[CellTally, CellTally] = {}
        for trial in trials:
            self.variants[trial.variant_id].add(trial, shared_cells)
            if trial.status != SlotStatus.COMPLETED.value:
                self.errors[trial.status, trial.reason or ""].add(trial)
            if trial.image_ref is not None:
                self.images[trial.image_ref] = trial.image_id
            yield trial
