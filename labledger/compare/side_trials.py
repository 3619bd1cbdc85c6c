"""Read the trials of a comparison's sides from the ledger, task by task.

Every slot of a side is read, committed or not, so that `compare.pairs` can say why a slot is left
out. A side may be several runs taken as one (`RUN1+RUN2`): shards of an experiment, or the same
experiment run on several days, are one sample. Where their experiments differ, `differences` says
in what; a task that differs is never combined.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from labledger.errors import InvalidInput, Parameter, Problem
from labledger.experiment.experiment_differences import document_differences
from labledger.experiment.task_row import cluster_of
from labledger.ledger.database.model import Graded, Variant
from labledger.ledger.query import query
from labledger.ledger.reader import LedgerReader
from labledger.records.identity import RUN_SEPARATOR
from labledger.text import counted

_MAX_NAMED_DIFFERENCES = 5
"""How many differences of two experiments a sentence names."""


@dataclass(frozen=True, slots=True)
class CombinedRuns:
    """One run, or several that are taken as one, as they were named.

    The runs keep their rows; the trials of a task and a variant are those of all runs together.
    """

    name: str
    """The names of the runs, with `RUN_SEPARATOR` between them."""
    runs: tuple[Graded, ...]
    """At least one; no two are gradings of the same trials."""
    differences: tuple[str, ...] = ()
    """A clause for each run whose experiment differs from that of the first."""

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants of all runs; those of the first run come first."""
        variants: dict[str, Variant] = {}
        for graded in self.runs:
            for variant in graded.run.variants:
                variants.setdefault(variant.variant_id, variant)
        return tuple(variants.values())

    @property
    def variant_ids(self) -> list[str]:
        return [variant.variant_id for variant in self.variants]

    @property
    def roots(self) -> frozenset[str]:
        """The runs whose agents ran."""
        return frozenset(graded.root_id for graded in self.runs)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that hold the rows."""
        return tuple(graded.run.run_id for graded in self.runs)


def read_combined(reader: LedgerReader, name: str) -> CombinedRuns:
    """Return the runs that a name such as ``RUN``, ``RUN.g1`` or ``RUN1+RUN2`` stands for.

    Raises `RunNotFound`, or `InvalidInput` where two of them are the same trials.
    """
    runs = tuple(map(reader.graded, name.split(RUN_SEPARATOR)))
    by_root: dict[str, Graded] = {}
    for graded in runs:
        earlier = by_root.setdefault(graded.root_id, graded)
        if earlier is not graded:
            same = earlier.name == graded.name
            message = (
                f"{name} holds {graded.name} twice"
                if same
                else f"{earlier.name} and {graded.name} are gradings of the same trials"
            )
            raise InvalidInput("the runs to combine", [Problem(name, message)])
    return CombinedRuns(name, runs, tuple(_differences(reader, runs)))


def _differences(reader: LedgerReader, runs: Sequence[Graded]) -> Iterator[str]:
    """Yield a clause for each run that is not of the same experiment as the first."""
    if all(graded.run.digest == runs[0].run.digest for graded in runs):
        return
    first = runs[0]
    of_first = first.run.resolved, reader.task_digests(first.run.run_id)
    for graded in runs[1:]:
        if graded.run.digest == first.run.digest:
            continue
        of_other = graded.run.resolved, reader.task_digests(graded.run.run_id)
        try:
            sentences = document_differences(*of_first, *of_other)
        except (KeyError, TypeError):  # A document of an early version may lack sections.
            sentences = []
        listed = sentences[:_MAX_NAMED_DIFFERENCES]
        if len(sentences) > len(listed):
            listed.append(f"and {counted(len(sentences) - len(listed), 'more difference')}")
        what = "; ".join(listed) or "their digests differ"
        yield f"{graded.name} is not the same experiment as {first.name}: {what}"


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
_VARIANTS_SQL = """
SELECT asked.key, run_variant.variant_idx, run_variant.variant_id
FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN run_variant ON run_variant.run_no = run.run_no"""
_TRIALS_SQL = """
SELECT asked.key, slot.variant_idx, slot.task_idx, slot.repl_idx,
    outcome.status, outcome.verdict,
    coalesce(outcome.status = 'grade_error' AND outcome.passed = 0, 0), {number}
