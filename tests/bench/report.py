"""The results of a measurement, as rows of a small table."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from docker import APIClient
from docker.errors import DockerException
from docker.utils import kwargs_from_env

from labledger.ledger.database.sqlite import DRIVER

_HEAD = ("what", "measured", "baseline", "ratio", "goal", "met")


@dataclass(frozen=True)
class Row:
    """One figure with its baseline and goal."""

    what: str
    measured: str
    baseline: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None
    """None if there is no goal."""

    def with_goal(self, goal: str, met: bool) -> Row:
        return replace(self, goal=goal, met=met)

    def without_goal(self) -> Row:
        return replace(self, goal="", met=None)

    def cells(self) -> tuple[str, ...]:
        *texts, met = astuple(self)
        return (*texts, {True: "yes", False: "NO", None: ""}[met])


def print_table(title: str, rows: Iterable[Row]) -> None:
    lines = [_HEAD, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for cells in lines:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(f"  {'  '.join(padded)}".rstrip(), flush=True)


def paired_ratio(ours: Sequence[float], plain: Sequence[float]) -> float:
    """Return the median over the rounds of ours / plain, which have the same noise."""
    return statistics.median(a / b for a, b in zip(ours, plain, strict=True))


def say(text: str) -> None:
    """Print progress on stderr."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def machine(folder: Path) -> Iterable[str]:
    """Yield facts that the figures depend on."""
    yield f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {platform.platform()}"
    driver = DRIVER.__name__.partition(".")[0]
    yield f"Python {platform.python_version()}, SQLite {DRIVER.sqlite_version} by {driver}"
    yield _docker()
    yield f"fsync of 4 KiB in {folder}: {_fsync_ms(folder):.2f} ms (median of 50)"


def _docker() -> str:
    try:
        version = APIClient(version="auto", **kwargs_from_env()).version()
    except DockerException as error:
        return f"no Docker engine answers: {error}"
    return f"Docker {version['Version']}"


def _fsync_ms(folder: Path) -> float:
    """Return the milliseconds of an fsync over old content, as for most writes of a WAL."""
    times: list[float] = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as handle:
        for lap in range(2):
            handle.seek(0)
            times.clear()
            for _ in range(50):
                handle.write(bytes([lap]) * 4096)
                begun = time.perf_counter()
                os.fsync(handle.fileno())
                times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000
