"""The result of a check, and the checks of size and disk space that several commands share.

A failed check is a result with a hint, not an exception.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from labledger.errors import Problem
from labledger.exit_codes import Exit
from labledger.experiment.trial_settings import TrialSettings
from labledger.records.json_codec import JsonForm
from labledger.text.figures import format_size
from labledger.text.words import counted
from labledger.trial.free_disk_space import DiskSpace

_MANY_SLOTS = 100_000
"""From this number of slots on, a check warns."""
_BYTES_PER_SLOT = 4_000
"""The space that a slot without logs, events and metrics takes in ledger and mirrors."""
_LEAST_TRIAL_S = 1


@dataclass(frozen=True, slots=True)
class CheckResult(JsonForm):
    """The result of one check."""

    name: str
    detail: str
    ok: bool = True
    hint: str | None = None
    """The suggested fix for a failed check."""
    exit_code: Exit = Exit.INCOMPLETE
    """The exit code of the command if this check failed."""
    warning: bool = False
    """True if the check failed but the run may begin."""
    concerns: Callable[[TrialSettings], bool] | None = field(
        default=None, compare=False, repr=False
    )
    """Returns whether a container with these settings depends on the check. If the check failed,
    only tasks with such a container cannot run. None if the check concerns the whole run.
    """

    _JSON = ("name", "ok", "warning", "detail", "hint")

    @property
    def has_failed(self) -> bool:
        """Whether it failed, so that the run cannot begin."""
        return not (self.ok or self.warning)


def failed(
    name: str,
    detail: str,
    *,
    hint: str | None = None,
    concerns: Callable[[TrialSettings], bool] | None = None,
) -> CheckResult:
    """Return a failed check: something is missing on this machine or on a host."""
    return CheckResult(name, detail, ok=False, hint=hint, concerns=concerns)


def invalid(
    name: str,
    detail: str,
    *,
    hint: str | None = None,
    concerns: Callable[[TrialSettings], bool] | None = None,
    warning: bool = False,
) -> CheckResult:
    """Return a failed check of something that the experiment asks for and cannot get."""
    return CheckResult(name, detail, False, hint, Exit.INVALID, warning, concerns)


def warned(name: str, detail: str, *, hint: str | None) -> CheckResult:
    """Return a failed check that does not keep a run from beginning."""
    return CheckResult(name, detail, ok=False, hint=hint, warning=True)


def problems_of(checks: Iterable[CheckResult]) -> list[Problem]:
    """Return the problems that keep a run from beginning, one for each check that failed."""
    return [Problem(c.name, c.detail, hint=c.hint) for c in checks if c.has_failed]


def runs_in(image: str) -> Callable[[TrialSettings], bool]:
    """Return the function `CheckResult.concerns` for a check of an image."""
    return lambda container: container.runtime.image == image


@dataclass(frozen=True, slots=True)
class TaskSupport(JsonForm):
    """Whether a task of a benchmark can be run."""

    task_id: str
    reason: str | None = None
    """Why the task cannot run, and what it would need; None if it can."""

    _JSON = ("task_id", "runs", "reason")

    @property
    def runs(self) -> bool:
        return self.reason is None


def check_size(slots: int, at_once: int, lab_root: Path) -> Iterator[CheckResult]:
    """Yield the least time and disk space of a large run, compared with the lab's disk."""
    if slots < _MANY_SLOTS:
        return
    needed, free = slots * _BYTES_PER_SLOT, shutil.disk_usage(lab_root).free
    days = slots * _LEAST_TRIAL_S / at_once / 86_400
    detail = (
        f"{counted(slots, 'trial')} take {days:,.1f} days if each trial takes {_LEAST_TRIAL_S} s "
        f"and {at_once:,} run at once, and at least {format_size(needed)} of disk space"
    )
    fits = needed < free
    yield CheckResult(
        "size",
        detail if fits else f"{detail}; {format_size(free)} are free at {lab_root}",
        ok=False,
        hint="`labledger run --dry-run` estimates time and cost from earlier runs; "
        "`design.replications`, `limit=`, `tasks=` and `shard=` choose fewer trials, and a "
        "budget limits their cost",
        warning=fits,
    )


def check_disk_space(disk_space: DiskSpace) -> CheckResult:
    """Check that the disks have enough free space for a run."""
    shortage = disk_space.find_shortage()
    return CheckResult(
        "disk",
        shortage or disk_space.report(),
        ok=shortage is None,
        hint="free some space, choose another `lab_dir=`, or lower `min_free_bytes=`",
    )
