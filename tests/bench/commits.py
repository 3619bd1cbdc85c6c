"""Slot commits per second of the ledger's writer, beside the bare driver's with the same rows."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import synthetic
from bench.bare import BareWriter, commit_rows, commit_staged_rows, stage_rows
from bench.report import Row, paired_ratio, say
from labledger.ledger import migrate
from labledger.ledger.model import Lease, Owner
from labledger.ledger.writer import LedgerWriter
from labledger.records import TrialResult
from labledger.store import ArtifactStore

GOAL_PER_S = 1000
GOAL_RATIO = 2.5
_SIZES = (1_000, 1_000_000)
"""Metric and event rows that stand in the ledger beforehand."""

_RUN, _FILLER = "bench", "filler"
_OWNER = Owner("bench", 0, "bench")
_LEASE_S = 3600.0
_FILL_BATCH = 1_000


@dataclass(frozen=True)
class Load:
    rounds: int
    slots: int
    """Commits a round, by each side."""

    @property
    def results(self) -> Iterator[list[TrialResult]]:
        """The results of each round, made when they are asked for."""
        for number in range(self.rounds):
            idxs = range(number * self.slots, (number + 1) * self.slots)
            yield [synthetic.result(_RUN, synthetic.slot(idx)) for idx in idxs]


@dataclass(frozen=True)
class Side:
    """One side's seconds per commit, a figure a round."""

    direct: list[float]
    staged: list[float]


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    load = Load(2, 150) if quick else Load(8, 250)
    medians = {}
    for size in _SIZES:
        say(f"commits: filling a ledger with {size:,} metric and event rows")
        place = folder / f"commits-{size}"
        ours, plain = _compare(place, size, load)
        shutil.rmtree(place)
        medians[size] = statistics.median(ours.direct)
        yield _row(f"slot commits, {size:,} rows there", ours.direct, plain.direct, goal=True)
        yield _row(f"  each staged before, {size:,} rows there", ours.staged, plain.staged)
    small, large = (medians[size] for size in _SIZES)
    yield Row(
        f"commits with {_SIZES[1]:,} rows beside {_SIZES[0]:,}",
        f"{1 / large:,.0f}/s",
        f"{1 / small:,.0f}/s",
        f"{large / small:.2f}",
        "no slower (≤ 1.1)",
        large / small <= 1.1,
    )


def _row(what: str, ours: Sequence[float], plain: Sequence[float], *, goal: bool = False) -> Row:
    per_s, ratio = 1 / statistics.median(ours), paired_ratio(ours, plain)
    return Row(
        what,
        f"{per_s:,.0f}/s",
        f"{1 / statistics.median(plain):,.0f}/s bare driver",
        f"{ratio:.2f}",
        f"≥ {GOAL_PER_S:,}/s, ≤ {GOAL_RATIO}" if goal else "",
        (per_s >= GOAL_PER_S and ratio <= GOAL_RATIO) if goal else None,
    )


def _compare(folder: Path, size: int, load: Load) -> tuple[Side, Side]:
    """Both sides on ledgers of their own that begin alike, in turns."""
    ledger, twin = folder / "ours" / "ledger.sqlite", folder / "bare" / "ledger.sqlite"
    _fill(ledger, size)
    ours, plain = Side([], []), Side([], [])
    with ExitStack() as stack:
        writer = stack.enter_context(_open(ledger))
        # Direct commits first, then as many staged ones.
        total = 2 * load.rounds * load.slots
        lease = _begin(writer, _RUN, total)
        writer.close()
        shutil.copytree(ledger.parent, twin.parent)
        writer = stack.enter_context(_open(ledger))
        bare = stack.enter_context(BareWriter(twin))
        for batch in load.results:
            ours.direct.append(_each(batch, lambda r: _commit(writer, lease, r)))
            ready = [commit_rows(lease, result) for result in batch]
            plain.direct.append(_each(ready, bare.commit))
    return ours, plain
