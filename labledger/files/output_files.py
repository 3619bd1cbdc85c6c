"""Write a user's output to a path: a file, a device, a pipe, or the target of a link.

A regular file is replaced as a whole, and keeps its mode. A link stays, and its target is replaced
or created. Devices, pipes and descriptors are written directly. Folders, sockets and files of a
ledger are errors.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any, BinaryIO, cast

from labledger.errors import InvalidInput, LabLedgerError, Problem
from labledger.files.durable_files import Fence, replace_file, set_aside
from labledger.text.escaping import escape_lines

_DESCRIPTOR = re.compile(r"/proc/(\d+)(?:/task/\d+)?/fd/(\d+)")
_MAX_LINKS = 40
_LEDGER = "ledger.sqlite"
_OF_LEDGER = frozenset({_LEDGER, f"{_LEDGER}-wal", f"{_LEDGER}-shm"})


def open_output(
    out: str | Path | BinaryIO, fence: Fence = nullcontext, *, needs_seek: bool = False
) -> AbstractContextManager[BinaryIO]:
    """Return the context of an output: `replace_output` for a path, or the given stream.

    A stream stays open, and `fence` does not affect it. With `needs_seek`, for formats that end
    with offsets, a stream, device or pipe gets the whole content at the end.
    """
    if isinstance(out, str | Path):
        return replace_output(Path(out), fence, needs_seek=needs_seek)
    return _spooled(out) if needs_seek else nullcontext(out)


def make_folder_for(out: str | Path | BinaryIO) -> None:
    """Create the missing folder of an output that the user names.

    Every command that writes such an output calls this. Raises `InvalidInput` if it fails.
    """
    if not isinstance(out, str | Path):
        return
    folder = Path(out).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot write {out}: the folder {folder} cannot be created: {reason}"
        raise InvalidInput("the output", [Problem(str(out), message)]) from None


@contextmanager
def replace_output(
    path: Path, fence: Fence = nullcontext, *, needs_seek: bool = False
) -> Iterator[BinaryIO]:
    """Yield the output at `path`, as the module describes. For `needs_seek`, see `open_output`.

    New content gets its name within `fence`. In a lab folder, the file is closed to other users,
    and a folder, FIFO, device or link of its name is replaced. On `LabLedgerError`, a file at
    `path` is unchanged.
    """
    try:
        with _opened(path, fence, needs_seek=needs_seek) as handle:
            yield handle
    except OSError as error:
        raise LabLedgerError(f"could not write {path}: {error.strerror or error}") from error


def scratch_folder_of(path: Path) -> Path | None:
    """Return a folder for unfinished parts, on the disk of an output; None for devices and pipes.

    None means `$TMPDIR`. Raises `LabLedgerError` for an output that cannot be written.
    """
    try:
        target = path if _is_in_lab(path) else _target(path)
    except OSError as error:
        raise LabLedgerError(f"could not write {path}: {error.strerror or error}") from error
    is_file = isinstance(target, Path) and (target.is_file() or not target.exists())
    return target.parent if isinstance(target, Path) and is_file else None


@contextmanager
def _opened(path: Path, fence: Fence, *, needs_seek: bool) -> Iterator[BinaryIO]:
    is_in_lab = _is_in_lab(path)
    target = path if is_in_lab else _target(path)
    if isinstance(target, Path) and target.name in _OF_LEDGER and _is_in_lab(target):
        raise LabLedgerError(
            f"could not write {path}: it is a file of the ledger of {target.parent}",
            hint="name another file",
        )
    if is_in_lab:
        with replace_file(path, lambda: _set_aside_within(path, fence)) as handle:
            yield handle
    elif isinstance(target, int) or _is_special(target):
        with _stream(target) as stream:
            if needs_seek:
                with _spooled(stream) as handle:
                    yield handle
            else:
                yield stream
    else:
        with _replaced_file(target, fence) as handle:
            yield handle


@contextmanager
def _set_aside_within(path: Path, fence: Fence) -> Iterator[None]:
    with fence():
        set_aside(path)
        yield


@contextmanager
def _replaced_file(target: Path, fence: Fence) -> Iterator[BinaryIO]:
    """Yield a file that gets the name `target` at the end, with the old file's mode and owner."""
    try:
        replaced = target.stat()
    except FileNotFoundError:
        replaced = None
    # Let the kernel apply the umask. Reading it here would change it for all threads.
    with replace_file(target, fence, mode=0o666 if replaced is None else 0o600) as handle:
        if replaced is not None:
            with suppress(PermissionError):
                os.fchown(handle.fileno(), replaced.st_uid, replaced.st_gid)
            os.fchmod(handle.fileno(), stat.S_IMODE(replaced.st_mode) & 0o777)
        yield handle


