"""The command `scripts/bench`, run in the prepared environment."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import (
    answers,
    commits,
    coordinator,
    exchange,
    gateway,
    many_hosts,
    startup,
    trials,
    verifying,
    viewing,
    views,
)
from bench.report import Row, machine, print_table, say

PROJECT = Path(__file__).parents[2]
Measure = Callable[..., Iterator[Row]]

SECTIONS: dict[str, tuple[str, Measure]] = {
    "trials": ("Complete commands beside a plain loop of their trials", trials.measure),
    "commits": (
        "Slot commits: 5 metrics, 10 events, a prediction, a score, evidence, 8 artifacts",
        commits.measure,
    ),
    "help": ("Short commands, as complete processes", startup.measure),
    "memory": ("The coordinator's memory, with simulated trials", coordinator.memory),
    "events": ("The coordinator's memory, with trials that write many events", coordinator.events),
    "wide": ("A run with thousands of simulated trials at once", coordinator.wide),
    "export": ("Exporting the events of a run, beside the bare driver", exchange.exports),
    "import": ("Importing a run of another ledger", exchange.imports),
    "views": ("Queries of the views of a large ledger, as library calls", views.measure),
    "view": (
        "Open pages of `labledger view`: what they cost a run, and how fast they are",
        viewing.measure,
    ),
    "verify": ("Verifying a run of simulated trials", verifying.measure),
    "answers": ("Complete commands over a run of very many simulated trials", answers.measure),
    "hosts": ("Complete commands on three hosts of this machine, as root", many_hosts.hosts),
    "fleet": ("The coordinator, with hosts and trials that are made up", many_hosts.fleet),
    "gateway": ("Streams through the model gateway, beside direct ones", gateway.measure),
    "resume": ("The coordinator's start, with simulated trials", coordinator.resume),
}
"""The title of each section and the function that measures it, in the order of measurement."""


def main() -> None:
    options = parse_options()
    options.dir.mkdir(parents=True, exist_ok=True)
    names = list(SECTIONS) if options.section == "all" else [options.section]
    rows: list[Row] = []
    with TemporaryDirectory(dir=options.dir) as scratch:
        folder = Path(scratch)
        print("\n".join(machine(folder)))
        for name in names:
            title, measure = SECTIONS[name]
            measured = list(measure(folder, quick=options.quick))
            print_table(f"{name}: {title}", measured)
            rows += measured
    print(f"\n{verdict(rows)}")
    if options.quick:
        say("--quick: too few rounds for figures to be quoted")


def verdict(rows: list[Row]) -> str:
    held = [row for row in rows if row.met is not None]
    missed = [row for row in held if not row.met]
    lines = [f"{len(held) - len(missed)} of {len(held)} goals are met."]
    for row in missed:
        ratio = f", ratio {row.ratio}" if row.ratio else ""
        lines.append(f"  missed: {row.what}: {row.measured}{ratio}; goal {row.goal}")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures labledger beside a plain way of doing the same. Asserts nothing.",
    )
    parser.add_argument("section", nargs="?", default="all", choices=["all", *SECTIONS])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller runs")
    parser.add_argument(
        "--dir",
        type=Path,
        default=PROJECT / "build" / "bench",
        help="where to work, on the disk to be measured; leaves nothing there",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
