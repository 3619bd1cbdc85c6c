"""`verify` of a large run and its folder, beside digests of the same bytes by the bare driver."""

from __future__ import annotations

import hashlib
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import committed_lab
from bench.report import Row, paired_ratio, say
from labledger.files.lab_folder import LabFolder
from labledger.ledger.database.sqlite import DRIVER
from labledger.upkeep.verify_lab import verify_lab

GOAL_S = 40.0
"""For a run of 200,000 slots on a quiet machine."""
_ROUNDS = 3
_TABLES = (
    *("slot_commit", "trial", "attempt", "metric", "event", "prediction", "score"),
    *("evidence_record", "slot_outcome", "artifact"),
)


@dataclass
class Side:
    """Seconds of each round: elapsed time, and processor time of all processes."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def time(self, work: Callable[[], object]) -> None:
        begun, used = time.perf_counter(), _processor_s()
        work()
        self.wall.append(time.perf_counter() - begun)
        self.processor.append(_processor_s() - used)


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    lab, slots = committed_lab.shared(folder, quick=quick)
    say(f"verify: a run of {slots:,} slots")
    ours, plain = Side(), Side()
    for _ in range(_ROUNDS):
        plain.time(lambda: _read_and_digest(lab))
        ours.time(lambda: _verify(lab))
    row = _row(f"verify of {slots:,} slots and their mirrors", ours.wall, plain.wall)
    yield row if quick else row.with_goal(f"≤ {GOAL_S:.0f} s", median(ours.wall) <= GOAL_S)
    yield _row("  its processor time", ours.processor, plain.processor)


def _row(what: str, ours: Sequence[float], plain: Sequence[float]) -> Row:
    return Row(
        what,
        f"{median(ours):.2f} s ({min(ours):.2f} to {max(ours):.2f})",
        f"{median(plain):.2f} s, bare driver reading and digesting",
        f"{paired_ratio(ours, plain):.2f}",
    )


def _verify(lab: LabFolder) -> None:
    findings = verify_lab(lab, None).findings
    if findings:
        raise RuntimeError(f"an unchanged run has findings: {findings[0]}")


def _read_and_digest(lab: LabFolder) -> None:
    """Read every committed row once, and digest each row and mirror."""
    for path in lab.run_folder(committed_lab.RUN).rglob("*.jsonl"):
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
    raw = DRIVER.connect(f"file:{lab.ledger}?mode=ro", uri=True)
    for table in _TABLES:
        for row in raw.execute(f"SELECT * FROM {table}"):
            content = row[-1] if isinstance(row[-1], bytes) else repr(row).encode()
            hashlib.sha256(content).hexdigest()
    raw.execute("PRAGMA integrity_check").fetchall()
    raw.close()


def _processor_s() -> float:
    """Return user and system time of this process and its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
