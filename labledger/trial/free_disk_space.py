"""Check the space on the disks that trials fill, and keep trials that this host cannot collect.

A failure because of a full disk does not always say so, and space may be free again before the next
check. Every full disk is therefore recorded in `FullDisks`. Call `FullDisks.check` just before
freeing space.
"""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from labledger import clock
from labledger.engine.engine_errors import ContainerFailed, NoSuchContainer
from labledger.errors import DiskFull, LabLedgerError
from labledger.records import JsonObject
from labledger.trial.container_spec import ContainerSpec

FULL_BYTES = 1 << 20
"""A disk with less free space counts as full, because the next write may fail."""

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The error numbers of a full disk and of an exhausted quota."""


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """The free space of a file system."""

    bytes: int
    files: int | None
    """Free inodes; None if the file system has no limit."""

    @property
    def is_full(self) -> bool:
        return self.bytes < FULL_BYTES or self.files == 0


def free_space(path: Path) -> FreeSpace | None:
    """Return the free space at a path, or None if unknown."""
    try:
        usage = os.statvfs(path)
    except OSError:
        return None
    return FreeSpace(usage.f_bavail * usage.f_frsize, usage.f_favail if usage.f_files else None)


class FullDisks:
    """When each disk was last seen full. Thread-safe: a run's threads share it."""

    def __init__(self) -> None:
        self._last_full: dict[int, float] = {}
        """When each device was last seen full, by the monotonic clock."""
        self._lock = threading.Lock()

    def free_space(self, path: Path) -> FreeSpace | None:
        """Return the free space at a path, or None if unknown. Records a full disk."""
        space = free_space(path)
        if space is not None and space.is_full:
            self.record_full(path)
        return space

    def check(self, paths: Iterable[Path]) -> None:
        """Record which of these disks are full. Call this just before freeing space on them."""
        for path in paths:
            self.free_space(path)

    def record_full(self, path: Path) -> None:
        """Record that a write at a path failed because the disk is full."""
        with suppress(OSError):
            device = path.stat().st_dev
            with self._lock:
                self._last_full[device] = clock.monotonic()

    def record_write_error(self, path: Path, error: BaseException) -> None:
        """Record a full disk if `error` says that the disk at `path` is full."""
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            self.record_full(path)

    def were_full_since(self, paths: Iterable[Path], since: float) -> bool:
        """Return whether one of these disks is full, or was since the monotonic time `since`."""
        return any(self._last_seen_full(path) >= since for path in paths)

    def _last_seen_full(self, path: Path) -> float:
        self.free_space(path)
        try:
            return self._last_full.get(path.stat().st_dev, -math.inf)
        except OSError:
            return -math.inf


class OutputUnreadable(LabLedgerError):
    """This host cannot read a trial that has ended. Its container and folder stay."""


@contextmanager
def trial_stays(
    spec: ContainerSpec, full_disks: FullDisks, *, waits_for_grader: bool = False
) -> Iterator[None]:
    """Raise `OutputUnreadable` or `DiskFull` if this host cannot handle a trial.

    The trial has not failed: its containers and its folder stay, and it is collected later.
    `waits_for_grader` is as for `output_unreadable_error`. `NoSuchContainer` is passed on.
    """
    try:
        yield
    except NoSuchContainer:
        raise
    except (OSError, ContainerFailed) as error:
        full_disks.record_write_error(spec.plan.run_dir, error)
        raise output_unreadable_error(spec, error, waits_for_grader=waits_for_grader) from error


def output_unreadable_error(
    spec: ContainerSpec, error: OSError | ContainerFailed, *, waits_for_grader: bool = False
) -> OutputUnreadable | DiskFull:
    """Return the exception to raise if `error` occurs while an ended trial is collected.

    With `waits_for_grader`, the container runs, and its grader's files could not be delivered.
    """
    if isinstance(error, OSError):
        problem = f"{error.strerror} ({error.filename or spec.folder})"
    else:
        problem = error.message
    what, state = "has ended, but could not be collected", "still exists and"
    if waits_for_grader:
        what, state = "waits, but its grader's files could not be delivered", "waits, and"
    message = f"trial {spec.slot.schedule_idx} {what}: {problem}"
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return DiskFull(message)
    return OutputUnreadable(
        message,
        hint=f"fix that, then `labledger resume {spec.run_id}`: the container {state} will not be "
        "run again",
    )


MIN_FREE_BYTES = 512 << 20
"""Default of `--min-free`: the free bytes required before a run and before each dispatch."""

_MIN_FREE_INODES = 1000


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The folders that a run fills, and how many bytes must be free in each."""

    locations: Mapping[Path, str]
    """The use of each folder, by its path."""
    min_free_bytes: int = MIN_FREE_BYTES
    full_disks: FullDisks = field(default_factory=FullDisks)
    """Records the disks that a check finds full."""

    @classmethod
    def of(
        cls, lab_root: Path, engine_info: JsonObject, min_free_bytes: int = MIN_FREE_BYTES
    ) -> DiskSpace:
        """Return the space in the lab folder and, if on this machine, in the engine's folder."""
        locations = {lab_root: "the lab"}
        if (root := engine_data_folder(engine_info)) is not None:
            locations[root] = "Docker's containers"
        return cls(locations, min_free_bytes)

    def find_shortage(self) -> str | None:
        """Return how much space is missing and where, or None if there is enough."""
        shortages = (self._shortage_at(path, use) for path, use in self.locations.items())
        return next((shortage for shortage in shortages if shortage), None)

    def report(self) -> str:
        """Return a text about the free space in each location."""
        measured = ((path, free_space(path)) for path in self.locations)
        return ", ".join(
            f"{free.bytes / 1e9:.1f} GB free at {path}" for path, free in measured if free
        )

    def _shortage_at(self, path: Path, use: str) -> str | None:
        free = self.full_disks.free_space(path)
        if free is None:
            return None
        if free.bytes < self.min_free_bytes:
            missing = self.min_free_bytes - free.bytes
            return (
                f"{_megabytes(missing)} more must be free at {path}, for {use}: "
                f"{_megabytes(free.bytes)} are free, --min-free asks for "
                f"{_megabytes(self.min_free_bytes)}"
            )
        if free.is_full:
            return f"the disk is full at {path}, for {use}"
        if free.files is not None and self.min_free_bytes > 0 and free.files < _MIN_FREE_INODES:
            return f"only {free.files} more files can be created at {path}, for {use}"
        return None


def engine_data_folder(engine_info: JsonObject) -> Path | None:
    """Return the folder in which the engine stores containers, if it is on this machine."""
    root = Path(engine_info.get("DockerRootDir") or "")
    return root if root.is_absolute() and free_space(root) is not None else None


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
