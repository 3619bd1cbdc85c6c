"""Which files an experiment may read without a permission, and how they are opened.

An experiment may read everything in its project: the repository that holds it, or else the folder
that holds its lab, or else its own folder, but never the whole home folder. Paths out of the
project need the user's permission, also through links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import NoReturn, Self

from labledger.files import permissions
from labledger.files.lab_folder import FOLDER, expand_home
from labledger.files.permissions import Permission

_REPOSITORY = ".git"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> tuple[BufferedReader, Path]:
    """Open a regular file without blocking, and return it with its real path.

    The opened file decides where the path leads. Raises `OSError` for other kinds, such as a FIFO,
    and for a path that changes meanwhile.
    """
    # Opening a device may trigger an action.
    _require_regular(path.stat(), path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        opened = os.fstat(file.fileno())
        _require_regular(opened, path)
        real = Path(os.path.realpath(path))
        if not os.path.samestat(opened, real.stat()):
            raise OSError(errno.EBUSY, "it was replaced while it was opened", str(path))
    except BaseException:
        file.close()
        raise
    return file, real


def read_regular(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes. Raises `OSError`."""
    file, _ = open_regular(path)
    with file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit >> 10:,} KiB", str(path))
    return content


def _require_regular(status: os.stat_result, path: Path) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        what = _KINDS.get(kind, "something else")
        raise OSError(errno.EINVAL, f"it is {what}; a regular file is expected", str(path))


def open_without_link(path: Path) -> BufferedReader:
    """Open a file that was regular before. Raises `OSError` if it is now a link or another kind."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _require_regular(os.fstat(file.fileno()), path)
    except BaseException:
        file.close()
        raise
    return file


@dataclass(frozen=True)
class ProjectFiles:
    """The files of one experiment's or benchmark's project, and permissions for other files."""

    name: str
    """The argument for `labledger allow`."""
    root: Path
    """The project's folder, without links."""
    is_allowed_by_name: bool = True
    """Whether `labledger allow` accepts the name. Otherwise it needs the digests."""
    _needed: dict[str, Permission] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, name: str | Path) -> Self:
        """Return the files of the project that a folder belongs to."""
        return cls(str(name), _project_of(Path(os.path.realpath(folder))))

    @classmethod
    def of_location(cls, path: Path, name: str, *, is_allowed_by_name: bool = True) -> Self:
        """Return the files of the project that contains a benchmark's location.

        The folder that the user named, before any link, decides the project.
        """
        return cls(name, _project_of(_named_folder(path)), is_allowed_by_name=is_allowed_by_name)

    def open(self, path: Path) -> BufferedReader:
        """Open a regular file of the project, or an allowed file outside.

        Raises `PermissionNeeded`, and `OSError`.
        """
        file, real = open_regular(path)
        if not self._may_read(real, exact=True):
            file.close()
            self.refuse()
        return file

    def may_read(self, path: Path) -> bool:
        """Return whether a folder or file that a task or a build names may be read.

        If not, remembers the missing permission for `refuse`. One permission covers all named files
        of a folder, because a dataset names many.
        """
        return self._may_read(Path(os.path.realpath(path)), exact=False)

    def _may_read(self, real: Path, *, exact: bool) -> bool:
        if real.is_relative_to(self.root):
            return True
        needed = self._permission(real, exact=exact)
        if needed.digest in self._allowed:
            return True
        self._needed[needed.digest] = needed
        return False

    @cached_property
    def _allowed(self) -> frozenset[str]:
        return permissions.allowed_digests()

    def _permission(self, real: Path, *, exact: bool) -> Permission:
        outside = f"which is outside of the project {self.root}"
        subject = {"project": str(self.root)}
        # One permission must not cover a whole home folder or machine.
        if exact or _is_too_wide(real.parent):
            subject["path"] = str(real)
            return Permission("outside_path", subject, f"read {real}, {outside}", "files")
        subject["folder"] = str(real.parent)
        sentence = f"read what tasks name in the folder {real.parent}, {outside}"
        return Permission("outside_folder", subject, sentence, "files")

    def require(self, others: Iterable[Permission] = ()) -> None:
        """Raise `PermissionNeeded` if a permission is missing so far.

        The error also asks for `others`, which are no reason to refuse by themselves.
        """
        if self._needed:
            self.refuse(others)

    def refuse(self, others: Iterable[Permission] = ()) -> NoReturn:
        """Raise `PermissionNeeded` with all permissions that are missing so far."""
        needed = (*self._needed.values(), *permissions.missing(others))
        raise permissions.refusal(needed, self.name, by_name=self.is_allowed_by_name)

    def require_exactly(self, path: Path) -> None:
        """Raise `PermissionNeeded` if a path leads out of the project and is not allowed."""
        if not self._may_read(Path(os.path.realpath(path)), exact=True):
            self.refuse()


def require_location(path: Path, name: str) -> None:
    """Raise `PermissionNeeded` for a benchmark's location that is a link out of its project."""
    ProjectFiles.of_location(path, name).require_exactly(path)


def _named_folder(path: Path) -> Path:
    """Return the real folder of the first link in a path, or the folder of a path without a link.

    Only links below the working directory, and the last name, count. The user chose the rest.
    """
    place, working_dir = path.absolute(), Path.cwd()
    below = [path for path in place.parents if path.is_relative_to(working_dir)]
    candidates = [place, *(path for path in below if path != working_dir)]
    links = [path for path in candidates if path.is_symlink()]
    return (
        Path(os.path.realpath(links[-1].parent)) if links else Path(os.path.realpath(place)).parent
    )


def _project_of(folder: Path) -> Path:
    """Return the project's folder: the outermost of the experiment's lab and its repository."""
    nearest_lab = None
    for candidate in _candidates(folder):
        if _has_marker(candidate, _REPOSITORY, folder):
            return candidate
        if nearest_lab is None and _has_marker(candidate, FOLDER, folder):
            nearest_lab = candidate
    return nearest_lab or folder


def _candidates(folder: Path) -> Iterator[Path]:
    for candidate in (folder, *folder.parents):
        if _is_too_wide(candidate):
            return
        yield candidate


def _is_too_wide(folder: Path) -> bool:
    """Return whether a folder is, or contains, the user's home folder."""
    return Path(os.path.realpath(expand_home("~"))).is_relative_to(folder)


def _has_marker(candidate: Path, marker: str, folder: Path) -> bool:
    """Return whether a folder has a marker, and its owner may make it a project.

    The owner must be this user or the experiment's owner. So another user who can write to a
    folder above cannot make it a project.
    """
    try:
        owners = {(candidate / marker).lstat().st_uid, candidate.stat().st_uid}
        return len(owners) == 1 and owners <= {os.geteuid(), folder.stat().st_uid}
    except OSError:
        return False
