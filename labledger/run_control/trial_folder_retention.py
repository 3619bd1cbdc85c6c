"""`--keep`: retention of trial folders after their results are in the ledger, for debugging.

A retained folder moves to `kept/` in the run folder. It holds everything the container wrote,
secrets included. Used by the executor and by the cleanup of a run.
"""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path

from labledger.records.outcomes import SlotStatus, Verdict

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
