"""`verify` of a large run, beside the bare driver that reads the same rows and digests them."""

from __future__ import annotations

import hashlib
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import synthetic
from bench.report import Row, paired_ratio, say
from labledger.ledger.database import migrations
from labledger.ledger.database.model import Owner
from labledger.ledger.database.sqlite import DRIVER
from labledger.ledger.verification.verify import verify
from labledger.ledger.writer import LedgerWriter
from labledger.records.outcomes import RunStatus
from labledger.storage.artifact_store import ArtifactStore

GOAL_RATIO = 2.5
_RUN = "bench"
_TABLES = (
    *("slot_commit", "trial", "attempt", "metric", "event", "prediction", "score"),
    *("evidence_record", "slot_outcome", "artifact"),
)


@dataclass
class Side:
    """Seconds of each round: on the clock, and of processors, those of other processes too."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def time(self, work: Callable[[], object]) -> None:
        begun, used = time.perf_counter(), _processor_s()
        work()
        self.wall.append(time.perf_counter() - begun)
        self.processor.append(_processor_s() - used)


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    slots, rounds = (2_000, 3) if quick else (50_000, 3)
    say(f"verify: a run of {slots:,} slots")
    ledger = _make_run(folder / "verify" / "ledger.sqlite", slots)
    ours, plain = Side(), Side()
    for _ in range(rounds):
        plain.time(lambda: _read_and_digest(ledger))
        ours.time(lambda: verify(ledger))
    yield _row(f"verify of {slots:,} slots", ours.wall, plain.wall, GOAL_RATIO)
    yield _row("  its processor time", ours.processor, plain.processor).without_goal()


def _row(what: str, ours: Sequence[float], plain: Sequence[float], goal: float = 0) -> Row:
    ratio = paired_ratio(ours, plain)
    return Row(
        what,
        f"{median(ours):.2f} s ({min(ours):.2f} to {max(ours):.2f})",
        f"{median(plain):.2f} s, bare driver reading and digesting",
        f"{ratio:.2f}",
        f"≤ {goal:.1f} ×",
        ratio <= goal,
    )


def _make_run(ledger: Path, slots: int) -> Path:
    """Commit a whole run of made-up trials."""
    migrations.upgrade(ledger)
    with LedgerWriter.open(ledger, ArtifactStore(ledger.parent / "artifacts")) as writer:
        # Nobody minds if this file is lost.
        writer._connection.driver.execute("PRAGMA synchronous = OFF")
        every = [synthetic.slot(idx) for idx in range(slots)]
        writer.create_run(synthetic.new_run(_RUN), synthetic.task_rows(slots), iter(every))
        lease = writer.leases.acquire(_RUN, Owner("bench", 1, "bench"), 86_400)
        for slot in every:
            writer.commit_result(lease, synthetic.result(_RUN, slot))
        writer.leases.release(lease, RunStatus.COMPLETED)
    return ledger


def _read_and_digest(ledger: Path) -> None:
    """Read every row of what was committed once, and take a digest of each."""
    raw = DRIVER.connect(f"file:{ledger}?mode=ro", uri=True)
    for table in _TABLES:
        for row in raw.execute(f"SELECT * FROM {table}"):
            content = row[-1] if isinstance(row[-1], bytes) else repr(row).encode()
            hashlib.sha256(content).hexdigest()
    raw.execute("PRAGMA integrity_check").fetchall()
    raw.close()


def _processor_s() -> float:
    """User and system time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
