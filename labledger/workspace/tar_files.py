"""Pack and read the tar of workspace files that the patch cannot represent.

The same files give the same bytes, so that the artifact's digest is reproducible. A stored tar is
not trusted: `members` writes nothing and skips everything but files, links and folders. `artifacts`
packs such a tar, and `restored_workspace` reads it.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from labledger.records.outcomes import Reason
from labledger.storage.tar_writer import BLOCK, END, SizeChanged, TarEntry, padded, tar_chunks
from labledger.workspace.listing import MAX_HASHED, Entry
from labledger.workspace.untrusted_files import MIB, UnsafeFile, UntrustedFile

CAP = 32 * MIB
"""The limit of such a tar in bytes."""

_TYPES = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "folder": tarfile.DIRTYPE}
_KINDS = {type_flag: kind for kind, type_flag in _TYPES.items()}


def size_of(entries: dict[str, Entry]) -> int:
    """Return the size of a tar of these entries, in bytes."""
    contents = sum(padded(e.size) for e in entries.values() if e.kind == "file")
    return contents + sum(_header_size(*item) for item in entries.items()) + len(END)


def _header_size(name: str, entry: Entry) -> int:
    texts = [len(name.encode()) + (entry.kind == "folder")]
    if entry.kind == "link":
        texts.append(entry.size)
    # A long text takes a header and blocks of its own.
    return BLOCK + sum(BLOCK + padded(n + 1) for n in texts if n > tarfile.LENGTH_NAME)


def tar_of(workspace: Path, entries: dict[str, Entry]) -> Iterator[bytes]:
    """Yield a tar of files, links and folders of a workspace in pieces.

    Raises `UnsafeFile` or `OSError` if a file is not what its entry says.
    """
    yield from tar_of_paths(entries, {name: workspace / name for name in entries})


def tar_of_paths(entries: Mapping[str, Entry], paths: Mapping[str, Path]) -> Iterator[bytes]:
    """Yield a tar of files, links and folders, each from its own path, as `tar_of` does."""
    try:
        yield from tar_chunks(
            _member(paths[name], name, entry) for name, entry in sorted(entries.items())
        )
    except SizeChanged as error:
        raise UnsafeFile(
            Reason.OUTPUT_UNSAFE, f"{error} became shorter while it was read"
        ) from None


def _member(path: Path, name: str, entry: Entry) -> tuple[TarEntry, Iterator[bytes]]:
    kind = _TYPES[entry.kind]
    if entry.kind == "file":
        content = UntrustedFile(path.parent, path.name).chunks(entry.size)
        return TarEntry(name, kind, entry.size, entry.executable), content
    target = os.readlink(path) if entry.kind == "link" else ""  # noqa: PTH115
    return TarEntry(name, kind, target=target), iter(())


@dataclass(frozen=True, slots=True)
class Member:
    """A file, link or folder in a stored tar."""

    name: str
    kind: str
    executable: bool
    target: bytes
    """The target of a link, else empty."""
    content: Iterator[bytes]
    """Of a file, in pieces. Read it before you take the next member from the iterator."""


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


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    content = archive.extractfile(member)
    assert content is not None
    while chunk := content.read(MIB):
        yield chunk
