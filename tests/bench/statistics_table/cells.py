"""Run cells, and store their counts: one line per cell, in the order of the grid."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from bench.statistics_table.designs import Cell, grid
from bench.statistics_table.outputs import SIMULATIONS
from bench.statistics_table.tallies import Counts

PATH = Path(__file__).parents[3] / "docs/reference/statistics_cells.json"


@dataclass(frozen=True, slots=True)
class Result:
    """The counts of a cell, and the number of draws."""

    draws: int
    counts: Counts


Results = Mapping[str, Result]
"""By the name of the cell."""


def simulated(cell: Cell) -> tuple[str, Result]:
    """Return the cell's name and counts. They depend only on the name and the number of draws."""
    return cell.name, Result(cell.draws, SIMULATIONS[cell.output](cell).counts)


def read() -> Results:
    """Return the stored results, or none without a file."""
    if not PATH.exists():
        return {}
    stored = json.loads(PATH.read_text("utf-8"))
    return {
        name: Result(draws, {figure: (hits, of) for figure, (hits, of) in counts.items()})
        for name, (draws, counts) in stored.items()
    }


def write(results: Results) -> None:
    """Store the results of the grid's cells, all at once. Other results are left out."""
    lines = []
    for cell in grid():
        if (result := results.get(cell.name)) is not None:
            value = json.dumps([result.draws, result.counts])
            lines.append(f"{json.dumps(cell.name)}: {value}")
    whole = PATH.with_suffix(".part")
    whole.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    whole.replace(PATH)


def selected(patterns: Sequence[str], draws: int | None) -> Iterator[Cell]:
    """Yield the grid's cells that a pattern such as `pair:*` names; all without patterns."""
    for cell in grid():
        if not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns):
            yield cell if draws is None else replace(cell, draws=draws)


def run(cells: Sequence[Cell], workers: int) -> None:
    """Run cells and store each result as it arrives."""
    results = dict(read())
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for number, (name, result) in enumerate(pool.imap_unordered(simulated, cells), 1):
            results[name] = result
            print(f"{number} of {len(cells)}: {name}", flush=True)
            if number % 5 == 0:
                write(results)
    write(results)
