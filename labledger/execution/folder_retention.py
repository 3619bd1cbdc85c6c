"""Which trial folders are kept when their results are durable."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path

from labledger.files.untrusted_files import remove_device_files
from labledger.records.outcomes import SlotStatus
from labledger.records.pass_rate import is_clean_pass

_KEPT = "kept"
"""The folder for retained trial folders, in the run folder."""


class FolderRetention(StrEnum):
    """Which trial folders are retained."""

    NONE = "none"
    FAILED = "failed"
    """Folders of trials that did not complete, or did not pass."""
    ALL = "all"

    def applies_to(self, status: SlotStatus | None, verdict: str | None) -> bool:
        """Return whether to retain the folder of a trial with this status and verdict.

        `status` is None for an attempt that was not committed.
        """
        if self is not FolderRetention.FAILED:
            return self is FolderRetention.ALL
        return not is_clean_pass(status, verdict)


def move_to_kept(trial_folder: Path) -> None:
    """Move a trial folder to `kept/`. Do nothing if it is gone already.

    It holds everything that the container wrote, including secrets, but no device files.
    """
    target = trial_folder.parent.parent / _KEPT / trial_folder.name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if trial_folder.exists():
        shutil.rmtree(target, ignore_errors=True)
        remove_device_files(trial_folder)
        trial_folder.rename(target)