def _target(path: Path) -> Path | int:
    """Return the target of a path outside a lab: a descriptor of this process, or a path.

    Raises `OSError` if the target cannot be reached, and `LabLedgerError` for a dangling link.
    """
    place = path.absolute()
    for _ in range(_MAX_LINKS):
        place = Path(os.path.realpath(place.parent), place.name)
        if (descriptor := _own_descriptor(place)) is not None:
            return descriptor
        if not place.is_symlink():
            break
        place = place.parent / place.readlink()
    with suppress(FileNotFoundError):
        path.stat()  # Let the kernel decide how many links it follows.
        return place
    if path.is_symlink() and not place.parent.is_dir():
        raise LabLedgerError(
            f"could not write {path}: it is a link to {place}, and there is no folder "
            f"{place.parent}",
            hint="create the folder first, or name another file",
        )
    return place


def _own_descriptor(place: Path) -> int | None:
    """Return the number of a descriptor of this process that a path names; None for other paths.

    Raises `LabLedgerError` for a descriptor that labledger opened itself, such as the ledger's.
    """
    match = _DESCRIPTOR.fullmatch(str(place))
    if match is None or int(match[1]) != os.getpid():
        return None
    number = int(match[2])
    # Inherited descriptors are inheritable. Descriptors that Python and SQLite open are not.
    if not os.get_inheritable(number):
        raise LabLedgerError(f"could not write descriptor {number}: it was not given to labledger")
    return number


def _is_special(target: Path) -> bool:
    """Return whether a target is a device or a pipe. Raises `LabLedgerError` for a folder."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return False
    for is_kind, kind in ((stat.S_ISDIR, "a folder"), (stat.S_ISSOCK, "a socket")):
        if is_kind(mode):
            raise LabLedgerError(
                f"could not write {target}: it is {kind}", hint="name a file, a device or a pipe"
            )
    return not stat.S_ISREG(mode)


# -- devices, pipes and descriptors


@contextmanager
def _stream(target: Path | int) -> Iterator[BinaryIO]:
    """Yield a buffered stream to a device, a pipe or a descriptor, and flush it at the end."""
    if isinstance(target, int):
        descriptor = os.dup(target)
    else:
        descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    raw = _TerminalFile(descriptor) if os.isatty(descriptor) else _UnseekableFile(descriptor)
    with BufferedWriter(raw) as stream:
        yield cast("BinaryIO", stream)


class _UnseekableFile(FileIO):
    """A file that is written from its current position.

    Writing to a pipe without a reader succeeds, so that `labledger … | head` ends without an error.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb")
        self._has_reader = True

    def seekable(self) -> bool:
        return False

    def write(self, content: Any) -> int:
        rest = memoryview(content).cast("B")
        size = len(rest)
        while self._has_reader and len(rest):
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except BrokenPipeError:
                self._has_reader = False
        return size


class _TerminalFile(_UnseekableFile):
    """A terminal. Control characters in the output are escaped, as on stdout."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def isatty(self) -> bool:
        # Prevents drawing with escape sequences, which would be escaped here.
        return False

    def write(self, content: Any) -> int:
        super().write(escape_lines(self._decoder.decode(bytes(content))).encode())
        return len(content)


@contextmanager
def _spooled(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Yield a temporary file, and copy it to a stream at the end."""
    # Imported late: it takes longer than a small query.
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        yield cast("BinaryIO", file)
        file.seek(0)
        shutil.copyfileobj(file, stream, 1 << 20)


def _is_in_lab(path: Path) -> bool:
    """Return whether a folder above `path` contains a ledger."""
    folder = Path(os.path.realpath(path.parent))
    return any(os.access(parent / _LEDGER, os.F_OK) for parent in (folder, *folder.parents))
