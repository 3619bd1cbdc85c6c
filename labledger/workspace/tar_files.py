"""Pack and read the tar of workspace files that the patch cannot carry.

The same files give the same bytes, so that the artifact's digest is reproducible. A stored tar is
not trusted: `members` writes nothing and skips all but files, links and folders.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from labledger.records.outcomes import Reason
from labledger.workspace.listing import MAX_HASHED, Entry
from labledger.workspace.untrusted_files import MIB, UnsafeFile, UntrustedFile

CAP = 32 * MIB
"""The limit of such a tar in bytes."""

_BLOCK = tarfile.BLOCKSIZE


def size_of(entries: dict[str, Entry]) -> int:
    """Return the size of a tar of these entries, in bytes."""
    contents = sum(_padded(e.size) for e in entries.values() if e.kind == "file")
    return contents + sum(_header_size(*item) for item in entries.items()) + 2 * _BLOCK


def _header_size(name: str, entry: Entry) -> int:
    texts = [len(name.encode()) + (entry.kind == "folder")]
    if entry.kind == "link":
        texts.append(entry.size)
    # A long text takes a header and blocks of its own.
    return _BLOCK + sum(_BLOCK + _padded(n + 1) for n in texts if n > tarfile.LENGTH_NAME)


def _padded(size: int) -> int:
    return size + -size % _BLOCK


def chunks(workspace: Path, entries: dict[str, Entry]) -> Iterator[bytes]:
    """Yield a tar of files and links of a workspace in pieces.

    Raises `UnsafeFile` or `OSError` if a file is not what its entry says.
    """
    for name, entry in sorted(entries.items()):
        header = tarfile.TarInfo(name)
        header.mode = 0o644 if entry.kind == "file" and not entry.executable else 0o755
        if entry.kind != "file":
            header.type = tarfile.SYMTYPE if entry.kind == "link" else tarfile.DIRTYPE
            if entry.kind == "link":
                header.linkname = os.readlink(workspace / name)  # noqa: PTH115
            yield _header(header)
            continue
        header.size = entry.size
        yield _header(header)
        path = workspace / name
        left = entry.size
        for chunk in UntrustedFile(path.parent, path.name).chunks(entry.size):
            left -= len(chunk)
            yield chunk
        if left:
            raise UnsafeFile(Reason.OUTPUT_UNSAFE, f"{name} became shorter")
        yield bytes(-entry.size % _BLOCK)
    yield bytes(2 * _BLOCK)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Member:
    """A file, link or folder in a stored tar."""

    name: str
    kind: str
    executable: bool
    target: bytes
    """The target of a link, else empty."""
    content: Iterator[bytes]
    """Of a file, in pieces; to be read before the next member is asked for."""


def members(file: BinaryIO) -> Iterator[Member]:
    """Yield the files, links and folders of a stored tar. Nothing is written.

    Raises `tarfile.TarError`, `ValueError` or `EOFError` if it cannot be read.
    """
    with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as archive:
        for member in archive:
            kind = _KINDS.get(member.type)
            if kind is None or member.sparse or member.size > MAX_HASHED:
                continue
            content = _content(archive, member) if kind == "file" else iter(())
            executable = kind == "file" and bool(member.mode & 0o100)
            yield Member(member.name, kind, executable, os.fsencode(member.linkname), content)


_KINDS = {tarfile.REGTYPE: "file", tarfile.SYMTYPE: "link", tarfile.DIRTYPE: "folder"}


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    content = archive.extractfile(member)
    assert content is not None
    while chunk := content.read(MIB):
        yield chunk
