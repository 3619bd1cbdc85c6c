"""The trials of two sides, task by task, and what is left out of a comparison, and why.

A task is compared where both sides have a trial of it that counts. Its replications are not paired
one by one: number 1 of A has nothing in common with number 1 of B but its number, so that a side
that lost one of its trials keeps the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from labledger.compare.options import CompareOptions, Errors
from labledger.errors import InvalidInput, Problem
from labledger.experiment.inputs.task_row import cluster_of
from labledger.ledger.query import query
from labledger.records.outcomes import SlotStatus, Verdict

_TASKS_SQL = """
SELECT asked.key, run_task.task_idx, run_task.task_id, run_task.digest
FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN run_task ON run_task.run_no = run.run_no"""
_CLUSTERS_SQL = """
SELECT DISTINCT run_task.task_id, run_task.digest, task_payload.body
FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN run_task ON run_task.run_no = run.run_no
JOIN task_payload ON task_payload.payload_digest = run_task.payload_digest"""
_TRIALS_SQL = """
SELECT asked.key, run_variant.variant_id, slot.task_idx, slot.repl_idx,
    slot_outcome.status, slot_outcome.verdict,
    coalesce(slot_outcome.status = 'grade_error' AND slot_outcome.passed = 0, 0), {number}
FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN slot ON slot.run_no = run.run_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
LEFT JOIN slot_outcome
  ON slot_outcome.run_no = slot.run_no AND slot_outcome.variant_idx = slot.variant_idx
  AND slot_outcome.task_idx = slot.task_idx AND slot_outcome.repl_idx = slot.repl_idx"""
_NUMBER = """
    CASE WHEN slot_outcome.metric_name = :metric THEN slot_outcome.metric_value ELSE (
        SELECT metric.value FROM metric
        WHERE metric.run_no = slot.run_no AND metric.schedule_idx = slot.schedule_idx
          AND metric.metric_id = :metric AND typeof(metric.value) IN ('integer', 'real')
          AND NOT (metric.source = 'score' AND slot_outcome.status = 'grade_error')
        ORDER BY metric.row_seq LIMIT 1
    ) END"""
_NAMES_SQL = """
SELECT DISTINCT metric.metric_id FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN metric ON metric.run_no = run.run_no AND typeof(metric.value) IN ('integer', 'real')
UNION
SELECT DISTINCT score.primary_metric_name FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN score ON score.run_no = run.run_no
ORDER BY 1"""

_LARGEST = 1e290
"""Sums of larger numbers could be more than a double holds."""

_NEVER_RUN = {SlotStatus.CANCELLED.value, SlotStatus.SKIPPED_PRUNED.value}
_NOT_THE_AGENT = {SlotStatus.INFRA_ERROR.value, SlotStatus.SETUP_ERROR.value}
_BY_THE_AGENT = {SlotStatus.AGENT_ERROR.value, SlotStatus.AGENT_TIMEOUT.value, "verdict_error"}
_TASK_CHANGED = "task_changed"
_NOT_SCHEDULED = "not_scheduled"


class Side(NamedTuple):
    """One side of a comparison: a variant of a run."""

    run_id: str
    """As it was asked for: a run, of which counts what counts, or one of its gradings."""
    variant_id: str

    def __str__(self) -> str:
        return f"{self.run_id}:{self.variant_id}"


class Trial(NamedTuple):
    """What the ledger holds of a slot, as far as a comparison asks."""

    repl_idx: int
    status: str | None
    """None where the slot is not committed."""
    verdict: str | None
    """None also where the grader failed: such a score is kept, not counted."""
    agent_failed: int
    """Whether the agent of a `grade_error` had failed itself: 1 or 0."""
    number: float | None
    """The metric's value; None for pass rates."""


class TaskTrials(NamedTuple):
    """The slots of one task on one side, by replication."""

    digest: str
    """Of the task."""
    trials: list[Trial]


