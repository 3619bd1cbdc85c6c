"""Simulate cells of the table, and write its page.

    scripts/simulate-statistics table                     missing cells, or cells with fewer draws
    scripts/simulate-statistics table 'pair:50x3:*'       these cells, again
    scripts/simulate-statistics table --draws 4000 …      with more draws; stored with their number
    scripts/simulate-statistics table --page              only the page, from the stored counts

The counts are stored in docs/reference/statistics_cells.json.
"""

from __future__ import annotations

import argparse

from bench.statistics_table import cells, page


def main(words: list[str] | None = None) -> None:
    """Run the cells and steps that the command line asks for."""
    parser = argparse.ArgumentParser(prog="scripts/simulate-statistics table")
    parser.add_argument("patterns", nargs="*", metavar="CELL")
    parser.add_argument("--draws", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args(words)
    chosen = list(cells.selected(asked.patterns, asked.draws))
    if asked.list:
        print("\n".join(f"{cell.name} ({cell.draws} draws)" for cell in chosen))
        return
    if not asked.page:
        stored = cells.read()
        if not asked.patterns:
            chosen = [
                cell
                for cell in chosen
                if cell.name not in stored or stored[cell.name].draws < cell.draws
            ]
        cells.run(chosen, asked.workers)
    results = cells.read()
    if missing := [cell.name for cell in cells.selected([], None) if cell.name not in results]:
        print(f"the page is not written: {len(missing)} cells are missing, such as {missing[0]}")
        return
    page.PATH.write_text(page.text(results), "utf-8")
    page.write_summary(results)


if __name__ == "__main__":
    main()
