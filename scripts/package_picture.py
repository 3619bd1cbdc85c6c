#!/usr/bin/env python3
"""Draw docs/images/packages.svg: the packages of labledger, and which imports which.

    python scripts/package_picture.py            write the picture
    python scripts/package_picture.py --print    print it instead

A package is drawn above all that it imports, without the arrows that other arrows imply. The colors
are the parts of ARCHITECTURE.md. Modules outside packages are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean

import grimp

PROJECT = Path(__file__).parents[1]
TARGET = PROJECT / "docs/images/packages.svg"

BOX_WIDTH, BOX_HEIGHT = 116, 32
COLUMN, ROW = 136, 66
"""The least distance between the centers of two boxes in a row, and between two rows."""
MARGIN = 12
LEGEND_HEIGHT = 34
ROUNDS = 24
"""How often rows are ordered and positions averaged. More changes nothing for twenty boxes."""
PART_COLORS = ("#fdeeda", "#e6f4e6", "#e4edfb", "#f1f1f1")

Arrows = Mapping[str, frozenset[str]]
"""The packages that each package imports, by name."""


def main() -> None:
    picture = "\n".join(svg(essential_arrows(imports_among_packages()))) + "\n"
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(picture)
    else:
        TARGET.write_text(picture, "utf-8")


# -- what is drawn


def imports_among_packages() -> Arrows:
    """Return the imports among the packages directly below `labledger`.

    The command line imports the names of `labledger` itself, which `api` defines.
    """
    graph = grimp.build_graph("labledger", cache_dir=None)
    packages = {
        module
        for module in graph.find_children("labledger")
        if module.removeprefix("labledger.") != "__main__" and graph.find_children(module)
    }
    imports = {_short(package): set[str]() for package in packages}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            above, below = _package(importer), _package(imported)
            if above == "cli" and imported == "labledger":
                below = "api"
            if above in imports and below in imports and above != below:
                imports[above].add(below)
    return {above: frozenset(below) for above, below in imports.items()}


def _package(module: str) -> str:
    """Return the name of the package or module directly below `labledger` that holds a module."""
    return _short(".".join(module.split(".")[:2]))


def _short(module: str) -> str:
    return module.removeprefix("labledger.")


def essential_arrows(imports: Arrows) -> Arrows:
    """Return the transitive reduction: leave out an import if other imports lead to the package.

    Raises `RecursionError` if packages import each other, which `lint-imports` refuses.
    """
    return {
        above: frozenset(
            below
            for below in direct
            if not any(below in _reachable(imports, other) for other in direct - {below})
        )
        for above, direct in imports.items()
    }


def _reachable(imports: Arrows, package: str) -> frozenset[str]:
    direct = imports[package]
    return direct.union(*(_reachable(imports, other) for other in direct))


# -- where it is drawn


@dataclass(frozen=True, order=True)
class Place:
    """A box, or a point of an arrow in a row that it passes."""

    row: int
    name: str
    """The package of a box, or both ends of a point's arrow."""


def row_of(arrows: Arrows, package: str) -> int:
    """Return the row of a package, counted from the bottom: as low as its imports allow."""
    return 1 + max((row_of(arrows, below) for below in arrows[package]), default=-1)


def lines_of(arrows: Arrows) -> list[list[Place]]:
    """Return the places that each arrow passes, from its upper end to its lower end."""
    lines = []
    for above in sorted(arrows):
        for below in sorted(arrows[above]):
            top, bottom = row_of(arrows, above), row_of(arrows, below)
            points = [Place(row, f"{above} {below}") for row in range(top - 1, bottom, -1)]
            lines.append([Place(top, above), *points, Place(bottom, below)])
    return lines


def ordered_rows(boxes: Iterable[Place], lines: list[list[Place]]) -> list[list[Place]]:
    """Return the places of each row from left to right, with few arrows that cross."""
    places = sorted({*boxes, *(place for line in lines for place in line)})
    rows = [[place for place in places if place.row == row] for row in range(places[-1].row + 1)]
    best, fewest = rows, crossings(rows, lines)
    for turn in range(ROUNDS):
        rows = reordered(rows, lines, upwards=turn % 2 == 0)
        count = crossings(rows, lines)
        if count < fewest:
            best, fewest = rows, count
    return best


def reordered(
    rows: list[list[Place]], lines: list[list[Place]], *, upwards: bool
) -> list[list[Place]]:
    """Return the rows, each ordered by where its arrows lead in the row before."""
    position = {place: index / len(row) for row in rows for index, place in enumerate(row)}
    ordered: list[list[Place]] = []
    for row in rows if upwards else reversed(rows):
        nexts = {place: neighbours(place, lines, below=upwards) for place in row}
        mean = {
            place: fmean(position[other] for other in others) if others else position[place]
            for place, others in nexts.items()
        }
        row = sorted(row, key=lambda place: (mean[place], place.name))
        position.update({place: index / len(row) for index, place in enumerate(row)})
        ordered.append(row)
    return ordered if upwards else ordered[::-1]


def neighbours(place: Place, lines: list[list[Place]], *, below: bool) -> list[Place]:
    """Return the places of the next row, below or above, that an arrow connects with `place`."""
    steps = [step for line in lines for step in pairwise(line)]
    if below:
        return [lower for upper, lower in steps if upper == place]
    return [upper for upper, lower in steps if lower == place]


