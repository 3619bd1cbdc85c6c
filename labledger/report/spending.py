"""What a run took: time by phase, and the metrics that trials reported, tokens and cost among them.

What nobody reported is unknown, never 0, and so are costs and tokens of less than 0.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from labledger import clock
from labledger.ledger.database.model import RunInfo
from labledger.ledger.database.tables import USUAL_METRICS
from labledger.records import JsonObject
from labledger.records.outcomes import RunStatus
from labledger.report.tally import PHASES, Tally, VariantTally


def times(run: RunInfo, tally: Tally) -> JsonObject:
    """From the run's creation to its completion, and each variant's trials, in milliseconds."""
    wall = None
    if run.status is RunStatus.COMPLETED and run.ended_at is not None:
        spent = clock.parse(run.ended_at) - clock.parse(run.created_at)
        wall = round(spent.total_seconds() * 1000)
    return {
        "wall_ms": wall,
        "variants": [_of_variant(v.variant_id, tally.variants[v.variant_id]) for v in run.variants],
    }


def _of_variant(variant_id: str, found: VariantTally) -> JsonObject:
    return {
        "variant_id": variant_id,
        "trial": _spread(found.times["trial"]),
        "phases": {name: _spread(found.times[name]) for name in PHASES},
    }


def _spread(found: Sequence[int]) -> JsonObject | None:
    """How many values there are, their sum and quartiles; None where there are none."""
    values = sorted(found)
    if not values:
        return None
    first, median, third = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {
        "trials": len(values),
        "sum": sum(values),
        "mean": math.fsum(values) / len(values),
        "min": values[0],
        "q1": first,
        "median": median,
        "q3": third,
        "max": values[-1],
    }


def metrics(
    run: RunInfo, tally: Tally, found: Iterable[tuple[str, str, float]]
) -> list[JsonObject]:
    """Each metric that is a number, by variant, with how many trials did not report it."""
    # Arrays: eight bytes a value, of which a large run has millions.
    values: dict[str, dict[str, array[float]]] = defaultdict(lambda: defaultdict(_doubles))
    for metric_id, variant_id, value in found:
        if value >= 0 or metric_id not in USUAL_METRICS:
            values[metric_id][variant_id].append(value)
    return [
        {
            "metric_id": metric_id,
            "variants": [
                _metric(v.variant_id, of[v.variant_id], tally.variants[v.variant_id].ran)
                for v in run.variants
            ],
        }
        for metric_id, of in sorted(values.items())
    ]


def _doubles() -> array[float]:
    return array("d")


def adds_up(metric_id: str) -> bool:
    """Whether a sum of the metric over trials means something: tokens and money do."""
    return metric_id in USUAL_METRICS


def cost_and_quality(
    variants: Sequence[JsonObject], found: Sequence[JsonObject]
) -> list[JsonObject]:
    """What a trial of each variant costs beside how often it passes, and what a pass costs."""
    means = {
        metric["metric_id"]: {one["variant_id"]: one for one in metric["variants"]}
        for metric in found
        if adds_up(metric["metric_id"])
    }
    if not means:
        return []
    return [_worth(variant, means) for variant in variants]


def _worth(variant: JsonObject, means: Mapping[str, Mapping[str, JsonObject]]) -> JsonObject:
    name, rate = variant["variant_id"], variant["pass_rate"]
    passes = rate["value"] if rate else 0
    cost = means.get("cost_usd", {}).get(name, {}).get("mean")
    tokens = [
        mean
        for metric_id in ("tokens_in", "tokens_out")
        if (mean := means.get(metric_id, {}).get(name, {}).get("mean")) is not None
    ]
    return {
        "variant_id": name,
        "pass_rate": rate,
        "cost": cost,
        "tokens": math.fsum(tokens) if tokens else None,
        "cost_of_pass": cost / passes if cost is not None and passes else None,
    }


def _metric(variant_id: str, values: Sequence[float], ran: int) -> JsonObject:
    total = math.fsum(values) if values else None
    return {
        "variant_id": variant_id,
        "known": len(values),
        "unknown": max(0, ran - len(values)),
        "sum": total,
        "mean": None if total is None else total / len(values),
        "median": statistics.median(values) if values else None,
    }
