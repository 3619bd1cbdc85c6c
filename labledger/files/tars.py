"""Write deterministic tars, stream hostile ones, pack small folders, and read and write archives.

A deterministic tar depends only on its entries. Its bytes are part of stored digests and never
change. Hostile tars are read as a stream, member by member, so that memory stays constant.
`untrusted_files` decides which names and links are safe.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from labledger.errors import LabLedgerError
from labledger.files.durable_files import create_file
from labledger.files.untrusted_files import MIB, UnsafeFile, UntrustedFile

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
"""The end of every tar."""


class SizeChanged(Exception):
    """The content of a member has another size than announced. The argument is its name."""


@dataclass(frozen=True, slots=True)
class TarEntry:
    """A member of a tar, without its content."""

    name: str
    kind: bytes
    """`tarfile.DIRTYPE`, `REGTYPE` or `SYMTYPE`."""
    size: int = 0
    """The size of a file, in bytes."""
    executable: bool = False
    target: str = ""
    """The unchanged target of a link."""
    mode: int | None = None
    """The permissions. By default, `kind` and `executable` decide them."""
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    """In whole seconds since 1970."""

    @property
    def header(self) -> bytes:
        """The header block, with preceding blocks for a long name or target."""
        info = tarfile.TarInfo(self.name)
        info.type, info.size, info.linkname = self.kind, self.size, self.target
        plain_file = self.kind == tarfile.REGTYPE and not self.executable
        info.mode = (0o644 if plain_file else 0o755) if self.mode is None else self.mode
        info.uid, info.gid, info.mtime = self.uid, self.gid, self.mtime
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def tar_chunks(members: Iterable[tuple[TarEntry, Iterable[bytes]]]) -> Iterator[bytes]:
    """Yield a tar of members, each with its content in pieces.

    By default, owners, times and most permissions are left out. Raises `SizeChanged`.
    """
    for entry, content in members:
        yield entry.header
        remaining = entry.size
        for chunk in content:
            remaining -= len(chunk)
            if remaining < 0:
                break
            yield chunk
        if remaining:
            raise SizeChanged(entry.name)
        yield bytes(padded(entry.size) - entry.size)
    yield END


def entry_on_disk(path: Path, name: str, status: os.stat_result) -> TarEntry | None:
    """Return the entry of a folder, a link or a regular file; None for anything else.

    `status` describes `path` itself, without following a link.
    """
    if stat.S_ISDIR(status.st_mode):
        return TarEntry(name, tarfile.DIRTYPE)
    if stat.S_ISLNK(status.st_mode):
        return TarEntry(name, tarfile.SYMTYPE, target=os.readlink(path))  # noqa: PTH115
    if not stat.S_ISREG(status.st_mode):
        return None
    executable = bool(status.st_mode & stat.S_IXUSR)
    return TarEntry(name, tarfile.REGTYPE, status.st_size, executable)


def pieces(content: Readable, size: int) -> Iterator[bytes]:
    """Yield `size` bytes of content in pieces, and one more byte if it has grown.

    `tar_chunks` raises `SizeChanged` for the extra byte.
    """
    bytes_left = size + 1
    while bytes_left and (piece := content.read(min(bytes_left, MIB))):
        bytes_left -= len(piece)
        yield piece


def padded(size: int) -> int:
    """Return how many bytes a content of `size` bytes takes in a tar, in whole blocks."""
    return size + -size % BLOCK


class Readable(Protocol):
    """A stream that can be read once."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class PieceStream:
    """A stream that is made of pieces and can be read once."""

    pieces: Iterator[bytes]
    _left: bytes = b""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, none at the end. Errors of the iterator pass through."""
        while not self._left:
            piece = next(self.pieces, None)
            if piece is None:
                return b""
            self._left = piece
        content, self._left = self._left[:size], self._left[size:]
        return content


def read_whole(stream: Readable, size: int) -> bytes:
    """Return the next `size` bytes of a stream, or fewer at its end."""
    pieces = []
    while size > 0 and (piece := stream.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def open_stream(stream: Any) -> tarfile.TarFile:
    """Return a tar that is read once, from beginning to end, without seeking.

    Raises `tarfile.ReadError` for a stream that is empty or not a tar.
    """
    return tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape")


def each_member(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar that is read once. Read each content before the next member.

    Raises `tarfile.TarError`, `ValueError` or `EOFError` if the tar cannot be read.
    """
    while (member := archive.next()) is not None:
        # The library keeps all members in memory, which may be millions.
        archive.members = []  # type: ignore[attr-defined]
        yield member


