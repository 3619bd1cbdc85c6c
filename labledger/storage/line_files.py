"""Atomic writing of files, and comparison of files with what they should hold."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from labledger.errors import LabLedgerError
from labledger.storage.artifact_store import Fence, make_folder, sync_directory


@contextmanager
def replacing(path: Path, fence: Fence = nullcontext) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path`, within `fence`, when the block ends well.

    It is closed to other users in a lab folder; elsewhere it has the mode of the file that it
    replaces, or that of any new file. Raises `LabLedgerError` where that fails; `path` is then as
    it was.
    """
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        make_folder(path.parent)
        descriptor = _create(name, path)
    except OSError as error:
        raise LabLedgerError(f"could not write {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        with fence():
            if _in_lab(path):
                set_aside(path)
            name.replace(path)
        sync_directory(path.parent)
    except BaseException as error:
        name.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise LabLedgerError(f"could not write {path}: {error.strerror}") from error
        raise


def set_aside(path: Path) -> None:
    """Rename a folder, FIFO or device that is in the place of a regular file."""
    if path.exists() and not path.is_file():
        path.rename(path.with_name(f"{path.name}.set-aside-{secrets.token_hex(4)}"))


def _create(name: Path, path: Path) -> int:
    """Open a new file that is to replace `path`, with the mode it is to have."""
    private = _in_lab(path)
    replaced = path.stat().st_mode & 0o777 if path.is_file() and not private else None
    # The kernel takes the umask off: reading it would mean setting it, for every thread.
    mode = 0o600 if private or replaced is not None else 0o666
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    if replaced is not None:
        os.fchmod(descriptor, replaced)
    return descriptor


def _in_lab(path: Path) -> bool:
    """True below a folder that holds a ledger."""
    folder = path.parent.resolve()
    return any(os.access(above / "ledger.sqlite", os.F_OK) for above in (folder, *folder.parents))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which a file differs from the ledger."""

    path: Path
    line: int
    """The first line that differs, counted from 1; 0 where there is no file."""
    message: str


class NotRegularError(ValueError):
    """A folder, FIFO or device stands where a file is to be read."""


def _open_regular(path: Path) -> BinaryIO:
    """Open a file to read, without waiting for whoever may write to a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError("is no regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> bytes | None:
    """Return a file's content, or None where there is none.

    Raises `NotRegularError` for what is no regular file, and `OSError`.
    """
    try:
        with _open_regular(path) as handle:
            return handle.read()
    except FileNotFoundError:
        return None


def first_difference(path: Path, expected: Iterable[tuple[str, bytes]]) -> Difference | None:
    """Compare a file with the lines that it should have, each with its place in the ledger."""
    number = 0
    try:
        with _open_regular(path) as handle:
            for number, (place, line) in enumerate(expected, 1):
                if handle.readline() != line:
                    return Difference(path, number, f"differs from the ledger at {place}")
            if handle.read(1):
                return Difference(path, number + 1, "has more than the ledger")
    except FileNotFoundError:
        return Difference(path, 0, "is missing")
    except NotRegularError as error:
        return Difference(path, 0, str(error))
    except OSError as error:
        return Difference(path, number, f"cannot be read: {error.strerror}")
    return None
