"""Draw a chart: a Vega-Lite specification becomes SVG, whose colours the page's CSS decides.

A chart is drawn for a wide and for a narrow page, so that its letters keep their size on a phone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
"""The width for a variant's name, the entries in a row of the legend, and about how many ticks."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, drawn for each width."""

    drawings: Mapping[str, str]
    """SVG, by the name of the width."""
    text_alternative: str
    """What the chart shows, for screen readers."""


def draw(
    layers: Sequence[JsonObject], text_alternative: str, *, named_by_legend: bool = False
) -> Chart:
    """Draw layers at both widths, each layer on top of the one before.

    Variants are named along the vertical axis or, where `named_by_legend` is set, in a legend with
    enough space for names.
    """
    drawings = {name: _draw_svg(layers, name, named_by_legend) for name in WIDTHS}
    return Chart(drawings, text_alternative)


def _draw_svg(layers: Sequence[JsonObject], width: str, named_by_legend: bool) -> str:
    import vl_convert

    limit, columns, ticks = _SIZES[width]
    axis_y = {"labelLimit": limit, "minExtent": limit if limit < 100 else 0}
    legend = {"columns": columns}
    if named_by_legend:
        columns = columns // 3 or 1
        # Browsers draw letters wider than vl_convert measures them: a quarter is left free.
        legend = {"columns": columns, "labelLimit": 3 * WIDTHS[width] // (4 * columns) - 30}
        legend["columnPadding"] = WIDTHS[width] // (8 * columns)
        axis_y = {}
    config = {
        **_CONFIG,
        "axisY": {**_CONFIG["axisY"], **axis_y},
        "axisX": {"tickCount": ticks, "titleLimit": WIDTHS[width] - limit - 36},
        "legend": {**_CONFIG["legend"], **legend},
    }
    spec: JsonObject = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": WIDTHS[width],
        "height": {"step": 34},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 22, "right": 6, "top": 2, "bottom": 2},
        "config": {**config, "aria": False},
        "layer": list(layers),
    }
    return _tidied(vl_convert.vegalite_to_svg(spec))


def _tidied(svg: str) -> str:
    """Return SVG for embedding: without namespaces and classes, and hidden from screen readers."""
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"| class="[^"]*"', "", svg)
    return svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
