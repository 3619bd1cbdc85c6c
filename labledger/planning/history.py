"""Read from earlier runs what a plan is estimated from: pairs of sides, costs and times.

By default these are the newest runs of the same experiment. Pairs of sides are the baseline and
each treatment of a run; where no run has two variants, the variants of two runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from labledger.compare.combined_runs import CombinedRuns, read_combined
from labledger.compare.options import CompareOptions
from labledger.compare.pairs import pair
from labledger.compare.side_trials import Side, Trials, read_clusters, read_trials, require_metric
from labledger.compare.statistics.variance_components import PairedTasks
from labledger.errors import InvalidInput, Parameter, Problem
from labledger.ledger.query import query
from labledger.ledger.reader import LedgerReader

MOST_RUNS = 10
"""How many runs of an experiment are used, the newest first, where none is named."""
_MOST_SLOTS = 200_000
"""Older runs are not used where newer ones have more committed slots: a dry run is short."""
_MOST_PAIRS = 40

_SPENT_SQL = """
SELECT variant_id, task_id, cost_usd, duration_ms FROM trial_facts
WHERE run_id IN (SELECT value FROM json_each(:runs)) AND duration_ms IS NOT NULL"""


@dataclass(frozen=True, slots=True)
class TrialSpent:
    """What one trial cost and took."""

    variant_id: str
    task_id: str
    cost_usd: float | None
    """None where the trial did not report it."""
    duration_ms: float


@dataclass(frozen=True, slots=True)
class History:
    """What earlier runs tell about a planned one."""

    runs: tuple[str, ...]
    """As they were named, the newest first by default."""
    pairs: tuple[PairedTasks, ...]
    are_within_runs: bool
    """Whether the pairs are variants of one run, rather than of two runs."""
    clusters: Mapping[str, str] | None
    """The cluster of each task, if the experiment names a field that every task has."""
    spent: tuple[TrialSpent, ...]


def read_history(
    reader: LedgerReader,
    experiment_id: str,
    names: Sequence[str],
    metric: str | None,
    cluster: str | None,
) -> History:
    """Return what some runs tell, or the newest of an experiment where none is named.

    A name is that of a run, of one of its gradings, or of several runs taken as one. `metric` is
    None for pass rates; `cluster` is the experiment's field. A history without runs has no pairs.
    Raises `RunNotFound`, or `InvalidInput` where no trial has a number of the metric.
    """
    runs = [read_combined(reader, name) for name in names or _newest(reader, experiment_id)]
    holders = {run.name: run.run_ids for run in runs}
    sides = [Side(run.name, variant_id) for run in runs for variant_id in run.variant_ids]
    trials = read_trials(reader.path, sides, holders, metric) if runs else {}
    if metric is not None and runs:
        require_metric(reader.path, trials, holders, metric)
    options = CompareOptions() if metric is None else CompareOptions(metric=metric)
    within = [two for run in runs for two in _of_run(run)]
    pairs = _paired(within, trials, options) or _paired(_across(runs), trials, options)
    clusters = None
    if cluster is not None and runs:
        known = read_clusters(reader.path, holders, cluster)
        clusters = {task_id: name for task_id, name in known.items() if name is not None}
        if any(task_id not in clusters for each in pairs for task_id in each.task_ids):
            clusters = None
    return History(
        runs=tuple(holders),
        pairs=pairs,
        are_within_runs=any(len(run.variants) > 1 for run in runs),
        clusters=clusters,
        spent=_spent(reader, runs),
    )


def require_history(history: History) -> None:
    """Raise `InvalidInput` where the runs have no two sides with two tasks in common."""
    if history.pairs:
        return
    if not history.runs:
        message = "the ledger has no earlier run of this experiment with committed slots"
    else:
        message = f"no two variants of {', '.join(history.runs)} have graded trials of two tasks"
    hint = "run a few tasks with two replications first, or name other runs with `from_runs=`"
    raise InvalidInput("the earlier runs", [Problem(Parameter("from_runs"), message, hint=hint)])


def _newest(reader: LedgerReader, experiment_id: str) -> list[str]:
    names: list[str] = []
    slots = 0
    for run in reader.runs():
        if run.experiment_id != experiment_id or not run.next_schedule_idx:
            continue
        if reader.graded(run.run_id).root_id != run.run_id:
            continue  # A regrading holds other scores of a run that is used anyway.
        slots += run.next_schedule_idx
        if names and (len(names) == MOST_RUNS or slots > _MOST_SLOTS):
            break
        names.append(run.run_id)
    return names


def _of_run(run: CombinedRuns) -> list[tuple[Side, Side]]:
    """Return the baseline with each treatment; every two variants where there is no baseline."""
    variants = run.variants
    baselines = [v.variant_id for v in variants if v.role == "baseline"]
    sides = [Side(run.name, v.variant_id) for v in variants]
    if len(baselines) != 1:
        return list(combinations(sides, 2))
    base = Side(run.name, baselines[0])
    return [(base, side) for side in sides if side != base]


def _across(runs: Sequence[CombinedRuns]) -> list[tuple[Side, Side]]:
    """Return the variants of each run with those of the next one."""
    return [
        (Side(one.name, v.variant_id), Side(other.name, w.variant_id))
        for one, other in pairwise(runs)
        for v in one.variants
        for w in other.variants
    ]


def _paired(
    sides: Sequence[tuple[Side, Side]], trials: Mapping[Side, Trials], options: CompareOptions
) -> tuple[PairedTasks, ...]:
    paired = (pair(trials[a], trials[b], options) for a, b in sides[:_MOST_PAIRS])
    return tuple(PairedTasks(two.task_ids, two.a, two.b) for two in paired if len(two.task_ids) > 1)


def _spent(reader: LedgerReader, runs: Sequence[CombinedRuns]) -> tuple[TrialSpent, ...]:
    return tuple(_read_spent(reader, sorted({root for run in runs for root in run.roots})))


def _read_spent(reader: LedgerReader, run_ids: Sequence[str]) -> Iterator[TrialSpent]:
    _, rows = query(reader.path, _SPENT_SQL, {"runs": json.dumps(run_ids)})
    for row in rows:
        yield TrialSpent(*row)