class LeftOut(NamedTuple):
    task_id: str
    repl_idx: int
    side: str
    """`a`, `b` or `both`: where the reason lies."""
    reason: str


@dataclass(frozen=True, slots=True)
class Paired:
    """The tasks that both sides have trials of, ordered by id, and what was left out."""

    task_ids: tuple[str, ...]
    a: tuple[Sequence[float], ...]
    """The values of each task's trials that count; none is empty."""
    b: tuple[Sequence[float], ...]
    left_out: tuple[LeftOut, ...]
    kinds: tuple[Trial, ...] = ()
    """Of pass rates, the trials that differ in anything; each may stand for many."""

    @property
    def pairs(self) -> int:
        """How many pairs of trials there are: of each task as many as its shorter side has."""
        return sum(min(len(a), len(b)) for a, b in zip(self.a, self.b, strict=True))


Trials = Mapping[str, TaskTrials]
"""One side: the slots of each task."""

Holders = Mapping[str, str]
"""The run that holds the rows, by what sides call it."""


def read_trials(
    path: Path, sides: Collection[Side], holders: Holders, metric: str | None
) -> dict[Side, Trials]:
    """Every slot of some sides; `metric` is None for pass rates."""
    runs = json.dumps(dict(holders))
    tasks: dict[str, dict[int, tuple[str, str]]] = {name: {} for name in holders}
    _, rows = query(path, _TASKS_SQL, {"runs": runs})
    for name, task_idx, task_id, digest in rows:
        tasks[name][task_idx] = task_id, digest
    found: dict[tuple[str, str], dict[str, TaskTrials]] = {
        (side.run_id, side.variant_id): {} for side in sides
    }
    sql = _TRIALS_SQL.format(number="NULL" if metric is None else _NUMBER)
    _, rows = query(path, sql, {"runs": runs} | ({} if metric is None else {"metric": metric}))
    same: dict[tuple[object, ...], Trial] = {}  # Most trials of a pass rate are like many others.
    for name, variant_id, task_idx, *told in rows:
        of_side = found.get((name, variant_id))
        if of_side is None:
            continue
        key = tuple(told)
        trial = same.get(key)
        if trial is None:
            trial = Trial(*told)
            if metric is None:
                same[key] = trial
        task_id, digest = tasks[name][task_idx]
        of_task = of_side.get(task_id)
        if of_task is None:
            of_side[task_id] = TaskTrials(digest, [trial])
        else:
            of_task.trials.append(trial)
    return {Side(*side): trials for side, trials in found.items()}


def read_clusters(path: Path, holders: Holders, field: str) -> dict[str, str | None]:
    """The cluster of each task, by task id; None where the task's row has no such field."""
    _, rows = query(path, _CLUSTERS_SQL, {"runs": json.dumps(dict(holders))})
    return {task_id: cluster_of(json.loads(payload), field) for task_id, _, payload in rows}


def require_metric(path: Path, found: Mapping[Side, Trials], holders: Holders, metric: str) -> None:
    """Raise `InvalidInput`, naming what there is, where no slot has a number called `metric`."""
    for of_side in found.values():
        for of_task in of_side.values():
            if any(trial.number is not None for trial in of_task.trials):
                return
    _, rows = query(path, _NAMES_SQL, {"runs": json.dumps(dict(holders))})
    names = ["pass_rate", *(name for (name,) in rows)]
    message = f"no trial compared has a number called {metric!r}; there is {', '.join(names)}"
    raise InvalidInput("the metric to compare", [Problem("--metric", message)])


class _Values:
    """What the trials of a comparison count for; equal trials of a rate are judged once."""

    def __init__(self, options: CompareOptions) -> None:
        self._options = options
        self.kinds: dict[Trial, float | str] = {}
        """The trials of a rate that differ in anything, with what they count for."""

    def of(self, trials: Sequence[Trial]) -> list[float | str]:
        """Each trial's number, or why it has none."""
        if not self._options.is_rate:
            return [_value(trial, self._options) for trial in trials]
        known = self.kinds
        values = []
        for trial in trials:
            value = known.get(trial)
            if value is None:
                value = known[trial] = _value(trial, self._options)
            values.append(value)
        return values


