"""The page's charts, as Vega-Lite layers. What a chart shows is in a table beside it, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from labledger.records import JsonObject
from labledger.report import errors_and_flaky_tasks
from labledger.report.figures import counted
from labledger.report.page.chart_drawing import Chart, draw

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
    "agent failed": "var(--agent-failed)",
    "no score": "var(--unscored)",
    "not committed": "var(--open)",
}
PHASES = {"setup": "var(--some)", "agent": "var(--accent)", "grader": "var(--error)"}

_SIGNED = "(datum.value > 0 ? '+' : datum.value < 0 ? '−' : '') + abs(datum.value)"


def _names(variants: Sequence[JsonObject]) -> JsonObject:
    """The axis of variants, in the order of the experiment."""
    order = [variant["variant_id"] for variant in variants]
    return {"field": "variant", "type": "nominal", "sort": order, "title": None}


def _colours(colours: Mapping[str, str], shown: Sequence[str]) -> JsonObject:
    return {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": list(shown), "range": [colours[kind] for kind in shown]},
    }


def rates(variants: Sequence[JsonObject]) -> Chart:
    """The pass rate of each variant and its interval."""
    values = [
        {"variant": variant["variant_id"], **variant["pass_rate"]}
        for variant in variants
        if variant["pass_rate"]
    ]
    x = {"type": "quantitative", "scale": {"domain": [0, 1]}, "title": "pass rate"}
    axis = {"axis": {"format": "%"}}
    return draw(_intervals(values, {**x, **axis}, _names(variants)), "Pass rate by variant.")


def differences(comparison: JsonObject, labels: Sequence[str], title: str) -> Chart:
    """The difference of each comparison and its interval, in points; 0 is marked."""
    values = [
        {"variant": label, **{k: None if v is None else 100 * v for k, v in found.items()}}
        for label, one in zip(labels, comparison["comparisons"], strict=True)
        if (found := one["difference"]) is not None
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
    zero = {
        "data": {"values": [{"value": 0}]},
        "mark": {"type": "rule", "color": "currentColor", "strokeDash": [3, 3]},
        "encoding": {"x": {"field": "value", **x}},
    }
    y = {"field": "variant", "type": "nominal", "sort": list(labels), "title": None}
    return draw([zero, *_intervals(values, x, y)], "Paired differences.")


def _intervals(values: Sequence[JsonObject], x: JsonObject, y: JsonObject) -> list[JsonObject]:
    data = {"values": list(values)}
    known = {"values": [row for row in values if row["low"] is not None]}
    colour = "var(--accent)"
    return [
        {
            "data": known,
            "mark": {"type": "rule", "strokeWidth": 6, "color": colour, "opacity": 0.35},
            "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, "y": y},
        },
        {
            "data": data,
            "mark": {"type": "point", "filled": True, "size": 130, "color": colour, "opacity": 1},
            "encoding": {"x": {"field": "value", **x}, "y": y},
        },
    ]


def verdicts(variants: Sequence[JsonObject]) -> Chart:
    """All slots of each variant by what became of them."""
    values = [
        {"variant": variant["variant_id"], "kind": kind, "slots": count, "order": order}
        for variant in variants
        for order, (kind, count) in enumerate(outcome_counts(variant).items())
        if count
    ]
    shown = [kind for kind in OUTCOMES if any(row["kind"] == kind for row in values)]
    bars = {
        "data": {"values": values},
        "mark": {"type": "bar", "height": 18},
        "encoding": {
            "x": {
                "field": "slots",
                "type": "quantitative",
                "title": "slots",
                "axis": {"format": ",d", "tickMinStep": 1},
            },
            "y": _names(variants),
            "color": _colours(OUTCOMES, shown),
            "order": {"field": "order"},
        },
    }
    return draw([bars], "Slots by variant and outcome.")


def outcome_counts(variant: JsonObject) -> dict[str, int]:
    """A variant's slots by what became of them; together they are all that were scheduled.

    `agent failed` are slots without a verdict: they did not pass. `no score` are those that the
    pass rate leaves out.
    """
    return {
        **variant["verdicts"],
        "agent failed": variant["agent_failed"],
        "no score": variant["committed"] - variant["scored"] - variant["agent_failed"],
        "not committed": variant["scheduled"] - variant["committed"],
    }


def heat(tasks: Sequence[JsonObject], variants: Sequence[JsonObject]) -> Chart:
    """All tasks from the hardest to the easiest, side by side; equal neighbours are one shape."""
    values: list[JsonObject] = []
    for number, variant in enumerate(variants):
        kinds = enumerate(kind_of(task["cells"][number]) for task in tasks)
        for kind, run in groupby(kinds, key=lambda item: item[1]):
            places = [place for place, _ in run]
            values.append(
                {
                    "variant": variant["variant_id"],
                    "kind": kind,
                    "start": places[0],
                    "end": places[-1] + 1,
                }
            )
    shown = [kind for kind in CELL_COLOURS if any(row["kind"] == kind for row in values)]
    x: JsonObject = {
        "field": "start",
        "type": "quantitative",
        "scale": {"domain": [0, len(tasks)], "nice": False},
        "title": f"{counted(len(tasks), 'task')}, the hardest first",
        "axis": {"labels": False, "grid": False},
    }
    cells = {
        "data": {"values": values},
        "mark": {"type": "bar", "height": {"band": 0.88}},
        "encoding": {
            "x": x,
            "x2": {"field": "end"},
            "y": _names(variants),
            "color": _colours(CELL_COLOURS, shown),
        },
    }
    return draw([cells], "Tasks by variant, the hardest first.")


def kind_of(cell: JsonObject) -> str:
    """What became of a task with a variant, in two words."""
    share = errors_and_flaky_tasks.cell_share(cell)
    if share is None:
        return UNSCORED if cell["committed"] else OPEN
    return PASS if share == 1 else SOME if share else FAIL


def overview_order(tasks: Sequence[JsonObject]) -> list[JsonObject]:
    """The hardest first; tasks that are equally hard beside their like."""
    kinds = list(CELL_COLOURS)

    def likeness(task: JsonObject) -> tuple[Any, ...]:
        share = errors_and_flaky_tasks.share(task)
        cells = tuple(kinds.index(kind_of(cell)) for cell in task["cells"])
        return (2.0 if share is None else share, cells, task["task_id"])

    return sorted(tasks, key=likeness)


def durations(variants: Sequence[JsonObject]) -> Chart:
    """How long trials took: all but the extremes as a bar, the middle half thicker, the median."""
    values = [
        {"variant": found["variant_id"], **{k: v / 1000 for k, v in found["trial"].items()}}
        for found in variants
        if found["trial"] is not None
    ]
    x: JsonObject = {
        "type": "quantitative",
        "title": "seconds a trial",
        "scale": {"zero": True},
    }
    y, data, colour = _names(variants), {"values": values}, "var(--accent)"
    return draw(
        [
            {
                "data": data,
                "mark": {"type": "rule", "strokeWidth": 2, "color": colour},
                "encoding": {"x": {"field": "min", **x}, "x2": {"field": "max"}, "y": y},
            },
            {
                "data": data,
                "mark": {"type": "bar", "height": 14, "color": colour, "opacity": 1},
                "encoding": {"x": {"field": "q1", **x}, "x2": {"field": "q3"}, "y": y},
            },
            {
                "data": data,
                "mark": {"type": "tick", "thickness": 3, "size": 22, "color": "currentColor"},
                "encoding": {"x": {"field": "median", **x}, "y": y},
            },
        ],
        "Durations of trials by variant.",
    )


def cost_against_quality(worth: Sequence[JsonObject]) -> Chart | None:
    """The pass rate of each variant and its interval over what a trial costs, or its tokens."""
    key = "cost" if any(one["cost"] is not None for one in worth) else "tokens"
    values = [
        {"variant": one["variant_id"], "spent": one[key], **one["pass_rate"]}
        for one in worth
        if one[key] is not None and one["pass_rate"]
    ]
    if len(values) < 2:
        return None
    title = "mean cost of a trial, USD" if key == "cost" else "mean tokens of a trial"
    x = {"field": "spent", "type": "quantitative", "title": title, "scale": {"zero": True}}
    x |= {"axis": {"labelFlush": False}}
    y = {"type": "quantitative", "scale": {"domain": [0, 1]}, "title": "pass rate"}
    y |= {"axis": {"format": "%"}}
    colour = {"field": "variant", "type": "nominal", "sort": [row["variant"] for row in values]}
    known = [row for row in values if row["low"] is not None]
    return draw(
        [
            {
                "data": {"values": known},
                "mark": {"type": "rule", "strokeWidth": 6, "opacity": 0.35},
                "encoding": {
                    "x": x,
                    "y": {"field": "low", **y},
                    "y2": {"field": "high"},
                    "color": colour,
                },
            },
            {
                "data": {"values": values},
                "mark": {"type": "point", "filled": True, "size": 130, "opacity": 1},
                "encoding": {"x": x, "y": {"field": "value", **y}, "color": colour},
            },
        ],
        "Pass rate over cost by variant.",
        named_by_legend=True,
    )


def phases(variants: Sequence[JsonObject]) -> Chart:
    """The mean time of each phase, one after the other."""
    values = [
        {
            "variant": found["variant_id"],
            "kind": name,
            "seconds": found["phases"][name]["mean"] / 1000,
            "order": order,
        }
        for found in variants
        for order, name in enumerate(PHASES)
        if found["phases"][name] is not None
    ]
    shown = [name for name in PHASES if any(row["kind"] == name for row in values)]
    bars = {
        "data": {"values": values},
        "mark": {"type": "bar", "height": 18},
        "encoding": {
            "x": {
                "field": "seconds",
                "type": "quantitative",
                "title": "mean seconds by phase",
            },
            "y": _names(variants),
            "color": _colours(PHASES, shown),
            "order": {"field": "order"},
        },
    }
    return draw([bars], "Mean time by variant and phase.")
