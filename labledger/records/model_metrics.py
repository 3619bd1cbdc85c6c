"""The metrics of an attempt that its calls to models give, and how they stand beside its own.

Where the gateway counted, it alone says what an attempt used: `cost_usd`, `tokens_in` and
`tokens_out` are its metrics. What the experiment takes under these names from the agent's result or
events is the agent's claim, and is stored as `claimed_cost_usd` and so on, so that budgets, views
and comparisons never mistake one for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from labledger.records.attempt_result import Metric
from labledger.records.model_calls import ModelCall
from labledger.records.model_prices import PICODOLLARS, PriceTable

SOURCE = "gateway"
"""The `source` of metrics that the gateway counted."""
USUAL_METRICS = ("tokens_in", "tokens_out", "cost_usd")
"""Metrics that mean the same in every experiment; the gateway counts them where there is one."""
CLAIMED = "claimed_"
"""With this the id of a metric begins that the gateway counts, and that is taken elsewhere too."""


def model_metrics(calls: Sequence[ModelCall], prices: PriceTable) -> tuple[Metric, ...]:
    """Return what an attempt used: the tokens of its requests and answers, and their cost in USD.

    Tokens are known if those of every call are, and the cost if every call's cost is; an unknown
    one gives no metric. An attempt without a call used nothing.
    """
    metrics = []
    charged = [call.charged for call in calls]
    known = [usage for usage in charged if usage is not None]
    if len(known) == len(charged):
        metrics.append(Metric("tokens_in", SOURCE, sum(usage.request for usage in known)))
        metrics.append(Metric("tokens_out", SOURCE, sum(usage.output for usage in known)))
    cost, is_complete = known_cost(calls, prices)
    if is_complete:
        metrics.append(Metric("cost_usd", SOURCE, cost / PICODOLLARS))
    return tuple(metrics)


def known_cost(calls: Iterable[ModelCall], prices: PriceTable) -> tuple[int, bool]:
    """Return what the calls cost in picodollars as far as it is known, and whether all of it is."""
    total, is_complete = 0, True
    for call in calls:
        cost = call_cost(call, prices)
        total += cost or 0
        is_complete &= cost is not None
    return total, is_complete


def call_cost(call: ModelCall, prices: PriceTable) -> int | None:
    """Return what a call cost in picodollars; None if that is not known. A replayed one cost 0."""
    if call.replayed:
        return 0
    usage = call.charged
    return None if usage is None else prices.cost_of(call.provider, call.model, usage)


def beside_counted(own: Iterable[Metric], counted: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics of an attempt whose calls the gateway counted: its own, then `counted`.

    Its own metrics under the names of `USUAL_METRICS` become claims.
    """
    claims = (
        replace(metric, metric_id=CLAIMED + metric.metric_id)
        if metric.metric_id in USUAL_METRICS
        else metric
        for metric in own
    )
    return (*claims, *counted)
