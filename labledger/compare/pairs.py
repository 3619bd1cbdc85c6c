"""Pair the trials of two sides task by task, and give the reason for each slot that is left out.

A task is compared if both sides have a counted trial of it. Replications are not paired one by one,
because replication 1 of A and replication 1 of B have only the number in common. So a side that
lost one of its trials keeps the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labledger.compare.compare_options import CompareOptions, ErrorCounting
from labledger.compare.side_trials import TaskTrials, Trial, Trials
from labledger.records.outcomes import NEVER_RUN, SlotStatus, Verdict

_MAX_MAGNITUDE = 1e290
"""Sums of larger numbers could overflow a double."""

_LAB_FAILURES = {SlotStatus.INFRA_ERROR.value, SlotStatus.SETUP_ERROR.value}
_AGENT_FAILURES = {SlotStatus.AGENT_ERROR.value, SlotStatus.AGENT_TIMEOUT.value, "verdict_error"}
_TASK_CHANGED = "task_changed"
_NOT_SCHEDULED = "not_scheduled"


class LeftOut(NamedTuple):
    task_id: str
    repl_idx: int
    side: str
    """The side that the reason is about: `a`, `b` or `both`."""
    reason: str


@dataclass(frozen=True, slots=True)
class Paired:
    """The tasks that both sides have trials of, ordered by id, and the slots left out."""

    task_ids: tuple[str, ...]
    a: tuple[Sequence[float], ...]
    """The values of each task's trials that count; none is empty."""
    b: tuple[Sequence[float], ...]
    left_out: tuple[LeftOut, ...]
    distinct_trials: tuple[Trial, ...] = ()
    """For pass rates, each distinct `Trial` once: it names no task, so many slots may equal it."""

    @property
    def rates(self) -> tuple[float, float] | tuple[None, None]:
        """The mean of each side, each task weighing the same; None where nothing is paired."""
        if not self.task_ids:
            return None, None
        mean_a, mean_b = (
            math.fsum(sum(group) / len(group) for group in groups) / len(groups)
            for groups in (self.a, self.b)
        )
        return mean_a, mean_b

    @property
    def pairs(self) -> int:
        """The number of pairs of trials: in each task as many as the side with fewer has."""
        return sum(min(len(a), len(b)) for a, b in zip(self.a, self.b, strict=True))


class _TaskValues(NamedTuple):
    """The values of one task's trials on one side."""

    all: tuple[float | str, ...]
    """Each trial's number, or the reason why it has none."""
    numbers: tuple[float, ...]


class _Values:
    """The values of a comparison; equal trials, and tasks with equal trials, are valued once."""

    def __init__(self, options: CompareOptions) -> None:
        self._options = options
        self._by_task: dict[TaskTrials, _TaskValues] = {}
        self.distinct_trials: dict[Trial, float | str] = {}
        """The distinct trials of a pass rate, with their values."""

    def of(self, trials: TaskTrials) -> _TaskValues:
        """Return the values of a task's trials."""
        if not self._options.is_rate:
            return _task_values(_value(trial, self._options) for trial in trials)
        known = self._by_task.get(trials)
        if known is None:
            known = self._by_task[trials] = _task_values(map(self._of_trial, trials))
        return known

    def _of_trial(self, trial: Trial) -> float | str:
        value = self.distinct_trials.get(trial)
        if value is None:
            value = self.distinct_trials[trial] = _value(trial, self._options)
        return value


def _task_values(values: Iterable[float | str]) -> _TaskValues:
    each = tuple(values)
    return _TaskValues(each, tuple(value for value in each if not isinstance(value, str)))


def pair(a: Trials, b: Trials, options: CompareOptions) -> Paired:
    """Pair two sides by task.

    A task is left out if its digest differs or a side has no counted trial of it. Single trials of
    a compared task can be left out, too. Each reason names its slot.
    """
    values = _Values(options)
    ids, paired_a, paired_b, left_out = [], [], [], list[LeftOut]()
    for task_id in sorted(a.by_task.keys() | b.by_task.keys()):
        trials_a, trials_b = a.by_task.get(task_id, ()), b.by_task.get(task_id, ())
        if trials_a and trials_b and _differ(a.digests[task_id], b.digests[task_id]):
            repls = {trial.repl_idx for trial in trials_a + trials_b}
            left_out += [LeftOut(task_id, repl, "both", _TASK_CHANGED) for repl in sorted(repls)]
            continue
        values_a, numbers_a = values.of(trials_a)
        values_b, numbers_b = values.of(trials_b)
        if numbers_a and numbers_b:
            ids.append(task_id)
            paired_a.append(numbers_a)
            paired_b.append(numbers_b)
            if len(numbers_a) == len(values_a) == len(values_b) == len(numbers_b):
                continue
        left_out += _reasons(task_id, _by_repl(trials_a, values_a), _by_repl(trials_b, values_b))
    distinct_trials = tuple(values.distinct_trials)
    return Paired(tuple(ids), tuple(paired_a), tuple(paired_b), tuple(left_out), distinct_trials)


def _differ(a: str | None, b: str | None) -> bool:
    """Return whether two sides have other tasks of one id, or one side has several of them."""
    return a is None or a != b


def have_same_values(paired: Paired, options: CompareOptions, other: CompareOptions) -> bool:
    """Return whether all trials of a comparison of pass rates have equal values by both options."""
    return all(_value(trial, options) == _value(trial, other) for trial in paired.distinct_trials)


def _by_repl(trials: TaskTrials, values: Sequence[float | str]) -> dict[int, float | str]:
    return {trial.repl_idx: value for trial, value in zip(trials, values, strict=True)}


def _reasons(
    task_id: str, a: Mapping[int, float | str], b: Mapping[int, float | str]
) -> Iterator[LeftOut]:
    for repl in sorted(a.keys() | b.keys()):
        value_a, value_b = a.get(repl, _NOT_SCHEDULED), b.get(repl, _NOT_SCHEDULED)
        if isinstance(value_a, str) and isinstance(value_b, str):
            reason = value_a if value_a == value_b else f"{value_a}, {value_b}"
            yield LeftOut(task_id, repl, "both", reason)
        elif isinstance(value_a, str):
            yield LeftOut(task_id, repl, "a", value_a)
        elif isinstance(value_b, str):
            yield LeftOut(task_id, repl, "b", value_b)


def _value(trial: Trial, options: CompareOptions) -> float | str:
    """Return the number that a trial counts as, or the reason why it is left out."""
    if trial.status is None:
        return "not_committed"
    if trial.status in NEVER_RUN:
        return trial.status
    return _passed(trial, options.errors) if options.is_rate else _number(trial)


def _passed(trial: Trial, errors: ErrorCounting) -> float | str:
    if errors is ErrorCounting.STRICT and trial.status in _AGENT_FAILURES:
        return 0.0
    if trial.verdict not in (None, Verdict.ERROR.value):
        return float(trial.verdict == Verdict.PASS.value)
    reason = "verdict_error" if trial.verdict else str(trial.status)
    by_the_agent = reason in _AGENT_FAILURES or bool(trial.agent_failed)
    counted = errors is ErrorCounting.ALL_AS_FAILURES or (
        errors in (ErrorCounting.AS_FAILURES, ErrorCounting.STRICT) and by_the_agent
    )
    return 0.0 if counted else reason


def _number(trial: Trial) -> float | str:
    """Return a metric's value. It counts with every verdict, unless the lab failed."""
    if trial.status in _LAB_FAILURES:
        return str(trial.status)
    if trial.number is None:
        return "no_value"
    return float(trial.number) if abs(trial.number) <= _MAX_MAGNITUDE else "number_too_large"
