"""Draw Vega-Lite specifications as SVG, whose colours come from the page's CSS.

A chart is drawn for a wide and for a narrow page, so that its letters keep their size on a phone. A
separate process draws all charts of a page, because the library's JavaScript engine would keep
100 MB of this process until it ends.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from labledger.errors import LabLedgerError
from labledger.host_programs import code_command
from labledger.records import JsonObject

WIDTHS = {"wide": 920, "narrow": 346}

_CONFIG: JsonObject = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "labelFontSize": 13,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelPadding": 6,
        "gridColor": "var(--line)",
        "domain": False,
        "ticks": False,
    },
    "axisY": {"grid": False},
    "legend": {
        "labelColor": "currentColor",
        "labelFontSize": 13,
        "labelLimit": 200,
        "symbolType": "square",
        "symbolStrokeWidth": 0,
        "title": None,
        "orient": "top",
        "offset": 6,
        "columnPadding": 14,
    },
}
_SIZES = {"wide": (200, 6, 5), "narrow": (96, 2, 3)}
"""The width of a variant's name, the entries in a row of the legend, the approximate ticks."""


_PROGRAM = """
import json, sys, vl_convert
json.dump([vl_convert.vegalite_to_svg(chart) for chart in json.load(sys.stdin)], sys.stdout)
"""
_MESSAGE_CHARACTERS = 500

Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, to be drawn for each width."""

    specifications: Mapping[str, JsonObject]
    """Vega-Lite, by the name of the width."""
    text_alternative: str
    """A description of the chart for screen readers."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart that was drawn."""

    svg: Mapping[str, str]
    """By the name of the width."""
    text_alternative: str
    """The description of the chart for screen readers."""


def draw(charts: Mapping[Name, Chart | None]) -> dict[Name, Drawing | None]:
    """Draw some charts; None stays None. Raises `LabLedgerError`."""
    specifications = [
        specification
        for chart in charts.values()
        if chart
        for specification in chart.specifications.values()
    ]
    drawn = iter(draw_svg(specifications))
    return {
        name: None
        if chart is None
        else Drawing(
            {width: _tidied(next(drawn)) for width in chart.specifications}, chart.text_alternative
        )
        for name, chart in charts.items()
    }


def draw_svg(specifications: Sequence[JsonObject]) -> list[str]:
    try:
        done = subprocess.run(
            code_command(_PROGRAM),
            input=json.dumps(specifications).encode(),
            capture_output=True,
            check=True,
        )
    except OSError as error:
        raise LabLedgerError(f"could not draw the charts: {error}") from error
    except subprocess.CalledProcessError as error:
        last_words = error.stderr.decode(errors="replace").strip()[-_MESSAGE_CHARACTERS:]
        raise LabLedgerError(
            f"could not draw the charts: vl-convert ended with {error.returncode}: {last_words}"
        ) from error
    svg: list[str] = json.loads(done.stdout)
    return svg


def layered(
    layers: Sequence[JsonObject], text_alternative: str, *, named_by_legend: bool = False
) -> Chart:
    """Return a chart of layers, each on top of the one before.

    The vertical axis names the variants. With `named_by_legend`, a legend names them instead.
    """
    specifications = {name: _specification(layers, name, named_by_legend) for name in WIDTHS}
    return Chart(specifications, text_alternative)


def _specification(layers: Sequence[JsonObject], width: str, named_by_legend: bool) -> JsonObject:
    limit, columns, ticks = _SIZES[width]
    axis_y = {"labelLimit": limit, "minExtent": limit if limit < 100 else 0}
    legend = {"columns": columns}
    if named_by_legend:
        columns = columns // 3 or 1
        # Browsers draw letters wider than vl_convert measures them, so leave a quarter free.
        legend = {"columns": columns, "labelLimit": 3 * WIDTHS[width] // (4 * columns) - 30}
        legend["columnPadding"] = WIDTHS[width] // (8 * columns)
        axis_y = {}
    config = {
        **_CONFIG,
        "axisY": {**_CONFIG["axisY"], **axis_y},
        "axisX": {"tickCount": ticks, "titleLimit": WIDTHS[width] - limit - 36},
        "legend": {**_CONFIG["legend"], **legend},
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": WIDTHS[width],
        "height": {"step": 34},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 22, "right": 6, "top": 2, "bottom": 2},
        "config": {**config, "aria": False},
        "layer": list(layers),
    }


def _tidied(svg: str) -> str:
    """Return SVG for embedding: without namespaces and classes, and hidden from screen readers."""
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"| class="[^"]*"', "", svg)
    return svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
