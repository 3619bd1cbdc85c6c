"""What a workspace's patch does not carry, as one tar of files and links: packed and unpacked."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from labledger.records import GradeReason
from labledger.trial.outputs import MIB, OutputFile, OutputRefused
from labledger.trial.workspace import MAX_HASHED, Entry

CAP = 32 * MIB
"""How large such a tar may be."""

_BLOCK = tarfile.BLOCKSIZE
_HEADERS = 16 * _BLOCK
"""More than the headers of a file take, with a long name and a long target."""


def size_of(entries: Iterable[Entry]) -> int:
    """How large a tar of so many files is at most."""
    return sum(_HEADERS + entry.size for entry in entries)


def chunks(workspace: Path, entries: dict[str, Entry]) -> Iterator[bytes]:
    """A tar of files and links of a workspace, in pieces: the same files give the same bytes.

    Raises `OutputRefused` or `OSError` where one is not what its entry says.
    """
    for name, entry in sorted(entries.items()):
        header = tarfile.TarInfo(name)
        header.mode = 0o755 if entry.executable else 0o644
        if entry.kind == "link":
            header.type, header.linkname = tarfile.SYMTYPE, os.readlink(workspace / name)  # noqa: PTH115
            yield _header(header)
            continue
        header.size = entry.size
        yield _header(header)
        path = workspace / name
        left = entry.size
        for chunk in OutputFile(path.parent, path.name).chunks(entry.size):
            left -= len(chunk)
            yield chunk
        if left:
            raise OutputRefused(GradeReason.OUTPUT_UNSAFE, f"{name} became shorter")
        yield bytes(-entry.size % _BLOCK)
    yield bytes(2 * _BLOCK)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


Member = tuple[str, bytes | None, Iterator[bytes]]
"""A name, what it points to where it is a link, and else its content in pieces."""


def members(file: BinaryIO) -> Iterator[Member]:
    """What a stored tar holds: plain files and links alone. Whoever made it, nothing is written.

    Raises `tarfile.TarError`, `ValueError` or `EOFError` for what cannot be read.
    """
    with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as archive:
        for member in archive:
            if member.type == tarfile.SYMTYPE:
                yield member.name, os.fsencode(member.linkname), iter(())
            elif member.type == tarfile.REGTYPE and not member.sparse and member.size <= MAX_HASHED:
                yield member.name, None, _content(archive, member)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    content = archive.extractfile(member)
    assert content is not None
    while chunk := content.read(MIB):
        yield chunk