def content_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    """Yield the content of a file in pieces; nothing for any other member."""
    if member.isreg() and (file := archive.extractfile(member)) is not None:
        while chunk := file.read(MIB):
            yield chunk


MAX_ENTRIES = 1000
MAX_BYTES = MIB
"""The most bytes of all files of a small folder. The tar is held in memory."""


class _NeedsEngine(Exception):
    """The folder exceeds a limit, so the engine must read it."""


def small_tar(folder: Path, name: str) -> io.BytesIO | None:
    """Return a tar of a small folder, as `name`; None if the engine must read it instead.

    The tar is the same as from an engine: folders come before their entries, and names are sorted
    by their bytes. No link is followed. No process may change the folder meanwhile. The tar is as
    untrusted as an engine's.
    """
    file = io.BytesIO()
    try:
        with tarfile.open(
            fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8"
        ) as archive:
            _add(archive, folder, name)
    except (OSError, UnsafeFile, _NeedsEngine):
        return None
    file.seek(0)
    return file


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    entries_left, bytes_left = MAX_ENTRIES, MAX_BYTES
    pending = [(folder, name)]
    while pending:
        path, name = pending.pop()
        status = path.lstat()
        member, content = tarfile.TarInfo(name), b""
        member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            with os.scandir(path) as entries:
                names = [entry.name for entry in islice(entries, entries_left + 1)]
            entries_left -= len(names)
            if entries_left < 0:
                raise _NeedsEngine
            names.sort(key=os.fsencode, reverse=True)
            pending += [(path / child, f"{name}/{child}") for child in names]
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.fspath(path.readlink())
        else:
            content = UntrustedFile(path.parent, path.name).read(bytes_left) or b""
            bytes_left -= len(content)
            member.size = len(content)
        archive.addfile(member, io.BytesIO(content))


# -- archives

MAGIC = b"\x1f\x8b"
"""The first bytes of a gzip file."""

_LEVEL = 6
"""The level of gzip. Level 1 is three times as fast, and its files are a third larger. The files of
xz are a quarter smaller, but take twenty times as long."""
_PIECE = 1 << 20


class ArchiveDamaged(ValueError):
    """The file is not an archive, or not complete. The message continues "PATH "."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file in an archive that is being read. Its content must be read before the next file."""

    name: str
    size: int
    chunks: Iterator[bytes]
    """The content in pieces. Raises `ArchiveDamaged` if it ends early."""


def is_archive(path: Path) -> bool:
    """Return whether a file begins like an archive."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def write_archive(path: Path, files: Iterable[tuple[str, int, Iterable[bytes]]]) -> None:
    """Write a new archive of files, given as name, size and content in pieces.

    An archive is a tar of regular files, compressed with gzip. `path` appears when the archive is
    complete and durable. Raises `FileExistsError` if the name exists by then, `OSError`, and
    `LabLedgerError` for content of another size.
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
    """Yield the files of an archive in their order, in constant memory.

    Accepts only plain headers of regular files, so that no library has to trust the archive. gzip
    bounds the content to about a thousand times the size of the file. Raises `OSError`, and
    `ArchiveDamaged` if the file ends early, continues after its end, or holds another kind.
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
                raise ArchiveDamaged("continues after its end")
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


def _chunks(content: Readable, size: int) -> Iterator[bytes]:
    remaining = size
    while remaining:
        piece = _read_exactly(content, min(remaining, _PIECE))
        remaining -= len(piece)
        yield piece
    if any(_read_exactly(content, padded(size) - size)):
        raise ArchiveDamaged("is not an archive of labledger: it holds something between files")


def _read_exactly(content: Readable, size: int) -> bytes:
    piece = read_whole(content, size)
    if len(piece) < size:
        raise ArchiveDamaged("ends early: it was not written or copied completely")
    return piece
