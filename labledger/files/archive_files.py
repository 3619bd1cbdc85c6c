"""The form of an archive: a tar of regular files, compressed with gzip, in one pass.

Nothing but the headers of a tar's first version is used, so that the reader needs no library that
trusts an archive: it holds at most a piece of a file in memory, and accepts neither links nor
folders nor extensions. gzip makes nothing more than about a thousand times smaller, which bounds
what a small file can become. `upkeep.archives` decides which files an archive has.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from labledger.errors import LabLedgerError
from labledger.files.durable_files import create_file
from labledger.files.tars import BLOCK, END, SizeChanged, TarEntry, padded, tar_chunks

MAGIC = b"\x1f\x8b"
"""The first bytes of what gzip wrote."""

_LEVEL = 6
"""Of gzip: 1 is three times as fast and makes files a third larger; xz makes them a quarter smaller
and takes twenty times as long."""
_PIECE = 1 << 20


class ArchiveDamaged(ValueError):
    """The file is not an archive, or not complete. The message continues "PATH "."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file in an archive that is being read. Its content must be read before the next file."""

    name: str
    size: int
    chunks: Iterator[bytes]
    """The content in pieces. Raises `ArchiveDamaged` where it ends early."""


def is_archive(path: Path) -> bool:
    """Return whether a regular file begins as an archive does."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def write_archive(path: Path, files: Iterable[tuple[str, int, Iterable[bytes]]]) -> None:
    """Write a new archive of files, given as name, size and content in pieces.

    The name `path` appears once the archive is complete and durable. Raises `FileExistsError` if
    the name is taken by then, `OSError`, and `LabLedgerError` for content that has another size.
    """
    members = ((TarEntry(name, tarfile.REGTYPE, size), content) for name, size, content in files)
    with (
        create_file(path) as file,
        gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as compressed,
    ):
        try:
            for piece in tar_chunks(members):
                compressed.write(piece)
        except SizeChanged as error:
            raise LabLedgerError(f"{error} changed while it was archived") from error


@contextmanager
def open_archive(path: Path) -> Iterator[Iterator[ArchivedFile]]:
    """Yield the files of an archive in their order.

    Raises `ArchiveDamaged` where the file ends early, goes on after its end, or holds anything but
    regular files, and `OSError`.
    """
    with path.open("rb") as file, gzip.GzipFile(fileobj=file, mode="rb") as content:
        try:
            yield _files(content)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ArchiveDamaged(f"is damaged: {error}") from error


def _files(content: gzip.GzipFile) -> Iterator[ArchivedFile]:
    while True:
        header = _read_exactly(content, BLOCK)
        if header == END[:BLOCK]:
            if _read_exactly(content, BLOCK) != END[BLOCK:] or content.read(1):
                raise ArchiveDamaged("goes on after its end")
            return
        entry = _parse_header(header)
        chunks = _chunks(content, entry.size)
        yield ArchivedFile(entry.name, entry.size, chunks)
        for _ in chunks:
            raise ArchiveDamaged(f"was not read to the end of {entry.name!r}")


def _parse_header(header: bytes) -> TarEntry:
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        raise ArchiveDamaged(f"is not an archive of labledger: {error}") from error
    entry = TarEntry(info.name, info.type, info.size)
    if info.size < 0 or info.type != tarfile.REGTYPE or entry.header != header:
        raise ArchiveDamaged(f"is not an archive of labledger: it holds {info.name[:100]!r}")
    return entry


def _chunks(content: BinaryIO | gzip.GzipFile, size: int) -> Iterator[bytes]:
    remaining = size
    while remaining:
        piece = _read_exactly(content, min(remaining, _PIECE))
        remaining -= len(piece)
        yield piece
    if any(_read_exactly(content, padded(size) - size)):
        raise ArchiveDamaged("is not an archive of labledger: it holds something between files")


def _read_exactly(content: BinaryIO | gzip.GzipFile, size: int) -> bytes:
    pieces = []
    while size and (piece := content.read(size)):
        pieces.append(piece)
        size -= len(piece)
    if size:
        raise ArchiveDamaged("ends early: it was not written or copied completely")
    return b"".join(pieces)
