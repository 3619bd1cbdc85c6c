"""Write a user's output to a path: a file, a device, a pipe, or the target of a link.

Only regular files are replaced, each as a whole: the old content stays until the new one is
durable, and the mode is kept. A link stays, and the file behind it is replaced or created. Devices,
pipes and the descriptors of this process (`/dev/stdout`, `/dev/fd/N`) are written to as they are. A
folder or a socket is an error, and so is a file of a ledger.

Every output at a path that the user names must be written with these functions. A missing folder
is created first, whichever command writes: see `make_folder_for`.
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
from labledger.text import escape_lines

_DESCRIPTOR = re.compile(r"/proc/(\d+)(?:/task/\d+)?/fd/(\d+)")
_MAX_LINKS = 40
_LEDGER = "ledger.sqlite"
_OF_LEDGER = frozenset({_LEDGER, f"{_LEDGER}-wal", f"{_LEDGER}-shm"})


def open_output(
    out: str | Path | BinaryIO, fence: Fence = nullcontext, *, needs_seek: bool = False
) -> AbstractContextManager[BinaryIO]:
    """Return the context of an output: `replace_output` for a path, or a stream.

    A stream stays open at its end, and `fence` does not concern it. Formats that end with offsets
    need positions: with `needs_seek`, a stream, a device or a pipe gets everything at the end.
    """
    if isinstance(out, str | Path):
        return replace_output(Path(out), fence, needs_seek=needs_seek)
    return _spooled(out) if needs_seek else nullcontext(out)


def make_folder_for(out: str | Path | BinaryIO) -> None:
    """Create the folder of an output that the user names, if it is missing.

    Raises `InvalidInput` if that is not possible.
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
    """Yield the output at `path`: see the module. `needs_seek` is the same as in `open_output`.

    New content gets its name within `fence`. In a lab folder, a file is closed to other users, and
    a folder, FIFO, device or link of its name is replaced. Raises `LabLedgerError`; a file at
    `path` is then unchanged.
    """
    try:
        with _opened(path, fence, needs_seek=needs_seek) as handle:
            yield handle
    except OSError as error:
        raise LabLedgerError(f"could not write {path}: {error.strerror or error}") from error


def scratch_folder_of(path: Path) -> Path | None:
    """Return a folder on an output's disk, for unfinished parts; None for the folder `$TMPDIR`.

    Returns None for devices and pipes. Raises `LabLedgerError` for an output that cannot be
    written.
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
    # The kernel subtracts the umask. To read the umask here, it would have to be set, for every
    # thread.
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
        path.stat()  # The kernel decides whether links are followed, and how many.
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
    # Inherited descriptors are inheritable; descriptors that Python and SQLite open are not.
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
    """Yield a buffered stream to a device, a pipe or a descriptor, written whole at the end."""
    if isinstance(target, int):
        descriptor = os.dup(target)
    else:
        descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    raw = _TerminalFile(descriptor) if os.isatty(descriptor) else _UnseekableFile(descriptor)
    with BufferedWriter(raw) as stream:
        yield cast("BinaryIO", stream)


class _UnseekableFile(FileIO):
    """A file that is written from its present position. A pipe without a reader takes everything.

    So the command ends as it does for `labledger … | head`.
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
    """A terminal, on which what containers wrote is escaped, as on stdout."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def isatty(self) -> bool:
        # Nothing is drawn with escapes, which would be escaped here.
        return False

    def write(self, content: Any) -> int:
        super().write(escape_lines(self._decoder.decode(bytes(content))).encode())
        return len(content)


@contextmanager
def _spooled(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Yield a temporary file, and copy it to a stream at the end."""
    # Imported late: with the random numbers for its names it takes longer than a small query.
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        yield cast("BinaryIO", file)
        file.seek(0)
        shutil.copyfileobj(file, stream, 1 << 20)


def _is_in_lab(path: Path) -> bool:
    """Return whether a folder above `path` holds a ledger."""
    folder = Path(os.path.realpath(path.parent))
    return any(os.access(parent / _LEDGER, os.F_OK) for parent in (folder, *folder.parents))
