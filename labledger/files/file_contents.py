"""Read and write contents of files in pieces, and compare files with what they should contain.

Files may be larger than memory. A copy keeps the executable bit and nothing else of its source. A
folder, FIFO or device in the place of a file is reported; nothing waits for its content.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

_T = TypeVar("_T")


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield `items` in lists of up to `size`. Nothing is read ahead of the list that is yielded."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


FileContent = bytes | Path
"""The content of a file, or the file that it is copied from. A copy keeps its executable bit."""

_CHUNK = 1 << 20


def write_content(target: Path, content: FileContent) -> None:
    """Write a new file whole. Raises `FileExistsError` if it exists, and `OSError`."""
    file = target.open("xb")
    try:
        with file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file, _CHUNK)
        if _is_executable(content):
            target.chmod(target.stat().st_mode | 0o111)
    except BaseException:
        target.unlink()
        raise


def content_digest(content: FileContent) -> str:
    """Return the SHA-256 (hex) of a content. Raises `OSError`."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_key(content: FileContent) -> str:
    """Return a text that differs if what `write_content` writes differs. Raises `OSError`."""
    digest = content_digest(content)
    return f"{digest} executable" if _is_executable(content) else digest


def _is_executable(content: FileContent) -> bool:
    return isinstance(content, Path) and bool(content.stat().st_mode & 0o111)


_BLOCK_BYTES = 1 << 16

_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line of a file that differs from the ledger."""

    path: Path
    line: int
    """The first line that differs, counted from 1; 0 if there is no file."""
    message: str


class Piece(NamedTuple):
    """A part of a file's expected content."""

    size: int
    sha256: str


class PieceHasher:
    """Makes a `Piece` of lines that are added to it."""

    def __init__(self) -> None:
        self._size = 0
        self._hasher = hashlib.sha256()

    def add_lines(self, lines: Collection[str]) -> None:
        """Add lines that have no line end, in order."""
        texts = lines if not isinstance(lines, tuple) else ("\n".join(lines),) if lines else ()
        for text in texts:
            content = f"{text}\n".encode()
            self._size += len(content)
            self._hasher.update(content)

    def piece(self) -> Piece:
        return Piece(self._size, self._hasher.hexdigest())


class NotRegularError(ValueError):
    """A folder, FIFO, device or huge file has the name of a file that is to be read."""


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read, without waiting for a writer if it is a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError("is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> bytes | None:
    """Return a file's content, or None if there is no such file.

    Raises `OSError`, and `NotRegularError` if it is not a regular file of at most 64 MiB.
    """
    try:
        with _open_regular(path) as handle:
            content = handle.read(_MAX_BYTES + 1)
            if len(content) > _MAX_BYTES:
                raise NotRegularError(f"has more than {_MAX_BYTES >> 20} MiB")
            return content
    except FileNotFoundError:
        return None


def consists_of(path: Path, pieces: Iterable[Piece]) -> bool:
    """Return whether a file certainly consists of these pieces; False if it cannot be read."""
    try:
        with _open_regular(path) as handle:
            for piece in pieces:
                hasher = hashlib.sha256()
                left = piece.size
                while left and (block := handle.read(min(left, _BLOCK_BYTES))):
                    hasher.update(block)
                    left -= len(block)
                if left or hasher.hexdigest() != piece.sha256:
                    return False
            return not handle.read(1)
    except (OSError, NotRegularError):
        return False


def first_difference(path: Path, expected: Iterable[tuple[str, bytes]]) -> Difference | None:
    """Return where a file first differs from `expected`, or None if it does not.

    `expected` yields, for each line, its origin in the ledger, for messages, and the line.
    """
    number = 0
    try:
        with _open_regular(path) as handle:
            for number, (origin, line) in enumerate(expected, 1):
                # A longer line of the file is never read whole.
                if handle.readline(len(line)) != line:
                    return Difference(path, number, f"differs from the ledger at {origin}")
            if handle.read(1):
                return Difference(path, number + 1, "has more than the ledger")
    except FileNotFoundError:
        return Difference(path, 0, "is missing")
    except NotRegularError as error:
        return Difference(path, 0, str(error))
    except OSError as error:
        return Difference(path, number, f"cannot be read: {error.strerror}")
    return None
