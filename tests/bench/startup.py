"""How long `labledger --help` takes as a whole process, beside a Python that does nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.report import Row

GOAL_S = 0.25


def measure(_folder: Path, *, quick: bool) -> Iterator[Row]:
    ours = [sys.executable, "-m", "labledger", "--help"]
    plain = [sys.executable, "-c", "pass"]
    rounds = [(_seconds(ours), _seconds(plain)) for _ in range(7 if quick else 21)]
    help_s, pass_s = (statistics.median(times) for times in zip(*rounds, strict=True))
    yield Row(
        "labledger --help",
        f"{help_s:.3f} s",
        f"{pass_s:.3f} s python -c pass",
        f"{help_s / pass_s:.1f}",
        f"< {GOAL_S} s",
        help_s < GOAL_S,
    )


def _seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun
