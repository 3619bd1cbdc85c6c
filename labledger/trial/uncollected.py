"""A trial that ended and cannot be read on this host, which is no fault of the trial."""

from __future__ import annotations

from labledger.errors import LabLedgerError, NoRoom
from labledger.trial.container import ContainerFailed
from labledger.trial.contract import TrialSpec
from labledger.trial.disks import NO_ROOM


class Uncollected(LabLedgerError):
    """A trial ended and could not be read on this host; its container and folder are kept."""


def uncollected(spec: TrialSpec, error: OSError | ContainerFailed) -> Uncollected | NoRoom:
    """What to raise for a trial that has ended where this host met `error`."""
    trouble = (
        f"{error.strerror} ({error.filename or spec.folder})"
        if isinstance(error, OSError)
        else error.message
    )
    what = f"slot {spec.slot.schedule_idx} has ended and could not be collected: {trouble}"
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return NoRoom(what)
    hint = "mend that and resume: its container is kept, and it is not run again"
    return Uncollected(what, hint=hint)
