"""Who passed what: by variant, with intervals and honest denominators, and by task."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from labledger.analysis import extra, rates
from labledger.analysis.report.questions import Trial
from labledger.errors import ExtraMissing
from labledger.ledger.model import RunInfo, Variant
from labledger.records import JsonObject, SlotStatus, Verdict

Scheduled = Mapping[tuple[str, str], int]
"""How many slots each (variant, task) has."""


def by_variant(
    run: RunInfo, trials: Sequence[Trial], scheduled: Scheduled, confidence: float
) -> list[JsonObject]:
    """Each variant in the order of the experiment, with its rate as `labledger.passing` has it."""
    of_variant: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        of_variant[trial.variant_id].append(trial)
    totals: Counter[str] = Counter()
    for (variant_id, _), count in scheduled.items():
        totals[variant_id] += count
    return [
        _variant(variant, of_variant[variant.variant_id], totals[variant.variant_id], confidence)
        for variant in run.variants
    ]


def _variant(
    variant: Variant, trials: Sequence[Trial], scheduled: int, confidence: float
) -> JsonObject:
    scored = [trial for trial in trials if trial.counted is not None]
    statuses = Counter(trial.status for trial in trials)
    verdicts = Counter(trial.counted for trial in scored)
    return {
        "variant_id": variant.variant_id,
        "role": variant.role,
        "bindings": variant.bindings,
        "scheduled": scheduled,
        "committed": len(trials),
        "scored": len(scored),
        "verdicts": {verdict.value: verdicts[verdict.value] for verdict in Verdict},
        "statuses": {status.value: statuses[status.value] for status in SlotStatus},
        "not_passed": sum(trial.passed == 0 for trial in trials),
        "agent_failed": sum(trial.passed == 0 and trial.counted is None for trial in trials),
        "pass_rate": _pass_rate(trials, confidence),
        "primary_metric": _primary_metric(scored),
    }


def _pass_rate(trials: Sequence[Trial], confidence: float) -> JsonObject | None:
    """The share that passed of what counts; the interval knows which are of the same task."""
    groups: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.passed is not None:
            groups[trial.task_id].append(float(trial.passed))
    if not groups:
        return None
    rate = sum(map(sum, groups.values())) / sum(map(len, groups.values()))
    try:
        extra.require()
    except ExtraMissing:
        return {"value": rate, "low": None, "high": None}
    found = rates.pooled_rate(list(groups.values()), confidence)
    return {"value": rate, "low": found.low, "high": found.high}


def _primary_metric(scored: Sequence[Trial]) -> JsonObject | None:
    """The mean of the primary metric, where all scored trials have the same one."""
    names = {trial.metric_name for trial in scored}
    values = [trial.metric_value for trial in scored if trial.metric_value is not None]
    if len(names) != 1 or not values:
        return None
    return {"name": names.pop(), "mean": math.fsum(values) / len(values)}


def by_task(
    run: RunInfo, trials: Iterable[Trial], scheduled: Scheduled, task_ids: Iterable[str]
) -> list[JsonObject]:
    """Each task in the order of the dataset, with a cell for each variant."""
    cells: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        cells[trial.variant_id, trial.task_id].append(trial)
    found = []
    for task_id in task_ids:
        places = [(variant.variant_id, task_id) for variant in run.variants]
        if any(place in scheduled for place in places):
            row = [_cell(scheduled.get(place, 0), cells[place]) for place in places]
            found.append({"task_id": task_id, "cells": row})
    return found


def _cell(scheduled: int, trials: Sequence[Trial]) -> JsonObject:
    return {
        "scheduled": scheduled,
        "committed": len(trials),
        "scored": sum(trial.counted is not None for trial in trials),
        "passed": sum(trial.passed == 1 for trial in trials),
        "not_passed": sum(trial.passed == 0 for trial in trials),
    }
