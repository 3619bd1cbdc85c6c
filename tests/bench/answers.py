"""What whole commands that answer take, over a run of very many slots: time and peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench import large_ledger
from bench.report import Row, say
from labledger.ledger.database.sqlite import DRIVER

GOAL_S, GOAL_MB = 20.0, 300
"""Of a report of 200,000 slots."""
GOAL_QUERY = 1.5
"""What a long answer may take of memory beside a short one's."""

_RUN = "run-0000"
_BARE_SQL = """
SELECT * FROM trial JOIN score USING (run_no, schedule_idx) WHERE trial.run_no = 1"""


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    cpu_s: float
    peak_mb: float


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    slots = 20_000 if quick else 200_000
    lab = folder / "answers"
    say(f"answers: a run of {slots:,} slots")
    large_ledger.write(lab / "ledger.sqlite", 2 * slots, slots)
    bare_s = _bare_read(lab / "ledger.sqlite")
    report = _command("report", _RUN, "-o", lab / "report.html", "--lab-dir", lab)
    yield Row(
        f"`report` of {slots:,} slots, processor time",
        f"{report.cpu_s:.1f} s",
        f"{bare_s:.1f} s bare driver, trials and scores",
        f"{report.cpu_s / bare_s:.1f}",
        f"≤ {GOAL_S:.0f} s",
        report.cpu_s <= GOAL_S,
    )
    yield Row(
        "  its peak memory",
        f"{report.peak_mb:.0f} MB",
        goal=f"≤ {GOAL_MB} MB",
        met=report.peak_mb <= GOAL_MB,
    )
    sql = "SELECT * FROM trials LIMIT {}"
    for form in ("json", "csv"):
        words = ("--format", form, "--lab-dir", lab)
        short = _command("query", sql.format(10), *words).peak_mb
        long = _command("query", sql.format(slots), *words).peak_mb
        yield Row(
            f"peak memory of `query --format {form}`, {slots:,} rows",
            f"{long:.0f} MB",
            f"{short:.0f} MB with 10",
            f"{long / short:.2f}",
            f"≤ {GOAL_QUERY}",
            long / short <= GOAL_QUERY,
        )


def _command(*words: object) -> Cost:
    """Run a `labledger` command whose answer nobody reads."""
    command = [sys.executable, "-m", "labledger", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} failed")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def _bare_read(ledger: Path) -> float:
    begun = time.process_time()
    with closing(DRIVER.connect(str(ledger))) as raw:
        for _ in raw.execute(_BARE_SQL):
            pass
    return time.process_time() - begun