def pair(a: Trials, b: Trials, options: CompareOptions) -> Paired:
    """Bring two sides together by task.

    A task is left out where its digest differs or a side has no trial that counts; in a task that
    is compared, single trials are left out. Each reason is told with the slot it is about.
    """
    values = _Values(options)
    ids, of_a, of_b, left_out = [], [], [], list[LeftOut]()
    for task_id in sorted(a.keys() | b.keys()):
        one, other = a.get(task_id), b.get(task_id)
        if one and other and one.digest != other.digest:
            repls = {trial.repl_idx for side in (one, other) for trial in side.trials}
            left_out += [LeftOut(task_id, repl, "both", _TASK_CHANGED) for repl in sorted(repls)]
            continue
        found_a = values.of(one.trials) if one else []
        found_b = values.of(other.trials) if other else []
        numbers_a = [value for value in found_a if not isinstance(value, str)]
        numbers_b = [value for value in found_b if not isinstance(value, str)]
        if numbers_a and numbers_b:
            ids.append(task_id)
            of_a.append(tuple(numbers_a))
            of_b.append(tuple(numbers_b))
            if len(numbers_a) == len(found_a) == len(found_b) == len(numbers_b):
                continue
        left_out += _reasons(task_id, _by_repl(one, found_a), _by_repl(other, found_b))
    kinds = tuple(values.kinds)
    return Paired(tuple(ids), tuple(of_a), tuple(of_b), tuple(left_out), kinds)


def counts_alike(paired: Paired, options: CompareOptions, other: CompareOptions) -> bool:
    """Whether the trials of a comparison of rates count the same by other options."""
    return all(_value(trial, options) == _value(trial, other) for trial in paired.kinds)


def _by_repl(of_task: TaskTrials | None, values: Sequence[float | str]) -> dict[int, float | str]:
    trials = of_task.trials if of_task else ()
    return {trial.repl_idx: value for trial, value in zip(trials, values, strict=True)}


def _reasons(
    task_id: str, a: Mapping[int, float | str], b: Mapping[int, float | str]
) -> Iterator[LeftOut]:
    for repl in sorted(a.keys() | b.keys()):
        one, other = a.get(repl, _NOT_SCHEDULED), b.get(repl, _NOT_SCHEDULED)
        if isinstance(one, str) and isinstance(other, str):
            yield LeftOut(task_id, repl, "both", one if one == other else f"{one}, {other}")
        elif isinstance(one, str):
            yield LeftOut(task_id, repl, "a", one)
        elif isinstance(other, str):
            yield LeftOut(task_id, repl, "b", other)


def _value(trial: Trial, options: CompareOptions) -> float | str:
    if trial.status is None:
        return "not_committed"
    if trial.status in _NEVER_RUN:
        return trial.status
    return _passed(trial, options.errors) if options.is_rate else _number(trial)


def _passed(trial: Trial, errors: Errors) -> float | str:
    if trial.verdict not in (None, Verdict.ERROR.value):
        return float(trial.verdict == Verdict.PASS.value)
    reason = "verdict_error" if trial.verdict else str(trial.status)
    by_the_agent = reason in _BY_THE_AGENT or bool(trial.agent_failed)
    counted = errors is Errors.ALL_AS_FAILURES or (errors is Errors.AS_FAILURES and by_the_agent)
    return 0.0 if counted else reason


def _number(trial: Trial) -> float | str:
    """A metric counts whatever the verdict, but not of a trial that the laboratory spoilt."""
    if trial.status in _NOT_THE_AGENT:
        return str(trial.status)
    if trial.number is None:
        return "no_value"
    return float(trial.number) if abs(trial.number) <= _LARGEST else "number_too_large"
