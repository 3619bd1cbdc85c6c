"""The errors for a trial with which this host cannot go on, though it has not failed.

It has ended and cannot be read, or it waits for its grader's files and cannot get them. Its
container and folder stay, and a resumed run goes on with it. Used
by `worker`, `adoption`, `delivery` and `container_identity`; the coordinator stops the run.
"""

from __future__ import annotations

from labledger.docker.engine_errors import ContainerFailed
from labledger.errors import DiskFull, LabLedgerError
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.full_disks import DISK_FULL_ERRNOS


class OutputUnreadable(LabLedgerError):
    """A trial has ended and cannot be read on this host. Its container and folder stay."""


def output_unreadable_error(
    spec: AttemptSpec, error: OSError | ContainerFailed
) -> OutputUnreadable | DiskFull:
    """Return the exception to raise if `error` occurs while an ended trial is collected."""
    problem = _problem(spec, error)
    message = f"slot {spec.slot.schedule_idx} has ended and could not be collected: {problem}"
    hint = (
        f"fix that, then `labledger resume {spec.run_id}`: the container still exists and will not "
        "be run again"
    )
    return _error(error, message, hint)


def not_delivered_error(
    spec: AttemptSpec, error: OSError | ContainerFailed
) -> OutputUnreadable | DiskFull:
    """Return the exception to raise if `error` occurs while a grader's files are delivered."""
    message = (
        f"slot {spec.slot.schedule_idx} waits for its grader's files, which could not be "
        f"delivered: {_problem(spec, error)}"
    )
    hint = (
        f"fix that, then `labledger resume {spec.run_id}`: the container waits, and will not be "
        "run again"
    )
    return _error(error, message, hint)


def _problem(spec: AttemptSpec, error: OSError | ContainerFailed) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror} ({error.filename or spec.folder})"
    return error.message


def _error(
    error: OSError | ContainerFailed, message: str, hint: str
) -> OutputUnreadable | DiskFull:
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return DiskFull(message)
    return OutputUnreadable(message, hint=hint)
