"""Whether other users of the machine can put another file or folder at a path.

The owner and mode of a file do not show this. A user who can write to a folder on the way to a file
can rename its entries and put a link there. The way includes the folder of every link on it.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

_MAX_LINKS = 40


def replaceable_at(
    path: Path, *, owners: Collection[int] = (), may_share: bool = False
) -> str | None:
    """Return a sentence that names where other users can replace a path's target; None if nowhere.

    Trusts this user, root and `owners`. In a folder with the sticky bit, such as `/tmp`, users can
    replace only their own entries. A group with write access counts as other users, unless only
    this user is in it. The last name may be missing. With `may_share`, only folders that every user
    can write to count. Raises `OSError`.
    """
    trusted = {os.geteuid(), 0, Path("/").stat().st_uid, *owners}
    for folder, entry in _steps(path):
        status = folder.stat()
        if status.st_uid not in trusted and not may_share:
            return f"the folder {folder} belongs to the user with the id {status.st_uid}"
        if not _others_can_write(status, may_share=may_share):
            continue
        is_sticky = bool(status.st_mode & stat.S_ISVTX)
        if not is_sticky or _owner(entry) not in {None, *trusted}:
            mode = stat.S_IMODE(status.st_mode)
            return f"other users can write to the folder {folder} (its mode is {mode:o})"
    return None


def _steps(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each folder on the way to a path, and the entry in it, links included."""
    pending = list(reversed(path.absolute().parts[1:]))
    folder, links = Path("/"), 0
    while pending:
        name = pending.pop()
        if name == "..":
            folder = folder.parent
            continue
        entry = folder / name
        yield folder, entry
        if not entry.is_symlink():
            folder = entry
            continue
        links += 1
        if links > _MAX_LINKS:
            return  # Opening the path would fail.
        target = entry.readlink()
        if target.is_absolute():
            folder = Path("/")
        pending += [part for part in reversed(target.parts) if part != "/"]


def _owner(entry: Path) -> int | None:
    try:
        return entry.lstat().st_uid
    except FileNotFoundError:
        return None


def _others_can_write(status: os.stat_result, *, may_share: bool) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    is_open_to_group = bool(status.st_mode & stat.S_IWGRP)
    return is_open_to_group and not may_share and not _is_private_group(status.st_gid)


def _is_private_group(group_id: int) -> bool:
    """Return whether a group is this user's private group, as on systems with the umask 002."""
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(group_id)
    except KeyError:
        return False
    is_own = group_id == user.pw_gid and group.gr_name == user.pw_name
    return is_own and set(group.gr_mem) <= {user.pw_name}
