"""The time for which an attempt's agent was held back. Its time limit can leave this time out."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITTEN_EVERY_S = 0.5
"""The interval at which the waited time is written, in seconds."""
_UNCOUNTED_S = 0.02
"""Shorter waits are not counted, in seconds. Most calls do not wait at all."""


class WaitedTime:
    """The time for which providers' limits held an attempt's agent back. For one event loop.

    The time runs while a call waits and no other call of the attempt is in progress. An agent that
    works on several things at once is held back only when all of them wait. The processor time of
    the trial's processes is subtracted, because an agent that computes does not wait. While the
    time runs, it is written to a file of the trial every half second, so that a time limit can
    leave it out.
    """

    def __init__(
        self,
        path: Path | None,
        clock: Callable[[], float] = time.monotonic,
        processors_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`path` is the file to continue; None writes no file.

        `processors_s` returns how long the trial has used processors; None if that is not known.
        """
        self._path, self._clock, self._processors_s = path, clock, processors_s
        self._before_s = _read(path)
        self._waiting = self._working = 0
        self._is_held = False
        self._since: float | None = None
        self._used_s: float | None = None
        """The trial's processor time at `_since`."""
        self._timer: asyncio.TimerHandle | None = None
        self._written = int(self._before_s * 100)
        self.problem: str | None = None

    @property
    def seconds(self) -> float:
        """The waited time so far."""
        return self._before_s + self._running_s(self._clock(), self._processors_s())

    def _running_s(self, now: float, used_s: float | None) -> float:
        if self._since is None:
            return 0.0
        used = 0.0 if used_s is None or self._used_s is None else used_s - self._used_s
        return max(0.0, now - self._since - max(0.0, used))

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
        """Count a call as in progress."""
        self._working += 1
        self._update()
        try:
            yield
        finally:
            self._working -= 1
            self._update()

    def hold(self, held: bool) -> None:
        """Set whether the agent is held back, whatever its calls do."""
        if held != self._is_held:
            self._is_held = held
            self._update()

    def _update(self) -> None:
        runs = self._is_held or (self._waiting > 0 and self._working == 0)
        if runs and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_UNCOUNTED_S, self._begin)
        elif not runs and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._since is not None:
                self._take()
                self._since = None
                self._write()

    def _begin(self) -> None:
        self._since, self._used_s = self._clock(), self._processors_s()
        self._timer = asyncio.get_running_loop().call_later(_WRITTEN_EVERY_S, self._write_again)

    def _take(self) -> None:
        """Add the time since `_since`, without the processor time in it."""
        now, used_s = self._clock(), self._processors_s()
        self._before_s += self._running_s(now, used_s)
        self._since, self._used_s = now, used_s

    def _write_again(self) -> None:
        self._take()
        self._write()
        self._timer = asyncio.get_running_loop().call_later(_WRITTEN_EVERY_S, self._write_again)

    def _write(self) -> None:
        """Replace the file. It is not synced, because a crash of the machine ends the trial."""
        hundredths = int(self._before_s * 100)
        if self._path is None or hundredths == self._written:
            return
        text = f"{hundredths}\n"
        beside = self._path.with_name(f".{self._path.name}")
        try:
            try:
                beside.write_text(text, "ascii")
                beside.replace(self._path)
            except OSError:
                # On a full disk, only the existing file has room.
                _overwrite(self._path, text)
        except OSError as error:
            self.problem = f"could not write {self._path}: {error.strerror}"
        else:
            self._written, self.problem = hundredths, None


def _overwrite(path: Path, text: str) -> None:
    """Overwrite the beginning of a file with a text. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(descriptor, text.encode("ascii"), 0)
    finally:
        os.close(descriptor)


def _read(path: Path | None) -> float:
    try:
        return 0.0 if path is None else int(path.read_text("ascii")) / 100
    except (OSError, ValueError):
        return 0.0
