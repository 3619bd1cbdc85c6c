"""`--keep`: trial folders that stay when their results are in the ledger, to be looked into."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path

from labledger.records import SlotStatus, Verdict

FOLDER = "kept"
"""Where they go in the run folder. They hold what the containers wrote, secrets included."""


class Keep(StrEnum):
    """Which trial folders stay."""

    NONE = "none"
    FAILED = "failed"
    """Those of trials that did not complete, or did not pass."""
    ALL = "all"

    def holds(self, status: SlotStatus | None, verdict: str | None) -> bool:
        """True where the folder of such a trial stays; of None, little is known."""
        if self is not Keep.FAILED:
            return self is Keep.ALL
        return status is not SlotStatus.COMPLETED or verdict != Verdict.PASS


def place_for(folder: Path) -> Path:
    """Where a trial folder of a run goes to stay."""
    return folder.parent.parent / FOLDER / folder.name


def put_away(folder: Path) -> None:
    """Move a trial folder to where it stays; one that is gone already is no error."""
    place = place_for(folder)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    if folder.exists():
        shutil.rmtree(place, ignore_errors=True)
        folder.rename(place)
