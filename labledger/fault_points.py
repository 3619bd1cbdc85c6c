"""Fault points: named places in the code where a test kills or suspends this process.

``LABLEDGER_FAULT=after_commit:3`` kills the process (SIGKILL) when slot 3 reaches the point
`after_commit`. ``LABLEDGER_FAULT=writing_summary`` kills it at the first `writing_summary`. The
prefix ``stop@`` suspends the process once instead (SIGSTOP), until a SIGCONT. Without the variable,
a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

from labledger.errors import InvalidInput, Problem

VARIABLE = "LABLEDGER_FAULT"

POINTS = (
    "models_granted",
    "before_create",
    "after_create",
    "agent_running",
    "before_unseal",
    "agent_part_stored",
    "inside_unseal",
    "after_unseal",
    "before_artifacts",
    "inside_artifacts",
    "after_artifacts",
    "before_grader_create",
    "after_grader_create",
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
    "before_append",
    "inside_append",
    "after_append",
    "before_apply",
    "inside_apply",
    "after_apply",
    "inside_upgrade",
    "inside_import",
    "inside_archive",
    "inside_backup",
    "inside_restore",
    "inside_gc",
    "inside_delete",
    "after_delete",
    "before_notification",
    "after_notification",
    "call_asked",
    "before_call_ended",
    "call_ended",
)
"""Every point. A slot passes the points up to `after_remove` in this order. The others belong to
the end of a run, parts, requests, migrations, imports, archives, backups, restorations, garbage
collection, deletions, notifications and calls to models."""

_STOP_PREFIX = "stop@"


def _parse(text: str) -> tuple[str, int | None] | None:
    """Return the point and the slot that the variable's `text` names, or None if it is empty."""
    if not text:
        return None
    point, _, slot = text.removeprefix(_STOP_PREFIX).partition(":")
    if point not in POINTS or not (slot.isdecimal() or not slot):
        message = (
            f"found {text!r}; expected POINT, POINT:SLOT or {_STOP_PREFIX}POINT:SLOT with one of "
            f"{', '.join(POINTS)}"
        )
        raise InvalidInput("the fault point", [Problem(VARIABLE, message)])
    return point, int(slot) if slot else None


_SELECTED = _parse(os.environ.get(VARIABLE, ""))
_SIGNAL = (
    signal.SIGSTOP if os.environ.get(VARIABLE, "").startswith(_STOP_PREFIX) else signal.SIGKILL
)


def fault_point(point: str, schedule_idx: int | None = None) -> None:
    """Kill or suspend the process if a test selected this point, for slot `schedule_idx`."""
    global _SELECTED
    if _SELECTED is not None and fault_is_set(point, schedule_idx):
        _SELECTED = None
        os.kill(os.getpid(), _SIGNAL)


def fault_is_set(point: str, schedule_idx: int | None = None) -> bool:
    """Return whether a test selected this point, so that the caller can prepare for it."""
    return _SELECTED in ((point, None), (point, schedule_idx))
