"""Who passed what: by variant, with intervals and honest denominators, and by task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from labledger import optional_libraries
from labledger.compare.statistics import rates
from labledger.errors import ExtraMissing
from labledger.ledger.database.model import RunInfo, Variant
from labledger.records import JsonObject
from labledger.records.outcomes import SlotStatus, Verdict
from labledger.report.tally import CellTally, Tally, VariantTally

Scheduled = Mapping[tuple[str, str], int]
"""How many slots each (variant, task) has."""


def by_variant(
    run: RunInfo, tally: Tally, scheduled: Scheduled, confidence: float
) -> list[JsonObject]:
    """Each variant in the order of the experiment, with its pass rate."""
    totals: Counter[str] = Counter()
    for (variant_id, _), count in scheduled.items():
        totals[variant_id] += count
    return [
        _variant(one, tally.variants[one.variant_id], totals[one.variant_id], confidence)
        for one in run.variants
    ]


def _variant(
    variant: Variant, found: VariantTally, scheduled: int, confidence: float
) -> JsonObject:
    return {
        "variant_id": variant.variant_id,
        "role": variant.role,
        "bindings": variant.bindings,
        "scheduled": scheduled,
        "committed": found.committed,
        "scored": found.scored,
        "verdicts": {verdict.value: found.verdicts[verdict.value] for verdict in Verdict},
        "statuses": {status.value: found.statuses[status.value] for status in SlotStatus},
        "not_passed": found.not_passed,
        "agent_failed": found.agent_failed,
        "pass_rate": _pass_rate(found, confidence),
        "primary_metric": _primary_metric(found),
    }


def _pass_rate(found: VariantTally, confidence: float) -> JsonObject | None:
    """The share that passed of what counts; the interval knows which are of the same task."""
    groups = [
        [1.0] * cell.passed + [0.0] * cell.not_passed
        for cell in found.cells.values()
        if cell.passed or cell.not_passed
    ]
    if not groups:
        return None
    rate = found.passed / (found.passed + found.not_passed)
    try:
        optional_libraries.require_analysis()
    except ExtraMissing:
        return {"value": rate, "low": None, "high": None}
    estimate = rates.pooled_rate(groups, confidence)
    return {"value": rate, "low": estimate.low, "high": estimate.high}


def _primary_metric(found: VariantTally) -> JsonObject | None:
    """The mean of the primary metric, where all scored trials have the same one."""
    values = found.metric_values
    if len(found.metric_names) != 1 or not values:
        return None
    (name,) = found.metric_names
    return {"name": name, "mean": math.fsum(values) / len(values)}


def by_task(
    run: RunInfo, tally: Tally, scheduled: Scheduled, task_ids: Iterable[str]
) -> list[JsonObject]:
    """Each task in the order of the dataset, with a cell for each variant."""
    found = []
    for task_id in task_ids:
        places = [(variant.variant_id, task_id) for variant in run.variants]
        if any(place in scheduled for place in places):
            row = [_cell(tally, *place, scheduled.get(place, 0)) for place in places]
            found.append({"task_id": task_id, "cells": row})
    return found


def _cell(tally: Tally, variant_id: str, task_id: str, scheduled: int) -> JsonObject:
    found = tally.variants[variant_id].cells.get(task_id, CellTally())
    return {
        "scheduled": scheduled,
        "committed": found.committed,
        "scored": found.scored,
        "passed": found.passed,
        "not_passed": found.not_passed,
    }
