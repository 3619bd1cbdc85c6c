"""Which disks are full, and when each was last seen so.

What failed for want of room cannot always tell: there may be room again before anybody looks,
because a coordinator cleared another trial away or took back what it could not finish writing. So
every look that finds a disk full is remembered, by all threads of this process for each other, and
whoever makes room looks just before.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FULL_BYTES = 1 << 20
"""With less than this free a disk is full: the next write may fail."""

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system says where a disk, or what somebody may have of it, is full."""

_last_full: dict[int | None, float] = {}
"""When each device was last seen full, by the monotonic clock."""
_seeing = threading.Lock()


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """What can be added at a path."""

    bytes: int
    files: int | None
    """None where its file system has no limit."""

    @property
    def is_full(self) -> bool:
        return self.bytes < FULL_BYTES or self.files == 0


def free_space(path: Path) -> FreeSpace | None:
    """What is free at a path, None where that cannot be told. A full disk is remembered."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    now = FreeSpace(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)
    if now.is_full:
        record_full(path)
    return now


def check_disks(paths: Iterable[Path]) -> None:
    """Remember which of these disks are full: to be done just before anything makes room there."""
    for path in paths:
        free_space(path)


def record_full(path: Path) -> None:
    """Remember that a write at a path has failed for want of room."""
    with suppress(OSError):
        device = path.stat().st_dev
        with _seeing:
            _last_full[device] = time.monotonic()


def record_write_error(path: Path, error: BaseException) -> None:
    """The same, where that is what `error` says."""
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        record_full(path)


def were_full_since(paths: Iterable[Path], since: float) -> bool:
    """True where one of these disks is full, or was seen full since that monotonic time."""
    return any(_last_seen_full(path) >= since for path in paths)


def _last_seen_full(path: Path) -> float:
    free_space(path)
    try:
        return _last_full.get(path.stat().st_dev, -math.inf)
    except OSError:
        return -math.inf
