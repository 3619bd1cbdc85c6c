"""The coordinator's memory and start, over runs of many slots with made-up trials.

Everything except the containers is real. Each coordinator is a separate process.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import event_trials, synthetic
from bench.report import Row, say

GOAL_MB = 200
GOAL_S = 2.0
RESUMES = 5

_RUN = "bench"


def memory(folder: Path, *, quick: bool) -> Iterator[Row]:
    few, many = _few(quick), _many(quick)
    reports = {slots: _run(folder, slots) for slots in (few, many)}
    peaks = {slots: report["peak_mb"] for slots, report in reports.items()}
    yield Row(
        f"peak memory of the coordinator, {many:,} slots",
        f"{peaks[many]:.0f} MB",
        f"{peaks[few]:.0f} MB at {few:,}",
        f"{peaks[many] / peaks[few]:.2f}",
        f"< {GOAL_MB} MB",
        peaks[many] < GOAL_MB,
    )
    first, last = reports[many]["first_mb"], reports[many]["last_mb"]
    yield Row(
        "memory at the last dispatch, compared with the first", f"{last:.0f} MB", f"{first:.0f} MB"
    )
    rates = {slots: slots / report["seconds"] for slots, report in reports.items()}
    yield Row(
        "slots dispatched, finished and committed",
        f"{rates[many]:,.0f}/s",
        f"{rates[few]:,.0f}/s at {few:,}",
    )
    start = reports[many]["first_dispatch_s"]
    yield Row(f"`run` to the first dispatch, {many:,} slots", f"{start:.2f} s")


def events(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Measure the peak of a real run whose trials report 30 MB of events each, all at once."""
    trials, many = (8 if quick else 32), 100_000
    say(f"coordinator: {trials} trials at once with {many:,} events each")
    project = event_trials.write_project(folder / "events", trials, many)
    at_lab = ["--lab-dir", str(folder / "lab")]
    command = ["run", str(project.experiment), "--run-id", _RUN, *at_lab, "--quiet"]
    command += ["--env", "PACE=passing"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.peak", *command], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"labledger {' '.join(command)} failed:\n{done.stderr}")
    peak_mb = json.loads(done.stderr.splitlines()[-1])["peak_mb"]
    yield Row(
        f"peak memory of the coordinator, {trials} trials at once with 30 MB of events each",
        f"{peak_mb:.0f} MB",
        goal=f"< {GOAL_MB} MB",
        met=peak_mb < GOAL_MB,
    )


def wide(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Measure runs of the same slots, with few and with many trials at once.

    The baseline of the processor time is a run of the same slots with few in flight.
    """
    slots, seconds = (2_000, 8.0) if quick else (16_000, 32.0)
    many, few = slots // 2, 8
    say(f"coordinator: {slots:,} made-up trials, {few} and {many:,} at once")
    narrow = timed(folder / "narrow", slots, few, 0.0)
    broad = timed(folder / "broad", slots, many, seconds)
    cpu_ms = {
        width: 1000 * report["cpu_s"] / slots for width, report in ((few, narrow), (many, broad))
    }
    yield Row(
        f"processor time a slot, {many:,} trials in flight",
        f"{cpu_ms[many]:.2f} ms",
        f"{cpu_ms[few]:.2f} ms with {few}",
        f"{cpu_ms[many] / cpu_ms[few]:.2f}",
    )
    parts_ms = {name: 1000 * part / slots for name, part in narrow["parts_s"].items()}
    parts_ms["all else"] = cpu_ms[few] - sum(parts_ms.values())
    for name, part_ms in parts_ms.items():
        whole = f"{cpu_ms[few]:.2f} ms"
        share = f"{part_ms / cpu_ms[few]:.2f}"
        yield Row(f"  {name}, {few} in flight", f"{part_ms:.2f} ms", whole, share)
    ideal = 2 * seconds
    yield Row(
        f"{slots:,} trials of {seconds:.0f} s, {many:,} at once",
        f"{broad['seconds']:.1f} s",
        f"{ideal:.0f} s without any work",
        f"{broad['seconds'] / ideal:.2f}",
    )


def timed(place: Path, slots: int, width: int, seconds: float) -> dict[str, Any]:
    """Return the report of a run whose trials take about this long, `width` at once."""
    tasks = slots // len(synthetic.VARIANTS)
    variants = len(synthetic.VARIANTS)
    synthetic.write_experiment(place, tasks=tasks, variants=variants, concurrency=width)
    lab = place / ".lab"
    report = _coordinator(
        ["timed", str(seconds)],
        ["run", str(place), "--run-id", _RUN, "--lab-dir", str(lab), "--quiet"],
    )
    shutil.rmtree(place)
    return report


def resume(folder: Path, *, quick: bool) -> Iterator[Row]:
    slots = _many(quick)
    lab = _half_committed(folder, slots)
    times = [_first_dispatch(lab) for _ in range(RESUMES)]
    measured = statistics.median(times)
    yield Row(
        f"`resume` to the first dispatch, {slots:,} slots, half committed",
        f"{measured:.2f} s",
        goal=f"< {GOAL_S:.0f} s",
        met=measured < GOAL_S,
    )


def _few(quick: bool) -> int:
    return 1_000 if quick else 10_000


def _many(quick: bool) -> int:
    return 10_000 if quick else 100_000


def _run(folder: Path, slots: int) -> dict[str, Any]:
    """Return the report of a complete run, and keep a copy of its lab from half-way."""
    say(f"coordinator: a run of {slots:,} made-up trials")
    place = folder / f"slots-{slots}"
    tasks = slots // len(synthetic.VARIANTS)
    synthetic.write_experiment(place, tasks=tasks, variants=len(synthetic.VARIANTS))
    lab, half = place / ".lab", place / "half"
    report = _coordinator(
        ["whole", str(half), str(slots // 2)],
        ["run", str(place), "--run-id", _RUN, "--lab-dir", str(lab), "--quiet"],
    )
    shutil.rmtree(lab)
    return report


def _half_committed(folder: Path, slots: int) -> Path:
    """Return the lab of a run whose coordinator ended with half of the slots committed."""
    half = folder / f"slots-{slots}" / "half"
    if not half.is_dir():
        _run(folder, slots)
    return half


def _first_dispatch(lab: Path) -> float:
    report = _coordinator(["first"], ["resume", _RUN, "--lab-dir", str(lab), "--quiet"])
    seconds: float = report["first_dispatch_s"]
    return seconds


def _coordinator(mode: list[str], command: list[str]) -> dict[str, Any]:
    """Run a `labledger` command with made-up trials, in a process of its own."""
    program = [sys.executable, "-m", "bench.made_up_trials", str(time.monotonic())]
    done = subprocess.run(
        [*program, *mode, "--", *command], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"labledger {' '.join(command)} failed:\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report
