"""The error for a trial that has ended and whose outputs cannot be read on this host.

The trial has not failed: its container and folder stay, and a resumed run collects its result. Used
by `worker`, `adoption` and `container_identity`; the coordinator stops the run.
"""

from __future__ import annotations

from labledger.docker.engine import ContainerFailed
from labledger.errors import DiskFull, LabLedgerError
from labledger.trial.contract import AttemptSpec
from labledger.trial.full_disks import DISK_FULL_ERRNOS


class OutputUnreadable(LabLedgerError):
    """A trial has ended and cannot be read on this host. Its container and folder stay."""


def output_unreadable_error(
    spec: AttemptSpec, error: OSError | ContainerFailed
) -> OutputUnreadable | DiskFull:
    """Return the exception to raise if `error` occurs while an ended trial is collected."""
    problem = (
        f"{error.strerror} ({error.filename or spec.folder})"
        if isinstance(error, OSError)
        else error.message
    )
    message = f"slot {spec.slot.schedule_idx} has ended and could not be collected: {problem}"
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return DiskFull(message)
    hint = "fix that and resume the run: the container still exists and will not be run again"
    return OutputUnreadable(message, hint=hint)
