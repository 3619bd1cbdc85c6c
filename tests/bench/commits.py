"""Slot commits per second of the ledger's writer, beside the bare driver's with the same rows."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench import synthetic
from bench.bare import BareWriter, commit_rows, commit_staged_rows, stage_rows
from bench.report import Row, paired_ratio, say
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import migrations
from labledger.ledger.database.run_info import Lease, Owner
from labledger.ledger.writer import LedgerWriter
from labledger.records.attempt_result import AttemptResult

GOAL_PER_S = 1000
GOAL_RATIO = 2.5
GOAL_GROWTH = 1.1
"""The ratio that counts as no slower."""

SIZES = (1_000, 1_000_000)
"""The metric and event rows that the ledger already has."""

_RUN, _FILLER = "bench", "filler"
_FILL_BATCH = 1_000


@dataclass
class Side:
    """The seconds per slot of one way of writing, a figure per round."""

    direct: list[float] = field(default_factory=list)
    staged: list[float] = field(default_factory=list)


@dataclass
class Pair:
    """Two equal ledgers: one for the writer, one for the bare driver."""

    lease: Lease
    writer: LedgerWriter
    bare: BareWriter
    ours: Side = field(default_factory=Side)
    plain: Side = field(default_factory=Side)

    def round(self, first: int, slots: int) -> None:
        """Commit `slots` slots from `first` on in both ways, then as many that are staged first."""
        batch = list(_results(_RUN, range(first, first + slots)))
        self.ours.direct.append(_commit(self.writer, self.lease, batch))
        self.plain.direct.append(_bare_commit(self.bare, self.lease, batch))
        batch = list(_results(_RUN, range(first + slots, first + 2 * slots)))
        self.ours.staged.append(_stage_and_commit(self.writer, self.lease, batch))
        self.plain.staged.append(_bare_stage_and_commit(self.bare, self.lease, batch))


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    rounds, slots = (3, 150) if quick else (8, 250)
    total = 2 * rounds * slots
    with ExitStack() as stack:
        pairs = [_pair(folder / f"commits-{size}", size, total, stack) for size in SIZES]
        say(f"commits: {total} slots, both ways, in small and large ledgers")
        # Filled and copied data must be on the disk before the measurement.
        os.sync()
        for number in range(rounds):
            for pair in pairs:
                pair.round(2 * number * slots, slots)
    for size, pair in zip(SIZES, pairs, strict=True):
        shutil.rmtree(folder / f"commits-{size}")
        yield _speed(
            f"slot commits, {size:,} rows in the ledger", pair.ours.direct, pair.plain.direct
        )
        staged = _speed(
            f"  staged first, {size:,} rows in the ledger", pair.ours.staged, pair.plain.staged
        )
        yield staged.without_goal()
    small, large = pairs
    yield _growth("a slot commit", small.ours.direct, large.ours.direct)
    yield _growth("  by the bare driver", small.plain.direct, large.plain.direct).without_goal()


def _speed(what: str, ours: Sequence[float], plain: Sequence[float]) -> Row:
    per_s, ratio = 1 / statistics.median(ours), paired_ratio(ours, plain)
    return Row(
        what,
        f"{per_s:,.0f}/s",
        f"{1 / statistics.median(plain):,.0f}/s bare driver",
        f"{ratio:.2f}",
        f"≥ {GOAL_PER_S:,}/s, ≤ {GOAL_RATIO}",
        per_s >= GOAL_PER_S and ratio <= GOAL_RATIO,
    )


def _growth(what: str, small: Sequence[float], large: Sequence[float]) -> Row:
    ratio = paired_ratio(large, small)
    return Row(
        f"{what}, {SIZES[1]:,} rows in the ledger",
        f"{statistics.median(large) * 1000:.2f} ms",
        f"{statistics.median(small) * 1000:.2f} ms at {SIZES[0]:,}",
        f"{ratio:.2f}",
        f"≤ {GOAL_GROWTH}",
        ratio <= GOAL_GROWTH,
    )


def _pair(folder: Path, size: int, total: int, stack: ExitStack) -> Pair:
    ledger, twin = folder / "ours" / "ledger.sqlite", folder / "bare" / "ledger.sqlite"
    say(f"commits: filling a ledger with {size:,} metric and event rows")
    lease = _prepare(ledger, size, total)
    shutil.copytree(ledger.parent, twin.parent)
    return Pair(lease, stack.enter_context(_open(ledger)), stack.enter_context(BareWriter(twin)))


def _commit(writer: LedgerWriter, lease: Lease, batch: Sequence[AttemptResult]) -> float:
    begun = time.perf_counter()
    for result in batch:
        writer.commit_result(lease, result)
    return (time.perf_counter() - begun) / len(batch)


def _bare_commit(bare: BareWriter, lease: Lease, batch: Sequence[AttemptResult]) -> float:
    ready = [commit_rows(lease, result) for result in batch]
    begun = time.perf_counter()
    for rows in ready:
        bare.commit(rows)
    return (time.perf_counter() - begun) / len(batch)


def _stage_and_commit(writer: LedgerWriter, lease: Lease, batch: Sequence[AttemptResult]) -> float:
    begun = time.perf_counter()
    for result in batch:
        writer.stage(lease, result, final=True)
    for result in batch:
        writer.commit_staged(lease, result.schedule_idx)
    return (time.perf_counter() - begun) / len(batch)


def _bare_stage_and_commit(bare: BareWriter, lease: Lease, batch: Sequence[AttemptResult]) -> float:
    ready = [stage_rows(lease, result) for result in batch]
    ready += [commit_staged_rows(lease, result) for result in batch]
    begun = time.perf_counter()
    for rows in ready:
        bare.commit(rows)
    return (time.perf_counter() - begun) / len(batch)


def _prepare(ledger: Path, size: int, total: int) -> Lease:
    """Make a ledger with `size` rows of another run, and a run of `total` slots to commit."""
    migrations.upgrade(ledger)
    filling = size // (synthetic.METRICS + synthetic.EVENTS)
    with _open(ledger) as writer:
        filler = _begin(writer, _FILLER, filling)
        lease = _begin(writer, _RUN, total)
    with BareWriter(ledger) as bare:
        for first in range(0, filling, _FILL_BATCH):
            idxs = range(first, min(first + _FILL_BATCH, filling))
            rows_of_slots = (commit_rows(filler, result) for result in _results(_FILLER, idxs))
            bare.commit([row for of_a_slot in rows_of_slots for row in of_a_slot])
    return lease


def _begin(writer: LedgerWriter, run_id: str, total: int) -> Lease:
    slots = map(synthetic.slot, range(total))
    writer.create_run(synthetic.new_run(run_id), synthetic.task_rows(total), slots)
    return writer.leases.acquire(run_id, Owner("bench", 0, "bench"), 3600.0)


def _open(ledger: Path) -> LedgerWriter:
    return LedgerWriter.open(ledger, ArtifactStore(ledger.parent / "artifacts"))


def _results(run_id: str, idxs: Iterable[int]) -> Iterator[AttemptResult]:
    return (synthetic.result(run_id, synthetic.slot(idx)) for idx in idxs)
