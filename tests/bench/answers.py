"""Time and peak memory of complete commands over a run of very many slots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import committed_lab
from bench.commands import environment, labledger, seconds, spread
from bench.report import Row, say
from labledger.ledger.database.sqlite import DRIVER

GOAL_S, GOAL_MB = 20.0, 200
"""For a report of 200,000 slots in any form."""
GOAL_COMPARE_S, GOAL_ANSWER_S = 3.0, 0.5
"""For `compare` and for short answers over 200,000 slots."""
GOAL_QUERY = 1.5
"""How many times the memory of a short answer a long one may take."""

_FORMS = {"": (), " --markdown": ("--markdown",), " --json": ("--json",)}
_BARE_SQL = """
SELECT * FROM trial JOIN score USING (run_no, schedule_idx) WHERE trial.run_no = 1"""
_ANSWERS = {
    "`status`": ("status", committed_lab.RUN),
    "`query` for the number of scores": ("query", "SELECT count(*) FROM scores"),
    "`query` for counts by variant and verdict": (
        "query",
        "SELECT variant_id, verdict, count(*) FROM trials GROUP BY 1, 2",
    ),
    "`query` for one row": (
        "query",
        f"SELECT * FROM trials WHERE run_id = '{committed_lab.RUN}' AND schedule_idx = 1000",
    ),
}


@dataclass(frozen=True)
class Cost:
    """The time and memory of a command."""

    cpu_s: float
    peak_mb: float


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    lab, slots = committed_lab.shared(folder, quick=quick)
    at_lab = ("--lab-dir", lab.root)
    bare_s = _bare_read(lab.ledger)
    for form, words in _FORMS.items():
        cost = _command("report", committed_lab.RUN, *words, "-o", folder / "report", *at_lab)
        yield Row(
            f"`report{form}` of {slots:,} slots, processor time",
            f"{cost.cpu_s:.1f} s",
            f"{bare_s:.1f} s bare driver, trials and scores",
            f"{cost.cpu_s / bare_s:.1f}",
            f"≤ {GOAL_S:.0f} s",
            cost.cpu_s <= GOAL_S,
        )
        yield Row(
            "  its peak memory",
            f"{cost.peak_mb:.0f} MB",
            goal=f"≤ {GOAL_MB} MB",
            met=cost.peak_mb <= GOAL_MB,
        )
    rounds = 3 if quick else 7
    compared = labledger("compare", committed_lab.RUN, *at_lab)
    yield _timed(f"`compare` of {slots:,} slots", compared, GOAL_COMPARE_S, rounds)
    for what, answer in _ANSWERS.items():
        yield _timed(what, labledger(*answer, *at_lab), GOAL_ANSWER_S, rounds)
    sql = "SELECT * FROM trials LIMIT {}"
    for format_ in ("json", "csv"):
        options = ("--format", format_, *at_lab)
        short = _command("query", sql.format(10), *options).peak_mb
        long = _command("query", sql.format(slots), *options).peak_mb
        yield Row(
            f"peak memory of `query --format {format_}`, {slots:,} rows",
            f"{long:.0f} MB",
            f"{short:.0f} MB with 10",
            f"{long / short:.2f}",
            f"≤ {GOAL_QUERY}",
            long / short <= GOAL_QUERY,
        )


def _timed(what: str, command: list[str], goal_s: float, rounds: int) -> Row:
    """Time a whole command, after a first run that reads the files."""
    say(f"answers: {what}")
    seconds(command)
    times = [seconds(command) for _ in range(rounds)]
    return Row(what, spread(times)).with_goal(f"≤ {goal_s:g} s", median(times) <= goal_s)


def _command(*words: object) -> Cost:
    """Run a `labledger` command and discard its output."""
    say(f"answers: {words[0]}")
    command = [sys.executable, "-m", "bench.peak", *map(str, words)]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    with process.stderr as stream:
        output = stream.read()
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {output.decode()}")
    peak_mb = json.loads(output.splitlines()[-1])["peak_mb"]
    return Cost(used.ru_utime + used.ru_stime, peak_mb)


def _bare_read(ledger: Path) -> float:
    begun = time.process_time()
    with closing(DRIVER.connect(f"file:{ledger}?mode=ro", uri=True)) as raw:
        for _ in raw.execute(_BARE_SQL):
            pass
    return time.process_time() - begun
