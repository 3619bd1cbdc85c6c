"""Read files that a container could write, and decide which names and links are safe.

Such a folder may hold links, FIFOs, devices or huge files, and may change while it is read. Only
regular files with one name are opened, without following links or blocking, and every read is
limited. All outputs and workspaces are read here.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from labledger.errors import LabLedgerError
from labledger.records.outcomes import Reason

MIB = 1 << 20
RESULT_CAP = 8 * MIB
PREDICTION_CAP = 8 * MIB
SCORE_CAP = 1 * MIB
EVENTS_CAP = 32 * MIB
PHASES_CAP = 4096
MAX_VALUES = 1_000_000
"""The most JSON values of an output. Parsed, each takes up to about 200 bytes."""


class UnsafeFile(LabLedgerError):
    """A file that a container wrote cannot be read safely."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class UntrustedFile:
    """A file in a folder that a container could write.

    Only a regular file that has no other name is opened, without following a link and without
    blocking. Every method raises `UnsafeFile` for anything else.
    """

    folder: Path
    name: str

    def read(self, cap: int) -> bytes | None:
        """Return the content, or None if there is no such file.

        Raises `UnsafeFile` for more than `cap` bytes.
        """
        pieces = list(self.chunks(cap))
        return b"".join(pieces) if pieces else None

    def sha256(self, cap: int) -> str | None:
        """Return the content's SHA-256 (hex), None if there is no such file.

        Raises `UnsafeFile` for more than `cap` bytes.
        """
        hasher, exists = hashlib.sha256(), False
        for chunk in self.chunks(cap):
            exists = True
            hasher.update(chunk)
        return hasher.hexdigest() if exists else None

    def chunks(self, cap: int) -> Iterator[bytes]:
        """Yield the content in pieces and then b""; nothing if there is no such file.

        Raises `UnsafeFile` for more than `cap` bytes.
        """
        with self.opened() as file:
            if file is None:
                return
            if (announced := os.fstat(file.fileno()).st_size) > cap:
                raise self._too_large(cap, f"{announced:,}")
            size = 0
            while chunk := file.read(MIB):
                size += len(chunk)
                if size > cap:
                    raise self._too_large(cap, "more")
                yield chunk
            yield b""

    @contextmanager
    def opened(self) -> Iterator[BinaryIO | None]:
        """Open the file, whatever its size; None if there is none."""
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise self._unsafe(f"its folder cannot be opened ({error.strerror})") from None
        try:
            handle = self._open_in(folder)
        finally:
            os.close(folder)
        if handle is None:
            yield None
            return
        with os.fdopen(handle, "rb") as file:
            self._check_kind(os.fstat(handle))
            yield file

    def _open_in(self, folder: int) -> int | None:
        try:
            return open_checked(self.name, self._check_kind, folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unsafe(f"cannot be opened ({error.strerror})") from None

    def _check_kind(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise self._unsafe(f"is {kind}; a regular file is expected")
        if status.st_nlink != 1:
            raise self._unsafe(f"has {status.st_nlink} names (hard links); one is expected")

    def _unsafe(self, what: str) -> UnsafeFile:
        return UnsafeFile(Reason.OUTPUT_UNSAFE, f"{self.name} {what}")

    def _too_large(self, cap: int, size: str) -> UnsafeFile:
        message = f"{self.name} has {size} bytes; at most {cap:,} are read"
        return UnsafeFile(Reason.OUTPUT_TOO_LARGE, message)


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_checked(
    path: str, check: Callable[[os.stat_result], None], dir_fd: int | None = None
) -> int:
    """Open a file for reading if `check` accepts it, and return the descriptor.

    A container may replace the file at any time, also by a device that acts when it is opened. So
    `check` gets the status of the very file that is then opened. No link is followed. Raises
    `OSError`, and the errors of `check`.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    seen = os.open(path, flags, dir_fd=dir_fd)
    try:
        check(os.fstat(seen))
        return os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(seen)


def head_chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield a file's first `size` bytes in pieces."""
    file.seek(0)
    while size > 0 and (chunk := file.read(min(MIB, size))):
        size -= len(chunk)
        yield chunk


def read_optional(folder: Path, name: str, cap: int) -> tuple[bytes | None, str | None]:
    """Return the content of an optional output, or the reason why it could not be read."""
    try:
        return UntrustedFile(folder, name).read(cap), None
    except UnsafeFile as error:
        return None, error.message


def read_ascii(folder: Path, name: str, cap: int) -> str:
    """Return a small text of `trial.sh`, which any process of the container could have written.

    Returns an empty text if the file is missing or cannot be read safely.
    """
    content, _ = read_optional(folder, name, cap)
    return (content or b"").decode("ascii", "replace")


def remove_device_files(top: Path) -> None:
    """Delete device files below a folder, as far as this user may. Follow no link.

    Otherwise, a program that copies or searches the folder would read the devices.
    """
    pending = [str(top)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as children:
            for child in children:
                with suppress(OSError):
                    mode = child.stat(follow_symlinks=False).st_mode
                    if stat.S_ISDIR(mode):
                        pending.append(child.path)
                    elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                        os.unlink(child.path)  # noqa: PTH108


# -- names and links


def is_text(name: str) -> bool:
    """Return whether a name is UTF-8 without replacement characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\ufffd" not in name


def is_safe_name(name: str) -> bool:
    """Return whether a name is a relative path without empty, `.` or `..` parts."""
    return "\0" not in name and all(step not in {"", ".", ".."} for step in name.split("/"))


def printable(name: str) -> str:
    """Return a name with U+FFFD for bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def parents(name: str) -> Iterator[str]:
    """Yield the folders above a name, the nearest first, without the top."""
    while name := name.rpartition("/")[0]:
        yield name


def link_stays_inside(name: str, target: str) -> bool:
    """Return whether a symbolic link cannot lead out of the top folder, even through other links.

    Steps upwards are allowed only at the beginning, where they leave real folders if no name is
    below a link. After a name, which may be a link, a step upwards could lead anywhere.
    """
    if not name or not target or target.startswith("/"):
        return False
    steps = [step for step in target.split("/") if step not in {"", "."}]
    upwards = next((i for i, step in enumerate(steps) if step != ".."), len(steps))
    return upwards <= name.count("/") and ".." not in steps[upwards:]
