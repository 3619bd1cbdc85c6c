"""Write tars that depend on nothing but their members' names, kinds and contents.

Owners, times and most permissions are left out, so that the same members give the same bytes and
therefore the same digest. Used for the workspaces of tasks, and for the files of a workspace that
its patch cannot contain. The bytes are part of stored digests and never change.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
"""The end of every tar."""


class SizeChanged(Exception):
    """A member's content is not as long as announced. The argument is the member's name."""


@dataclass(frozen=True, slots=True)
class TarEntry:
    """A member of a tar, without its content."""

    name: str
    kind: bytes
    """`tarfile.DIRTYPE`, `REGTYPE` or `SYMTYPE`."""
    size: int = 0
    """Of a file, in bytes."""
    executable: bool = False
    target: str = ""
    """The target of a symbolic link, as written."""

    @property
    def header(self) -> bytes:
        info = tarfile.TarInfo(self.name)
        info.type, info.size, info.linkname = self.kind, self.size, self.target
        plain_file = self.kind == tarfile.REGTYPE and not self.executable
        info.mode = 0o644 if plain_file else 0o755
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def tar_chunks(members: Iterable[tuple[TarEntry, Iterable[bytes]]]) -> Iterator[bytes]:
    """Yield a tar of members, each with its content in pieces. Raises `SizeChanged`."""
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


def padded(size: int) -> int:
    """Return how many bytes content of `size` bytes takes in a tar, which has whole blocks."""
    return size + -size % BLOCK
