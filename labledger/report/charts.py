"""Build the page's charts as Vega-Lite layers: rates, differences, heat map, durations, cost.

A table beside each chart has the same numbers. `chart_drawing` turns layers into SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from labledger.compare.comparison_document import Comparison
from labledger.records import JsonObject
from labledger.records.json_codec import to_json
from labledger.report.chart_drawing import Chart, layered
from labledger.report.report_document import Cell, TaskOutcomes, VariantOutcomes, VariantTimes
from labledger.report.time_and_metrics import VariantCost
from labledger.text.words import counted

PASS, SOME, FAIL = "all passed", "some passed", "none passed"
UNSCORED, OPEN = "no score", "not run"
CELL_COLOURS = {
    PASS: "var(--pass)",
    SOME: "var(--some)",
    FAIL: "var(--fail)",
    UNSCORED: "var(--unscored)",
    OPEN: "var(--open)",
}
OUTCOMES = {
    "pass": "var(--pass)",
    "fail": "var(--fail)",
    "missing": "var(--missing)",
    "error": "var(--error)",
    "failed, no verdict": "var(--agent-failed)",
    "left out": "var(--unscored)",
    "not saved": "var(--open)",
}
_ACCENT = "var(--accent)"
PHASES = {"setup": "var(--some)", "agent": _ACCENT, "grader": "var(--error)"}

_RATE: JsonObject = {
    "type": "quantitative",
    "scale": {"domain": [0, 1]},
    "title": "pass rate",
    "axis": {"format": "%"},
}
"""An axis of pass rates."""
_SIGNED = "(datum.value > 0 ? '+' : datum.value < 0 ? '−' : '') + abs(datum.value)"


def _names(variants: Sequence[VariantOutcomes] | Sequence[VariantTimes]) -> JsonObject:
    """Return the axis of variants, in the order of the experiment."""
    order = [variant.variant_id for variant in variants]
    return {"field": "variant", "type": "nominal", "sort": order, "title": None}


def _layer(values: Sequence[JsonObject], mark: JsonObject, **encoding: JsonObject) -> JsonObject:
    return {"data": {"values": list(values)}, "mark": mark, "encoding": encoding}


def _colours(colours: Mapping[str, str], values: Sequence[JsonObject]) -> JsonObject:
    """Return the colour encoding for the kinds that occur in the values."""
    shown = [kind for kind in colours if any(row["kind"] == kind for row in values)]
    return {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": shown, "range": [colours[kind] for kind in shown]},
    }


def _stacked_bars(
    values: Sequence[JsonObject], x: JsonObject, y: JsonObject, colours: Mapping[str, str]
) -> JsonObject:
    """Return bars whose parts are values of several kinds, in the order of the values."""
    return _layer(
        values,
        {"type": "bar", "height": 18},
        x={"type": "quantitative", **x},
        y=y,
        color=_colours(colours, values),
        order={"field": "order"},
    )


def rates(variants: Sequence[VariantOutcomes]) -> Chart:
    """Draw the pass rate of each variant and its interval."""
    values = [
        {"variant": variant.variant_id, **to_json(variant.pass_rate)}
        for variant in variants
        if variant.pass_rate is not None
    ]
    return layered(_intervals(values, _RATE, _names(variants)), "Pass rate by variant.")


def differences(document: Comparison, labels: Sequence[str], title: str) -> Chart:
    """Draw the difference of each comparison and its interval, in points; 0 is marked."""
    values = [
        {"variant": label, **{k: None if v is None else 100 * v for k, v in to_json(shown).items()}}
        for label, compared in zip(labels, document.comparisons, strict=True)
        if (shown := compared.difference) is not None
    ]
    largest = max(
        (abs(v) for row in values for v in row.values() if isinstance(v, float)), default=0
    )
    reach = max(10, 10 * -(-largest // 10))
    x = {
        "type": "quantitative",
        "scale": {"domain": [-reach, reach]},
        "title": title,
        "axis": {"labelExpr": _SIGNED},
    }
    mark = {"type": "rule", "color": "currentColor", "strokeDash": [3, 3]}
    zero = _layer([{"value": 0}], mark, x={"field": "value", **x})
    y = {"field": "variant", "type": "nominal", "sort": list(labels), "title": None}
    return layered([zero, *_intervals(values, x, y)], "Paired differences.")


def _intervals(values: Sequence[JsonObject], x: JsonObject, y: JsonObject) -> list[JsonObject]:
    with_interval = [row for row in values if row["low"] is not None]
    line = {"type": "rule", "strokeWidth": 6, "color": _ACCENT, "opacity": 0.35}
    point = {"type": "point", "filled": True, "size": 130, "color": _ACCENT, "opacity": 1}
    return [
        _layer(with_interval, line, x={"field": "low", **x}, x2={"field": "high"}, y=y),
        _layer(values, point, x={"field": "value", **x}, y=y),
    ]


def verdicts(variants: Sequence[VariantOutcomes]) -> Chart:
    """Draw all trials of each variant by outcome."""
    values = [
        {"variant": variant.variant_id, "kind": kind, "trials": count, "order": order}
        for variant in variants
        for order, (kind, count) in enumerate(outcome_counts(variant).items())
        if count
    ]
    x = {"field": "trials", "title": "trials", "axis": {"format": ",d", "tickMinStep": 1}}
    bars = _stacked_bars(values, x, _names(variants), OUTCOMES)
    return layered([bars], "Trials by variant and outcome.")


def outcome_counts(variant: VariantOutcomes) -> dict[str, int]:
    """Count a variant's scheduled trials by outcome.

    `failed, no verdict` are trials whose agent failed or broke its grader: they did not pass.
    `left out` are trials that the pass rate leaves out.
    """
    return {
        **variant.verdicts,
        "failed, no verdict": variant.agent_failed,
        "left out": variant.committed - variant.scored - variant.agent_failed,
        "not saved": variant.scheduled - variant.committed,
    }


def heat(tasks: Sequence[TaskOutcomes], variants: Sequence[VariantOutcomes]) -> Chart:
    """Draw the heat map of all tasks, the hardest first. Equal neighbours are one shape."""
    values: list[JsonObject] = []
    for number, variant in enumerate(variants):
        kinds = enumerate(cell_outcome(task.cells[number]) for task in tasks)
        for kind, neighbours in groupby(kinds, key=lambda item: item[1]):
            positions = [position for position, _ in neighbours]
            start, end = positions[0], positions[-1] + 1
            values.append({"variant": variant.variant_id, "kind": kind, "start": start, "end": end})
    x: JsonObject = {
        "field": "start",
        "type": "quantitative",
        "scale": {"domain": [0, len(tasks)], "nice": False},
        "title": f"{counted(len(tasks), 'task')}, the hardest first",
        "axis": {"labels": False, "grid": False},
    }
    cells = _layer(
        values,
        {"type": "bar", "height": {"band": 0.88}},
        x=x,
        x2={"field": "end"},
        y=_names(variants),
        color=_colours(CELL_COLOURS, values),
    )
    return layered([cells], "Tasks by variant, the hardest first.")


def cell_outcome(cell: Cell) -> str:
    """Return the outcome of a task with a variant: a key of `CELL_COLOURS`."""
    share = cell.share
    if share is None:
        return UNSCORED if cell.committed else OPEN
    return PASS if share == 1 else SOME if share else FAIL


def overview_order(tasks: Sequence[TaskOutcomes]) -> list[TaskOutcomes]:
    """Return tasks with the hardest first. Equally hard tasks are ordered by their outcomes."""
    kinds = list(CELL_COLOURS)

    @lru_cache(maxsize=1024)
    def kinds_of(cells: Sequence[Cell]) -> tuple[int, ...]:
        return tuple(kinds.index(cell_outcome(cell)) for cell in cells)

    def rank(task: TaskOutcomes) -> tuple[Any, ...]:
        share = task.share
        return (2.0 if share is None else share, kinds_of(task.cells), task.task_id)

    return sorted(tasks, key=rank)


def durations(variants: Sequence[VariantTimes]) -> Chart:
    """Draw the durations of trials: a line from shortest to longest, quartiles and median."""
    values = [
        {"variant": variant.variant_id, **{k: v / 1000 for k, v in to_json(variant.trial).items()}}
        for variant in variants
        if variant.trial is not None
    ]
    x = {"type": "quantitative", "title": "seconds a trial", "scale": {"zero": True}}
    y = _names(variants)
    line = {"type": "rule", "strokeWidth": 2, "color": _ACCENT}
    bar = {"type": "bar", "height": 14, "color": _ACCENT, "opacity": 1}
    tick = {"type": "tick", "thickness": 3, "size": 22, "color": "currentColor"}
    layers = [
        _layer(values, line, x={"field": "min", **x}, x2={"field": "max"}, y=y),
        _layer(values, bar, x={"field": "q1", **x}, x2={"field": "q3"}, y=y),
        _layer(values, tick, x={"field": "median", **x}, y=y),
    ]
    return layered(layers, "Durations of trials by variant.")


def cost_against_quality(worth: Sequence[VariantCost]) -> Chart | None:
    """Draw the pass rate of each variant over a trial's cost, or its tokens, with both intervals.

    Returns None if fewer than two variants have both.
    """
    key = "cost" if any(variant.cost is not None for variant in worth) else "tokens"
    values = []
    for variant in worth:
        spent, bounds = getattr(variant, key), getattr(variant, f"{key}_bounds")
        if spent is not None and variant.pass_rate is not None:
            row = {"variant": variant.variant_id, "spent": spent}
            row |= dict(zip(("least", "most"), bounds or (None, None), strict=True))
            values.append(row | to_json(variant.pass_rate))
    if len(values) < 2:
        return None
    title = "mean cost of a trial, USD" if key == "cost" else "mean tokens of a trial"
    x = {"field": "spent", "type": "quantitative", "title": title, "scale": {"zero": True}}
    x |= {"axis": {"labelFlush": False}}
    y = {"field": "value", **_RATE}
    color = {"field": "variant", "type": "nominal", "sort": [row["variant"] for row in values]}
    with_interval = [row for row in values if row["low"] is not None]
    spans = [row for row in values if row["least"] is not None]
    line = {"type": "rule", "strokeWidth": 6, "opacity": 0.35}
    point = {"type": "point", "filled": True, "size": 130, "opacity": 1}
    least, most = {**x, "field": "least"}, {"field": "most"}
    layers = [
        _layer(
            with_interval, line, x=x, y={**y, "field": "low"}, y2={"field": "high"}, color=color
        ),
        _layer(spans, line, x=least, x2=most, y=y, color=color),
        _layer(values, point, x=x, y=y, color=color),
    ]
    shown = "Pass rate over cost by variant, with the intervals of both."
    return layered(layers, shown, named_by_legend=True)


def phases(variants: Sequence[VariantTimes]) -> Chart:
    """Draw the mean time of each phase; a bar's parts follow the order of the phases."""
    values = [
        {
            "variant": variant.variant_id,
            "kind": name,
            "seconds": spread.mean / 1000,
            "order": order,
        }
        for variant in variants
        for order, name in enumerate(PHASES)
        if (spread := variant.phases[name]) is not None
    ]
    x = {"field": "seconds", "title": "mean seconds by phase"}
    bars = _stacked_bars(values, x, _names(variants), PHASES)
    return layered([bars], "Mean time by variant and phase.")
