"""A trial that ended and cannot be read on this host, which is no fault of the trial."""

from __future__ import annotations

from labledger.errors import LabLedgerError, NoRoom
from labledger.trial.container import ContainerFailed
from labledger.trial.contract import TrialSpec
from labledger.trial.disks import DISK_FULL_ERRNOS


class OutputUnreadable(LabLedgerError):
    """A trial ended and could not be read on this host; its container and folder are kept."""


def output_unreadable_error(
    spec: TrialSpec, error: OSError | ContainerFailed
) -> OutputUnreadable | NoRoom:
    """What to raise for a trial that has ended where this host met `error`."""
    problem = (
        f"{error.strerror} ({error.filename or spec.folder})"
        if isinstance(error, OSError)
        else error.message
    )
    what = f"slot {spec.slot.schedule_idx} has ended and could not be collected: {problem}"
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return NoRoom(what)
    hint = "mend that and resume: its container is kept, and it is not run again"
    return OutputUnreadable(what, hint=hint)
