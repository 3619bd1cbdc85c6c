"""Check who could change the cache of agents. Files that another user can change are not used.

Programs of the cache run in trials. Node and patchelf also run on this machine.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from labledger.errors import LabLedgerError
from labledger.files.fingerprints import entries_below

_TRUSTED_MODES = frozenset({0o755, 0o644})
"""The modes of everything in an agent's folder, except links."""


class CacheNotOwn(LabLedgerError):
    """Another user could change the cache of agents."""


def require_own(folder: Path) -> None:
    """Raise `CacheNotOwn` if another user than this one or root could replace a folder.

    Checks the folder and its existing parents, and the targets of links.
    """
    for path in _with_parents(folder):
        if (reason := _foreign(path)) is not None:
            raise CacheNotOwn(
                f"labledger neither installs nor uses agents in {folder}: {path} {reason}",
                hint="set XDG_CACHE_HOME to a folder that only you can change, or restore the "
                "owner and the mode of this one",
            )


def make_own_folder(folder: Path, *, below: Path) -> None:
    """Create a folder and its parents, so that only this user can change them.

    New folders at or below `below` get the mode 755, because the umask may let a group change
    them. Raises `CacheNotOwn`.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        if path == below or path.is_relative_to(below):
            path.chmod(0o755)
    require_own(folder)


def is_own_entry(entry: Path, tree: Path) -> bool:
    """Return whether all files of an entry belong to this user or root and have the usual modes.

    `tree` is the part of the entry that containers mount. Raises `OSError`.
    """
    owners = (0, os.geteuid())
    for _, status in entries_below(str(tree)):
        is_usual = stat.S_ISLNK(status.st_mode) or status.st_mode & 0o7777 in _TRUSTED_MODES
        if status.st_uid not in owners or not is_usual:
            return False
    return not any(map(_foreign, (entry, *entry.iterdir())))


def _with_parents(folder: Path) -> Iterator[Path]:
    """Yield the folder and its existing parents, as named and with links followed."""
    named = folder.absolute()
    real = Path(os.path.realpath(named))
    for path in dict.fromkeys((named, *named.parents, real, *real.parents)):
        if os.path.lexists(path):
            yield path


def _foreign(path: Path) -> str | None:
    """Return why another user could change a path, or None."""
    status = path.lstat()
    user = os.geteuid()
    if status.st_uid not in (0, user):
        return f"belongs to {_user_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
        # A link has no mode. In a sticky folder, other users cannot replace this user's files.
        return None
    if status.st_mode & stat.S_IWOTH:
        return "can be changed by every user"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid, user):
        return f"can be changed by the group {_group_name(status.st_gid)}"
    return None


def _is_private_group(group: int, user: int) -> bool:
    """Return whether a group is the user's private one, which many systems name like the user."""
    if group == 0:
        return True
    try:
        entry, owner = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:
        return False
    others = set(entry.gr_mem) - {owner.pw_name}
    return entry.gr_name == owner.pw_name and not others


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"the user {user}"


def _group_name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
