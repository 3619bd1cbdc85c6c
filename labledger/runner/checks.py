"""One thing that was looked at, and the look at the disk that several commands take."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from labledger.errors import Exit
from labledger.records import JsonObject
from labledger.runner.lab import Lab

MIN_FREE_BYTES = 512 << 20


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


def check_disk(lab: Lab) -> Check:
    """Whether there is room where the lab lies, or will lie."""
    folder = lab.standing
    free = shutil.disk_usage(folder).free
    return Check(
        "disk",
        f"{free / 1e9:.1f} GB free at {folder}",
        ok=free >= MIN_FREE_BYTES,
        hint=f"make room: at least {MIN_FREE_BYTES / 1e9:.1f} GB, or choose another --lab-dir",
    )
