"""Named points at which a test ends or suspends this process, exactly there.

``LABLEDGER_FAULT=after_commit:3`` kills the process (SIGKILL) when slot 3 reaches the point
`after_commit`; ``LABLEDGER_FAULT=writing_summary`` when anything first reaches that point. With
``stop@`` before it, the process is suspended there (SIGSTOP), once, until somebody continues it.
Without the variable, reaching a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

from labledger.errors import InvalidInput, Problem

VARIABLE = "LABLEDGER_FAULT"

POINTS = (
    "before_create",
    "after_create",
    "agent_running",
    "before_unseal",
    "after_unseal",
    "grader_running",
    "after_exit",
    "reading_outputs",
    "before_stage",
    "inside_stage",
    "after_stage",
    "before_commit",
    "inside_commit",
    "after_commit",
    "inside_mirror_line",
    "before_remove",
    "after_remove",
    "writing_summary",
    "inside_upgrade",
    "inside_import",
)
"""Every point, in the order in which a slot passes them."""


_STOP = "stop@"


def _parse(text: str) -> tuple[str, int | None] | None:
    """The point and the slot that the variable names; None where it names none."""
    if not text:
        return None
    point, _, slot = text.removeprefix(_STOP).partition(":")
    if point not in POINTS or not (slot.isdecimal() or not slot):
        message = (
            f"found {text!r}; expected POINT, POINT:SLOT or {_STOP}POINT:SLOT with one of "
            f"{', '.join(POINTS)}"
        )
        raise InvalidInput("the fault asked for", [Problem(VARIABLE, message)])
    return point, int(slot) if slot else None


_WANTED = _parse(os.environ.get(VARIABLE, ""))
_SIGNAL = signal.SIGSTOP if os.environ.get(VARIABLE, "").startswith(_STOP) else signal.SIGKILL


def fault_point(point: str, schedule_idx: int | None = None) -> None:
    """Say that the process is at `point`, for slot `schedule_idx` where it is about one."""
    global _WANTED
    if _WANTED is not None and is_wanted(point, schedule_idx):
        _WANTED = None
        os.kill(os.getpid(), _SIGNAL)


def is_wanted(point: str, schedule_idx: int | None = None) -> bool:
    """True when something happens at this point; for a point that needs some preparation."""
    return _WANTED in ((point, None), (point, schedule_idx))
