"""Pack a task's workspace, a folder or a tar file, into a deterministic tar.

The same files always give the same bytes and so the same digest, which is part of the task's
digest. Names and links that could lead out of the workspace are rejected, so that a stored
tar is safe to unpack. Tars are digested when tasks are read, and stored when a run is created.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from labledger.experiment.authored_fields import UnusablePath, is_utf8, relative_name
from labledger.files.tars import SizeChanged, TarEntry, tar_chunks
from labledger.files.untrusted_files import link_stays_inside, parents

_SPOOL_BYTES = 32 << 20
_UNPACKERS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
"""Decompressors by the magic bytes at the start of a file."""
_UNREADABLE = (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError)


class WorkspaceTar(NamedTuple):
    """A workspace's tar: its SHA-256 in hex and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class WorkspaceSource:
    """The folder or tar file (plain, gzip, bzip2 or xz) of a workspace."""

    path: Path
    is_tar: bool

    def chunks(self) -> Iterator[bytes]:
        """Yield the deterministic tar in chunks.

        Members are sorted by name, with owner 0, time 0 and mode 755 or 644; the tar is not
        compressed. A folder and a tar of that folder give the same bytes.

        Raises `UnusablePath` for what a workspace must not contain: absolute names, ``..``,
        devices, FIFOs, links that lead out, and names beneath something that is not a folder.
        """
        opened = _tar_members(self.path) if self.is_tar else _folder_members(self.path)
        try:
            with opened as members:
                _check_tree(members)
                yield from tar_chunks(members[name].as_tar(name) for name in sorted(members))
        except SizeChanged as error:
            name = str(error)
            raise UnusablePath(f"{name!r} in the workspace changed while it was read") from None
        except _UNREADABLE as error:
            reason = getattr(error, "strerror", None) or error
            raise UnusablePath(f"the workspace {self.path} cannot be read: {reason}") from None

    def digest_tar(self) -> WorkspaceTar:
        """Return digest and size of the tar without writing it. Raises `UnusablePath`."""
        hasher = hashlib.sha256()
        size = 0
        for chunk in self.chunks():
            hasher.update(chunk)
            size += len(chunk)
        return WorkspaceTar(hasher.hexdigest(), size)


def check_inline(files: Mapping[str, str]) -> None:
    """Raise `UnusablePath` if a name of an inline workspace is unsafe or conflicts with another."""
    folders: set[str] = set()
    for name in files:
        if relative_name(name) != name:
            raise UnusablePath(f"found the name {name!r}; expected {relative_name(name)!r}")
        folders.update(parents(name))
    for name in files:
        if name in folders:
            raise UnusablePath(f"{name!r} is both a file and the folder of other files")


@dataclass(frozen=True, slots=True)
class _Member:
    kind: bytes
    """`tarfile.DIRTYPE`, `REGTYPE` or `SYMTYPE`."""
    size: int = 0
    executable: bool = False
    target: str = ""
    """The target of a symbolic link, as written."""
    open: Callable[[], IO[bytes]] = io.BytesIO

    def as_tar(self, name: str) -> tuple[TarEntry, Iterator[bytes]]:
        """Return the member for the tar writer, with its content in pieces."""
        entry = TarEntry(name, self.kind, self.size, self.executable, self.target)
        return entry, self._content()

    def _content(self) -> Iterator[bytes]:
        with self.open() as content:
            # One byte more, so that the tar writer notices a file that has grown.
            bytes_left = self.size + 1
            while bytes_left and (chunk := content.read(min(bytes_left, 1 << 20))):
                bytes_left -= len(chunk)
                yield chunk


_FOLDER = _Member(tarfile.DIRTYPE)


def _check_tree(members: dict[str, _Member]) -> None:
    """Add folders that names imply; reject names and links that lead out of the workspace."""
    for name in list(members):
        for parent in parents(name):
            if members.setdefault(parent, _FOLDER).kind != tarfile.DIRTYPE:
                raise UnusablePath(
                    f"{name!r} in the workspace lies beneath {parent!r}, which is not a folder"
                )
    for name, member in members.items():
        if member.kind == tarfile.SYMTYPE:
            _check_link(name, member.target)


def _check_link(name: str, target: str) -> None:
    """Raise `UnusablePath` for a link that may lead out of the workspace."""
    if not link_stays_inside(name, target) or not is_utf8(target):
        raise UnusablePath(
            f"the link {name!r} -> {target!r} leads out of the workspace",
            "links may only lead to something inside, by the shortest relative path",
        )


@contextmanager
def _folder_members(root: Path) -> Iterator[dict[str, _Member]]:
    if not root.is_dir():
        raise UnusablePath(
            f"there is no folder {root}", "paths are relative to the tasks file's folder"
        )
    members: dict[str, _Member] = {}
    for current, folders, files in os.walk(root, onerror=_raise_error):
        for name in folders + files:
            path = Path(current, name)
            members[relative_name(path.relative_to(root).as_posix())] = _member_on_disk(path)
    yield members


def _raise_error(error: OSError) -> None:
    raise error


def _member_on_disk(path: Path) -> _Member:
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode):
        return _FOLDER
    if stat.S_ISLNK(status.st_mode):
        return _Member(tarfile.SYMTYPE, target=os.readlink(path))  # noqa: PTH115
    if not stat.S_ISREG(status.st_mode):
        raise UnusablePath(f"{path} is neither a file, a folder nor a link")
    executable = bool(status.st_mode & stat.S_IXUSR)
    return _Member(tarfile.REGTYPE, status.st_size, executable, open=lambda: path.open("rb"))


@contextmanager
def _tar_members(path: Path) -> Iterator[dict[str, _Member]]:
    if not path.is_file():
        raise UnusablePath(
            f"there is no file {path}", "paths are relative to the tasks file's folder"
        )
    with (
        _unpacked(path) as handle,
        tarfile.open(fileobj=handle, mode="r:", encoding="utf-8") as tar,
    ):
        members: dict[str, _Member] = {}
        for info in tar:
            if name := _tar_name(info.name):
                members.pop(name, None)
                members[name] = _member_in_tar(tar, info, members)
        yield members


def _tar_name(name: str) -> str:
    """Return the member's relative name; empty for the root of the workspace."""
    return "" if name.strip("/") in {"", "."} else relative_name(name)


def _member_in_tar(
    tar: tarfile.TarFile, info: tarfile.TarInfo, earlier: dict[str, _Member]
) -> _Member:
    if info.isdir():
        return _FOLDER
    if info.issym():
        return _Member(tarfile.SYMTYPE, target=info.linkname)
    if info.islnk():
        target = earlier.get(relative_name(info.linkname))
        if target is None or target.kind != tarfile.REGTYPE:
            raise UnusablePath(
                f"the hard link {info.name!r} -> {info.linkname!r} does not name an earlier file"
            )
        return replace(target)
    if not info.isreg():
        raise UnusablePath(f"{info.name!r} in the tar is a device or a FIFO")
    executable = bool(info.mode & stat.S_IXUSR)
    return _Member(tarfile.REGTYPE, info.size, executable, open=lambda: _content(tar, info))


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(info)
    assert content is not None
    return content


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open the tar at `path`, uncompressed and seekable, through a temporary file if necessary."""
    with path.open("rb") as raw:
        magic = raw.read(6)
        raw.seek(0)
        unpacker = next((f for start, f in _UNPACKERS.items() if magic.startswith(start)), None)
        if unpacker is None:
            yield raw
            return
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as unpacked, unpacker(raw) as content:
            shutil.copyfileobj(content, unpacked, 1 << 20)
            unpacked.seek(0)
            yield unpacked
