"""The time that a run took, by phase, and the metrics that its trials reported, such as cost.

A value that was not reported is unknown, never 0. A cost or token count below 0 is unknown, too.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labledger import clock
from labledger.compare.statistics.samples import Estimate
from labledger.ledger.database.model import RunInfo, Variant
from labledger.ledger.database.tables import USUAL_METRICS
from labledger.records.outcomes import RunStatus
from labledger.report.document import (
    Metric,
    Spread,
    Times,
    VariantMetric,
    VariantOutcomes,
    VariantTimes,
)
from labledger.report.tally import PHASES, Tally, VariantTally


def times(variants: Sequence[Variant], tally: Tally, wall_ms: int | None) -> Times:
    """Return each variant's times, beside what the run took (`wall_ms`)."""
    ids = [variant.variant_id for variant in variants]
    return Times(wall_ms, tuple(_variant_times(id_, tally.variants[id_]) for id_ in ids))


def wall_ms(run: RunInfo) -> int | None:
    """Return the milliseconds from a run's creation to its completion; None until then."""
    if run.status is not RunStatus.COMPLETED or run.ended_at is None:
        return None
    elapsed = clock.parse(run.ended_at) - clock.parse(run.created_at)
    return round(elapsed.total_seconds() * 1000)


def _variant_times(variant_id: str, tally: VariantTally) -> VariantTimes:
    phases = {name: _spread(tally.times[name]) for name in PHASES}
    return VariantTimes(variant_id, _spread(tally.times["trial"]), phases)


def _spread(durations: Sequence[int]) -> Spread | None:
    """Return the sum and quartiles of some durations; None where there are none."""
    values = sorted(durations)
    if not values:
        return None
    first, median, third = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return Spread(
        trials=len(values),
        sum=sum(values),
        mean=math.fsum(values) / len(values),
        min=values[0],
        q1=first,
        median=median,
        q3=third,
        max=values[-1],
    )


def metrics(
    variants: Sequence[Variant], tally: Tally, reported: Iterable[tuple[str, str, float]]
) -> tuple[Metric, ...]:
    """Return each numeric metric by variant; `reported` are metric id, variant and value."""
    # Arrays take eight bytes a value, of which a large run has millions.
    values: dict[str, dict[str, array[float]]] = defaultdict(lambda: defaultdict(_doubles))
    for metric_id, variant_id, value in reported:
        if value >= 0 or metric_id not in USUAL_METRICS:
            values[metric_id][variant_id].append(value)
    return tuple(
        Metric(
            metric_id,
            tuple(
                _metric(v.variant_id, by_variant[v.variant_id], tally.variants[v.variant_id].ran)
                for v in variants
            ),
        )
        for metric_id, by_variant in sorted(values.items())
    )


def _doubles() -> array[float]:
    return array("d")


def _metric(variant_id: str, values: Sequence[float], ran: int) -> VariantMetric:
    total = math.fsum(values) if values else None
    return VariantMetric(
        variant_id=variant_id,
        known=len(values),
        unknown=max(0, ran - len(values)),
        sum=total,
        mean=None if total is None else total / len(values),
        median=statistics.median(values) if values else None,
    )


def adds_up(metric_id: str) -> bool:
    """Return whether a sum of the metric over trials is meaningful, as of tokens and money."""
    return metric_id in USUAL_METRICS


@dataclass(frozen=True, slots=True)
class VariantCost:
    """The mean cost of a variant's trials, with its pass rate."""

    variant_id: str
    pass_rate: Estimate | None
    cost: float | None
    """The mean cost of a trial, in USD."""
    tokens: float | None
    """The mean tokens of a trial, in and out."""
    cost_of_pass: float | None
    """The cost of a trial divided by the pass rate, in USD."""


def cost_and_quality(
    variants: Sequence[VariantOutcomes], reported: Sequence[Metric]
) -> list[VariantCost]:
    """Return each variant's cost with its pass rate; an empty list if no cost is known."""
    means = {
        metric.metric_id: {variant.variant_id: variant.mean for variant in metric.variants}
        for metric in reported
        if adds_up(metric.metric_id)
    }
    return [_variant_cost(variant, means) for variant in variants] if means else []


def _variant_cost(
    variant: VariantOutcomes, means: Mapping[str, Mapping[str, float | None]]
) -> VariantCost:
    name, rate = variant.variant_id, variant.pass_rate
    share = rate.value if rate else 0
    cost = means.get("cost_usd", {}).get(name)
    known = [means.get(metric_id, {}).get(name) for metric_id in ("tokens_in", "tokens_out")]
    tokens = [mean for mean in known if mean is not None]
    return VariantCost(
        variant_id=name,
        pass_rate=rate,
        cost=cost,
        tokens=math.fsum(tokens) if tokens else None,
        cost_of_pass=cost / share if cost is not None and share else None,
    )
