"""The time for which an attempt's agent was held back, which its time limit can leave out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITTEN_EVERY_S = 0.5
"""How often the waited time is written while it runs, in seconds."""


class WaitedTime:
    """The time for which limits of providers held an attempt's agent back. For one event loop.

    It runs while a call waits and no other call of the attempt is under way: an agent that works on
    several things at once is held back only when all of them wait. While it runs, it is written to
    a file of the trial every half second, so that a time limit can leave it out.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`path` is the file, whose time is counted on; with None nothing is written."""
        self._path, self._clock = path, clock
        self._before_s = _read(path)
        self._waiting = self._working = 0
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._written = int(self._before_s * 100)
        self.problem: str | None = None

    @property
    def seconds(self) -> float:
        """The time so far."""
        return self._before_s + (0.0 if self._since is None else self._clock() - self._since)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a call as waiting."""
        self._waiting += 1
        self._update()
        try:
            yield
        finally:
            self._waiting -= 1
            self._update()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a call as under way."""
        self._working += 1
        self._update()
        try:
            yield
        finally:
            self._working -= 1
            self._update()

    def _update(self) -> None:
        runs = self._waiting > 0 and self._working == 0
        if runs and self._since is None:
            self._since = self._clock()
            self._timer = asyncio.get_running_loop().call_later(_WRITTEN_EVERY_S, self._write_again)
        elif not runs and self._since is not None:
            self._before_s, self._since = self.seconds, None
            if self._timer is not None:
                self._timer.cancel()
            self._write()

    def _write_again(self) -> None:
        self._write()
        self._timer = asyncio.get_running_loop().call_later(_WRITTEN_EVERY_S, self._write_again)

    def _write(self) -> None:
        """Replace the file. It need not survive a crash of the machine, which ends the trial."""
        hundredths = int(self.seconds * 100)
        if self._path is None or hundredths == self._written:
            return
        beside = self._path.with_name(f".{self._path.name}")
        try:
            beside.write_text(f"{hundredths}\n", "ascii")
            beside.replace(self._path)
            self._written = hundredths
        except OSError as error:
            self.problem = f"could not write {self._path}: {error.strerror}"


def _read(path: Path | None) -> float:
    try:
        return 0.0 if path is None else int(path.read_text("ascii")) / 100
    except (OSError, ValueError):
        return 0.0
