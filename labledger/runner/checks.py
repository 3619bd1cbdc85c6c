"""One thing that was looked at, and the look at the disks that several commands take."""

from __future__ import annotations

from dataclasses import dataclass

from labledger.errors import Exit
from labledger.records import JsonObject
from labledger.runner.room import DiskSpace


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    detail: str
    ok: bool = True
    hint: str | None = None
    """What mends it, where it is not ok."""
    exit_code: Exit = Exit.INCOMPLETE
    """What a failure of it means for the command's exit code."""
    warning: bool = False
    """True when it is not ok and the run may begin all the same."""

    def as_json(self) -> JsonObject:
        return {
            "name": self.name,
            "ok": self.ok,
            "warning": self.warning,
            "detail": self.detail,
            "hint": self.hint,
        }


def check_room(disk_space: DiskSpace) -> Check:
    """Whether there is room for a run."""
    shortage = disk_space.find_shortage()
    return Check(
        "disk",
        shortage or disk_space.report(),
        ok=shortage is None,
        hint="make room, choose another --lab-dir, or lower --min-free",
    )