FROM json_each(:runs) AS asked
CROSS JOIN run ON run.run_id = asked.value
JOIN slot ON slot.run_no = run.run_no AND slot.supersedes IS NULL
LEFT JOIN outcome
  ON outcome.run_no = slot.run_no AND outcome.variant_idx = slot.variant_idx
  AND outcome.task_idx = slot.task_idx AND outcome.repl_idx = slot.repl_idx"""
_NUMBER = """
    CASE WHEN outcome.metric_name = :metric THEN outcome.metric_value ELSE (
        SELECT metric.value FROM metric
        WHERE metric.run_no = slot.run_no AND metric.schedule_idx = outcome.schedule_idx
          AND metric.metric_id = :metric AND typeof(metric.value) IN ('integer', 'real')
          AND NOT (metric.source = 'score' AND outcome.status = 'grade_error')
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
_TASK_OF_ROW = itemgetter(0, 1, 2)
_VALUES_OF_ROW = itemgetter(3, 4, 5, 6, 7)
"""The fields of a `Trial` in a row of `_TRIALS_SQL`."""


class Side(NamedTuple):
    """One side of a comparison: a variant of a run."""

    run_id: str
    """The run as it was named: a run stands for its current grading, RUN.gN for another one."""
    variant_id: str

    def __str__(self) -> str:
        return f"{self.run_id}:{self.variant_id}"


class Trial(NamedTuple):
    """The values of a slot that a comparison uses."""

    repl_idx: int
    status: str | None
    """None where the slot is not committed."""
    verdict: str | None
    """None also where the grader failed: such a score is stored, but does not count."""
    agent_failed: int
    """Whether the agent of a `grade_error` had failed itself, or broke the grader: 1 or 0."""
    number: float | None
    """The metric's value; None for pass rates."""


TaskTrials = tuple[Trial, ...]
"""The slots of one task on one side, numbered by replication.

Those of runs taken as one are numbered through. For pass rates, equal ones are one object.
"""


@dataclass(frozen=True, slots=True)
class Trials:
    """The slots of one side."""

    by_task: Mapping[str, TaskTrials]
    """By task id; none is empty."""
    digests: Mapping[str, str | None]
    """The digest of each task of the runs; None where it differs between runs taken as one."""


Holders = Mapping[str, Sequence[str]]
"""The ids of the runs that hold the rows, by the name that sides have for them."""


def read_trials(
    path: Path, sides: Collection[Side], holders: Holders, metric: str | None
) -> dict[Side, Trials]:
    """Return every slot of some sides; `metric` is None for pass rates."""
    parts = [(name, run_id) for name, run_ids in holders.items() for run_id in run_ids]
    runs = json.dumps([run_id for _, run_id in parts])
    task_ids: list[dict[int, str]] = [{} for _ in parts]
    digests: list[dict[str, str | None]] = [{} for _ in parts]
    _, rows = query(path, _TASKS_SQL, {"runs": runs})
    for part, task_idx, task_id, digest in rows:
        task_ids[part][task_idx] = task_id
        digests[part][task_id] = digest
    by_part: dict[tuple[int, str], dict[str, TaskTrials]] = {
        (part, side.variant_id): {}
        for part, (name, _) in enumerate(parts)
        for side in sides
        if side.run_id == name
    }
    _, rows = query(path, _VARIANTS_SQL, {"runs": runs})
    by_index = {(part, index): by_part.get((part, name)) for part, index, name in rows}
    sql = _TRIALS_SQL.format(number="NULL" if metric is None else _NUMBER)
    _, rows = query(path, sql, {"runs": runs} | ({} if metric is None else {"metric": metric}))
    # Objects per task would keep Python's garbage collector busy: equal trials share theirs.
    shared_trials = _SharedTrials()
    shared_tasks: dict[TaskTrials, TaskTrials] = {}
    trial_of: Callable[[Any], Trial] = shared_trials.__getitem__ if metric is None else Trial._make
    for (part, variant_idx, task_idx), of_task in groupby(rows, _TASK_OF_ROW):
        of_side, task_id = by_index.get((part, variant_idx)), task_ids[part].get(task_idx)
        if of_side is None or task_id is None:  # None: the run was extended by it meanwhile.
            continue
        trials = of_side.get(task_id, ()) + tuple(map(trial_of, map(_VALUES_OF_ROW, of_task)))
        of_side[task_id] = trials if metric is not None else shared_tasks.setdefault(trials, trials)
    of_name = {name: [p for p, part in enumerate(parts) if part[0] == name] for name in holders}
    by_side = {
        side: [
            Trials(by_part[part, side.variant_id], digests[part]) for part in of_name[side.run_id]
        ]
        for side in sides
    }
    numbers = {name: _numbers(by_side, name) for name in holders if len(of_name[name]) > 1}
    return {
        side: _combined(runs, numbers[side.run_id]) if side.run_id in numbers else runs[0]
        for side, runs in by_side.items()
    }


class _SharedTrials(dict[tuple[Any, ...], Trial]):
    """One `Trial` for each tuple of values."""

    def __missing__(self, values: tuple[Any, ...]) -> Trial:
        trial = self[values] = Trial._make(values)
        return trial


_Numbers = Mapping[str, Mapping[tuple[int, int], int]]
"""By task: the number of a replication of one of several runs among those of all of them."""


def _numbers(by_side: Mapping[Side, Sequence[Trials]], name: str) -> _Numbers:
    """Number the replications of each task through, run by run, for all sides with a name alike."""
    replications: dict[str, set[tuple[int, int]]] = {}
    for side, runs in by_side.items():
        if side.run_id == name:
            for index, trials in enumerate(runs):
                for task_id, of_task in trials.by_task.items():
                    of_run = {(index, trial.repl_idx) for trial in of_task}
                    replications.setdefault(task_id, set()).update(of_run)
    return {
        task_id: {key: number for number, key in enumerate(sorted(keys))}
        for task_id, keys in replications.items()
    }


def _combined(runs: Sequence[Trials], numbers: _Numbers) -> Trials:
    """Return the trials of one side of several runs, which are taken as one."""
    by_task: dict[str, TaskTrials] = {}
    digests: dict[str, str | None] = {}
    for index, trials in enumerate(runs):
        for task_id, of_task in trials.by_task.items():
            numbered = numbers[task_id]
            renumbered = tuple(
                trial._replace(repl_idx=numbered[index, trial.repl_idx]) for trial in of_task
            )
            digest = trials.digests[task_id]
            same = digests.setdefault(task_id, digest) == digest
            digests[task_id] = digest if same else None
            by_task[task_id] = by_task.get(task_id, ()) + renumbered
    return Trials(by_task, digests)


def read_clusters(path: Path, holders: Holders, field: str) -> dict[str, str | None]:
    """Return the cluster of each task, by task id; None where the task's row has no `field`."""
    _, rows = query(path, _CLUSTERS_SQL, {"runs": _run_ids(holders)})
    return {task_id: cluster_of(json.loads(payload), field) for task_id, _, payload in rows}


def require_metric(
    path: Path, by_side: Mapping[Side, Trials], holders: Holders, metric: str
) -> None:
    """Raise `InvalidInput`, naming the metrics there are, where no slot has a value of `metric`."""
    tasks = (of_task for of_side in by_side.values() for of_task in of_side.by_task.values())
    if any(trial.number is not None for of_task in tasks for trial in of_task):
        return
    _, rows = query(path, _NAMES_SQL, {"runs": _run_ids(holders)})
    names = ["pass_rate", *(name for (name,) in rows)]
    message = f"no trial compared has a number called {metric!r}; there is {', '.join(names)}"
    raise InvalidInput("the metric to compare", [Problem(Parameter("metric"), message)])


def _run_ids(holders: Holders) -> str:
    return json.dumps([run_id for run_ids in holders.values() for run_id in run_ids])
