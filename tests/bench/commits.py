"""Slot commits per second of the ledger's writer, beside the bare driver's with the same rows."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
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
GOAL_GROWTH = 1.1
"""What counts as no slower."""

SIZES = (1_000, 1_000_000)
"""Metric and event rows that stand in the ledger beforehand."""

_RUN, _FILLER = "bench", "filler"
_FILL_BATCH = 1_000


class Side:
    """One side's seconds per slot, a figure a round."""

    def __init__(self) -> None:
        self.direct: list[float] = []
        self.staged: list[float] = []


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    rounds, slots = (2, 150) if quick else (8, 250)
    medians = {}
    for size in SIZES:
        say(f"commits: {2 * rounds * slots} slots both ways, {size:,} rows there")
        ours, plain = _compare(folder / f"commits-{size}", size, rounds, slots)
        medians[size] = statistics.median(ours.direct)
        yield _row(f"slot commits, {size:,} rows there", ours.direct, plain.direct, goal=True)
        yield _row(f"staged first, {size:,} rows there", ours.staged, plain.staged)
    small, large = (medians[size] for size in SIZES)
    yield Row(
        f"slot commits, {SIZES[1]:,} rows beside {SIZES[0]:,}",
        f"{1 / large:,.0f}/s",
        f"{1 / small:,.0f}/s",
        f"{large / small:.2f}",
        f"≤ {GOAL_GROWTH}",
        large / small <= GOAL_GROWTH,
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


def _compare(folder: Path, size: int, rounds: int, slots: int) -> tuple[Side, Side]:
    """Both sides in turns, on ledgers of their own that begin alike."""
    ledger, twin = folder / "ours" / "ledger.sqlite", folder / "bare" / "ledger.sqlite"
    lease = _prepare(ledger, size, 2 * rounds * slots)
    shutil.copytree(ledger.parent, twin.parent)
    ours, plain = Side(), Side()
    with ExitStack() as stack:
        writer = stack.enter_context(_open(ledger))
        bare = stack.enter_context(BareWriter(twin))
        for number in range(rounds):
            first = 2 * number * slots
            batch = list(_results(_RUN, range(first, first + slots)))
            ours.direct.append(_commit(writer, lease, batch))
            plain.direct.append(_bare_commit(bare, lease, batch))
            batch = list(_results(_RUN, range(first + slots, first + 2 * slots)))
            ours.staged.append(_stage_and_commit(writer, lease, batch))
            plain.staged.append(_bare_stage_and_commit(bare, lease, batch))
    shutil.rmtree(folder)
    return ours, plain


def _commit(writer: LedgerWriter, lease: Lease, batch: Sequence[TrialResult]) -> float:
    begun = time.perf_counter()
    for result in batch:
        writer.commit_result(lease, result)
    return (time.perf_counter() - begun) / len(batch)


def _bare_commit(bare: BareWriter, lease: Lease, batch: Sequence[TrialResult]) -> float:
    ready = [commit_rows(lease, result) for result in batch]
    begun = time.perf_counter()
    for found in ready:
        bare.commit(found)
    return (time.perf_counter() - begun) / len(batch)


def _stage_and_commit(writer: LedgerWriter, lease: Lease, batch: Sequence[TrialResult]) -> float:
    begun = time.perf_counter()
    for result in batch:
        writer.stage(lease, result, final=True)
    for result in batch:
        writer.commit_staged(lease, result.schedule_idx)
    return (time.perf_counter() - begun) / len(batch)


def _bare_stage_and_commit(bare: BareWriter, lease: Lease, batch: Sequence[TrialResult]) -> float:
    ready = [stage_rows(lease, result) for result in batch]
    ready += [commit_staged_rows(lease, result) for result in batch]
    begun = time.perf_counter()
    for found in ready:
        bare.commit(found)
    return (time.perf_counter() - begun) / len(batch)


def _prepare(ledger: Path, size: int, total: int) -> Lease:
    """A ledger with `size` rows of another run, and a run of `total` slots to commit."""
    migrate.upgrade(ledger)
    filling = size // (synthetic.METRICS + synthetic.EVENTS)
    with _open(ledger) as writer:
        filler = _begin(writer, _FILLER, filling)
        lease = _begin(writer, _RUN, total)
    with BareWriter(ledger) as bare:
        for first in range(0, filling, _FILL_BATCH):
            idxs = range(first, min(first + _FILL_BATCH, filling))
            found = (commit_rows(filler, result) for result in _results(_FILLER, idxs))
            bare.commit([each for of_a_slot in found for each in of_a_slot])
    return lease


def _begin(writer: LedgerWriter, run_id: str, total: int) -> Lease:
    slots = map(synthetic.slot, range(total))
    writer.create_run(synthetic.new_run(run_id), synthetic.task_rows(total), slots)
    return writer.acquire_lease(run_id, Owner("bench", 0, "bench"), 3600.0)


def _open(ledger: Path) -> LedgerWriter:
    return LedgerWriter.open(ledger, ArtifactStore(ledger.parent / "artifacts"))


def _results(run_id: str, idxs: Iterable[int]) -> Iterator[TrialResult]:
    return (synthetic.result(run_id, synthetic.slot(idx)) for idx in idxs)
