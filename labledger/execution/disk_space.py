"""Watch the space on the disks that a run needs, and which trial folders stay.

The lab folder and the engine's own folder are checked before a run begins and before each dispatch,
so that a trial is not started whose output could not be stored. A trial folder that `--keep`
retains moves to `kept/` in the run folder once its result is in the ledger. It holds everything
that the container wrote, secrets included.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from labledger.records import JsonObject
from labledger.records.outcomes import SlotStatus, Verdict
from labledger.trial.full_disks import FullDisks, free_space

MIN_FREE_BYTES = 512 << 20
"""Default of `--min-free`: the free bytes required before a run begins and before each dispatch."""

_MIN_FREE_INODES = 1000


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The folders that a run fills, and how many bytes must be free in each."""

    locations: Mapping[Path, str]
    """What each folder holds, by its path."""
    min_free_bytes: int = MIN_FREE_BYTES
    full_disks: FullDisks = field(default_factory=FullDisks)
    """Where each check records the disks that it finds full."""

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
        """Return how much space is free in each location, for a person."""
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


FOLDER = "kept"
"""The folder for retained trial folders, in the run folder."""


class FolderRetention(StrEnum):
    """Which trial folders are retained."""

    NONE = "none"
    FAILED = "failed"
    """Those of trials that did not complete, or did not pass."""
    ALL = "all"

    def applies_to(self, status: SlotStatus | None, verdict: str | None) -> bool:
        """Return whether the folder of a trial with this status and verdict is retained.

        `status` is None for an attempt that was not committed.
        """
        if self is not FolderRetention.FAILED:
            return self is FolderRetention.ALL
        return status is not SlotStatus.COMPLETED or verdict != Verdict.PASS


def kept_folder(trial_folder: Path) -> Path:
    """Return where a trial folder is moved if it is retained."""
    return trial_folder.parent.parent / FOLDER / trial_folder.name


def move_to_kept(trial_folder: Path) -> None:
    """Move a trial folder to `kept/`. Do nothing if it is gone already."""
    target = kept_folder(trial_folder)
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if trial_folder.exists():
        shutil.rmtree(target, ignore_errors=True)
        trial_folder.rename(target)