def crossings(rows: list[list[Place]], lines: list[list[Place]]) -> int:
    """Count the pairs of arrows that cross between two rows."""
    index = {place: number for row in rows for number, place in enumerate(row)}
    steps = {step for line in lines for step in pairwise(line)}
    return sum(
        (index[a] - index[c]) * (index[b] - index[d]) < 0
        for (a, b), (c, d) in combinations(steps, 2)
        if a.row == c.row
    )


def positions(rows: list[list[Place]], lines: list[list[Place]]) -> dict[Place, int]:
    """Return the horizontal position of each place, close to the places that arrows lead to."""
    x = {
        place: (index - (len(row) - 1) / 2) * COLUMN
        for row in rows
        for index, place in enumerate(row)
    }
    for turn in range(ROUNDS):
        below = turn % 2 == 0
        for row in rows if below else rows[::-1]:
            wanted = [
                fmean([x[other] for other in neighbours(place, lines, below=below)] or [x[place]])
                for place in row
            ]
            x.update(zip(row, spread(row, wanted), strict=True))
    left = min(x[place] - half_width(place) for place in x)
    return {place: round(value - left) + MARGIN for place, value in x.items()}


def spread(row: list[Place], wanted: list[float]) -> list[float]:
    """Return positions near `wanted`, in the order of the row and far enough apart."""
    from_left: list[float] = []
    from_right: list[float] = []
    for index, value in enumerate(wanted):
        least = from_left[-1] + gap(row[index - 1], row[index]) if from_left else value
        from_left.append(max(value, least))
    for index in range(len(row) - 1, -1, -1):
        most = from_right[-1] - gap(row[index], row[index + 1]) if from_right else wanted[index]
        from_right.append(min(wanted[index], most))
    return [(a + b) / 2 for a, b in zip(from_left, reversed(from_right), strict=True)]


def gap(left: Place, right: Place) -> float:
    return half_width(left) + half_width(right) + COLUMN - BOX_WIDTH


def half_width(place: Place) -> float:
    return 4 if " " in place.name else BOX_WIDTH / 2


# -- the drawing

HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" role="img" aria-labelledby="title">
<title id="title">The packages of labledger: arrows lead to what a package imports</title>
<style>
.background {{ fill: #ffffff }}
.box {{ stroke: #35527d; stroke-width: 1.2 }}
.arrow {{ fill: none; stroke: #6b7a90; stroke-width: 1.3; marker-end: url(#head) }}
text {{ font: 15px sans-serif; fill: #16233a; text-anchor: middle }}
.legend {{ font-size: 14px; text-anchor: start }}
</style>
<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto">
<path d="M0 0L8 4L0 8z" fill="#6b7a90"/>
</marker>
<rect class="background" width="{width}" height="{height}"/>"""


def svg(arrows: Arrows) -> Iterator[str]:
    """Yield the lines of the picture."""
    parts = parts_of_architecture()
    boxes = [Place(row_of(arrows, package), package) for package in sorted(arrows)]
    lines = lines_of(arrows)
    rows = ordered_rows(boxes, lines)
    x = positions(rows, lines)
    width = round(max(x[place] + half_width(place) for place in x)) + MARGIN
    bottom = (len(rows) - 1) * ROW + BOX_HEIGHT + 2 * MARGIN
    height = bottom + LEGEND_HEIGHT
    y = {place: bottom - MARGIN - BOX_HEIGHT // 2 - place.row * ROW for place in x}
    yield HEAD.format(width=width, height=height)
    for line in lines:
        yield f'<path class="arrow" d="{"".join(curve(line, x, y))}"/>'
    colors = {
        package: color
        for packages, color in zip(parts.values(), PART_COLORS, strict=True)
        for package in packages
    }
    for box in boxes:
        left, top = x[box] - BOX_WIDTH // 2, y[box] - BOX_HEIGHT // 2
        yield (
            f'<rect class="box" x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
            f'rx="6" fill="{colors[box.name]}"/>'
        )
        yield f'<text x="{x[box]}" y="{y[box] + 5}">{box.name}</text>'
    yield from legend(parts, bottom)
    yield "</svg>"


def parts_of_architecture() -> dict[str, list[str]]:
    """Return the packages of each part, by the headings of ARCHITECTURE.md."""
    page = (PROJECT / "ARCHITECTURE.md").read_text("utf-8")
    section = page.partition("## Packages\n")[2].partition("\n## ")[0]
    return {
        part.partition("\n")[0].partition(":")[0]: re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)
        for part in section.split("\n### ")[1:]
    }


def legend(parts: Iterable[str], top: int) -> Iterator[str]:
    """Yield the colors of the parts, with their names, in a line below the boxes."""
    left = MARGIN
    for part, color in zip(parts, PART_COLORS, strict=True):
        yield f'<rect class="box" x="{left}" y="{top}" width="18" height="18" fill="{color}"/>'
        yield f'<text class="legend" x="{left + 26}" y="{top + 14}">{part}</text>'
        left += 50 + 8 * len(part)


def curve(line: list[Place], x: Mapping[Place, int], y: Mapping[Place, int]) -> Iterator[str]:
    """Yield the path of an arrow from the foot of one box to the top of another."""
    half = BOX_HEIGHT // 2
    yield f"M{x[line[0]]} {y[line[0]] + half}"
    for upper, lower in pairwise(line):
        start, end = y[upper] + half, y[lower] - half
        middle = (start + end) // 2
        yield f"C{x[upper]} {middle} {x[lower]} {middle} {x[lower]} {end}"
        if lower is not line[-1]:
            yield f"V{y[lower] + half}"


if __name__ == "__main__":
    main()
