"""Whether a lab folder is trusted. Only then do its settings and stored receivers act.

A copied or cloned lab folder may contain settings and rows that run commands as this user. It is
trusted after this user has created it with labledger, or allowed it with `labledger allow`, and
only if other users cannot change it unnoticed.
"""

from __future__ import annotations

import os
import shlex
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from labledger.errors import LabLedgerError, PermissionNeeded, Problem
from labledger.files import permissions
from labledger.files.lab_folder import LabFolder
from labledger.files.permissions import Permission, PermissionStore
from labledger.files.replaceable_paths import replaceable_at


@dataclass(frozen=True, slots=True)
class LabTrust:
    """Whether the settings and receivers of a lab folder act.

    A permission in the user's own settings names the folder's real path, inode and owner, and a
    random mark in the folder. So a copy, a moved folder, or an older state of the folder on another
    inode needs a new permission. A folder is never trusted if other users own its settings or
    ledger, can write to it, or can replace the target of its path or links.
    """

    lab: LabFolder
    why_not: str | None
    """Why the folder is not trusted; None if it is."""
    is_allowable: bool = True
    """Whether `labledger allow` makes it trusted."""

    @classmethod
    def of(cls, lab: LabFolder) -> Self:
        """Return whether a lab folder is trusted. A missing folder is, because it has no settings
        and no receivers."""
        try:
            folder = lab.root.stat()
        except OSError:
            return cls(lab, None)
        if (problem := _changed_by_others(lab, folder)) is not None:
            return cls(lab, problem, is_allowable=False)
        try:
            needed = permissions.missing([permissions.of_lab_folder(lab.root)])
        except (LabLedgerError, OSError) as error:
            return cls(lab, str(error))
        return cls(lab, "you have not allowed this folder" if needed else None)

    @property
    def is_trusted(self) -> bool:
        return self.why_not is None

    def sentence(self) -> str:
        """Return a sentence about the receivers that are not notified, and the remedy."""
        return (
            f"labledger does not notify the receivers that {self.lab.root} names: {self.why_not}; "
            f"{self.remedy()}"
        )

    def refuse(self) -> NoReturn:
        """Raise `PermissionNeeded`, for an action that needs trust."""
        raise PermissionNeeded(
            f"the lab {self.lab.root} names receivers that labledger must not notify",
            [Problem(str(self.lab.root), self.why_not or "", hint=self.remedy())],
        )

    def remedy(self) -> str:
        """Return what the user can do to make the folder trusted."""
        if self.is_allowable:
            return f"if you trust it, allow it: `labledger allow {shlex.quote(str(self.lab.root))}`"
        return (
            "check its content; if it is what you expect, make it yours alone with `chown` and "
            "`chmod go-w`"
        )


def permission_to_ask_for(lab: LabFolder) -> Permission | None:
    """Return the permission that would make a lab folder trusted; None if it is trusted.

    Marks the folder, so that the permission covers only this folder. Raises `LabLedgerError` if no
    permission can make it trusted.
    """
    trust = LabTrust.of(lab)
    if trust.is_trusted:
        return None
    if not trust.is_allowable:
        raise LabLedgerError(
            f"the lab {lab.root} cannot be allowed: {trust.why_not}", hint=trust.remedy()
        )
    with suppress(OSError):  # This user may not be allowed to write to another user's folder.
        permissions.mark_lab_folder(lab.root)
    return permissions.of_lab_folder(lab.root)


def trust_new(lab: LabFolder) -> None:
    """Trust a lab folder that this process has created, if the permission can be stored."""
    with suppress(LabLedgerError, OSError):
        permissions.mark_lab_folder(lab.root)
        new = permissions.of_lab_folder(lab.root)
        PermissionStore.of_user().add([new], forget=permissions.is_of_lost_folder)


def _changed_by_others(lab: LabFolder, folder: os.stat_result) -> str | None:
    """Return why users other than this one and the folder's owner may have changed the lab."""
    if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users can write to it (its mode is {stat.S_IMODE(folder.st_mode):o})"
    # SQLite also reads rows from the last two files.
    ledger_files = [lab.ledger.with_name(lab.ledger.name + end) for end in ("", "-wal", "-journal")]
    for path in (lab.settings, *ledger_files):
        try:
            status = path.stat()
        except OSError:
            continue
        if status.st_uid not in (folder.st_uid, os.geteuid()):
            return f"{path.name} in it belongs to the user with the id {status.st_uid}"
        # A run closes the folder to other users, but their earlier changes remain.
        if status.st_mode & stat.S_IWOTH:
            mode = stat.S_IMODE(status.st_mode)
            return f"other users can write to {path.name} in it (its mode is {mode:o})"
        if path.is_symlink() and (place := _replaceable(path, folder)) is not None:
            return f"{path.name} in it is a link, and {place}"
    # A team may share the folder above. Another lab in its place has another inode and mark.
    return _replaceable(lab.root, folder, may_share=True)


def _replaceable(path: Path, folder: os.stat_result, *, may_share: bool = False) -> str | None:
    try:
        return replaceable_at(path, owners=[folder.st_uid], may_share=may_share)
    except OSError as error:
        return f"its path cannot be examined ({error.strerror})"
