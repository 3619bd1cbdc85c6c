"""Tars whose members a container chose: declared artifacts, and files of workspaces.

The content is hostile: links that lead out, devices, huge or sparse files, very many names. Only
files, folders, and links that stay inside are packed. Stored tars are not trusted either. Tars are
streamed, and the same files give the same bytes.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

from labledger.errors import LabLedgerError
from labledger.files.tars import (
    BLOCK,
    END,
    PieceStream,
    Readable,
    SizeChanged,
    TarEntry,
    content_of,
    each_member,
    open_stream,
    padded,
    tar_chunks,
)
from labledger.files.untrusted_files import (
    MIB,
    UnsafeFile,
    UntrustedFile,
    is_safe_name,
    link_stays_inside,
    parents,
    printable,
)
from labledger.files.workspace_listing import MAX_HASHED, Entry
from labledger.records import JsonObject
from labledger.records.outcomes import Reason

MAX_BYTES = 1024 * MIB
"""The most bytes of all artifacts of a trial, as a tar."""
MAX_READ_BYTES = 8 * MAX_BYTES
"""The most bytes that are read for them, including excluded files."""
MAX_MEMBERS = 100_000
"""The most files, folders and links of all artifacts together."""
MAX_NAMED = 20
"""The most names of left-out members that are recorded."""
MAX_NOTABLE = 100
_MAX_NAME_CHARACTERS = 300


class ArtifactsRefused(LabLedgerError):
    """The artifacts of an agent exceed a limit or cannot be read."""


@dataclass(slots=True)
class PackedArtifact:
    """The result of packing a declared artifact."""

    path: str
    """Its path in the agent's container."""
    to: str
    """Its path in the grader's container."""
    kind: str = "missing"
    """`file`, `folder`, or `missing`."""
    members: int = 0
    size: int = 0
    """The bytes of its files."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The first names that are not in the tar, with the reasons."""
    left_out_total: int = 0
    link: str | None = None
    """The target in the agent's container, if the path is a symbolic link."""

    def leave_out(self, name: str, why: str) -> None:
        self.left_out_total += 1
        if len(self.left_out) < MAX_NAMED:
            self.left_out[printable(name)[:_MAX_NAME_CHARACTERS]] = why

    def as_json(self) -> JsonObject:
        facts: JsonObject = {"path": self.path, "to": self.to, "kind": self.kind}
        if self.kind != "missing":
            facts |= {"members": self.members, "bytes": self.size}
        if self.left_out_total:
            facts |= {"left_out": dict(self.left_out), "left_out_total": self.left_out_total}
        return facts


@dataclass(slots=True)
class ArtifactPacker:
    """Packs artifacts one after the other, within common limits."""

    is_notable: Callable[[str], bool] = lambda _name: False
    notable: list[str] = field(default_factory=list)
    """The first packed names, in the grader's container, for which `is_notable` is true."""
    _packed_bytes: int = len(END)
    _members: int = 0
    _read_bytes: int = 0

    def pack(
        self, stream: Readable, packed: PackedArtifact, exclude: tuple[str, ...] = ()
    ) -> Iterator[bytes]:
        """Yield the members of an artifact in pieces, without the end of the tar.

        `stream` is a tar whose first member is the artifact's path itself. Fills in `packed`. If
        the path is a symbolic link, sets only `link`. Raises `ArtifactsRefused`.
        """
        excluded = _Exclusions(exclude)
        contents: dict[str, bool] = {}
        """Whether each file is packed, by its name below the path. Hard links may refer to it."""
        links: set[str] = set()
        for archive, member in _members(stream, packed.path):
            self._count_read(member, packed.path)
            top, _, name = member.name.partition("/")
            if packed.kind == "missing":
                if member.issym():
                    folder = posixpath.dirname(packed.link or packed.path)
                    packed.link = posixpath.normpath(posixpath.join(folder, member.linkname))
                    return
                packed.kind = "folder" if member.isdir() else "file"
            elif not is_safe_name(name) or not links.isdisjoint(parents(name)):
                packed.leave_out(name, "no such name is safe")
                continue
            if name and excluded.covers(name):
                contents[name] = False
                continue
            why = _refusal(member, name, top, contents, links)
            if why is not None:
                packed.leave_out(name or packed.path, why)
                continue
            contents[name] = member.isreg() or member.islnk()
            yield from self._member(archive, member, _below(packed.to, name), top, packed)

    def _member(
        self,
        archive: tarfile.TarFile,
        member: tarfile.TarInfo,
        name: str,
        top: str,
        packed: PackedArtifact,
    ) -> Iterator[bytes]:
        link = member.linkname
        if member.islnk():
            link = _below(packed.to, link.removeprefix(top).lstrip("/"))
        header = _header(name, member, link)
        size = member.size if member.isreg() else 0
        self._members += 1
        self._packed_bytes += len(header) + padded(size)
        if self._packed_bytes > MAX_BYTES:
            limit = f"more than {MAX_BYTES:,} bytes"
            raise ArtifactsRefused(f"the declared artifacts have {limit}, with {packed.path}")
        if self._members > MAX_MEMBERS:
            limit = f"more than {MAX_MEMBERS:,} files, folders and links"
            raise ArtifactsRefused(f"the declared artifacts have {limit}, with {packed.path}")
        packed.members += 1
        packed.size += size
        if len(self.notable) < MAX_NOTABLE and self.is_notable(name):
            self.notable.append(printable(name))
        yield header
        if size:
            yield from _content(archive, member, packed.path)

    def _count_read(self, member: tarfile.TarInfo, path: str) -> None:
        self._read_bytes += BLOCK + (member.size if member.isreg() else 0)
        if self._read_bytes > MAX_READ_BYTES:
            raise ArtifactsRefused(
                f"the declared artifacts, with what is excluded, have more than "
                f"{MAX_READ_BYTES:,} bytes, with {path}"
            )


@dataclass(slots=True)
class _Exclusions:
    """Globs of left-out names. A glob matches a whole name, or its end after any `/`."""

    globs: tuple[str, ...]
    _pattern: re.Pattern[str] | None = None
    _folders: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        given = [glob.removeprefix("./").rstrip("/") for glob in self.globs]
        if any(given):
            alternatives = "|".join(fnmatch.translate(glob) for glob in given if glob)
            self._pattern = re.compile(alternatives, re.DOTALL)

    def covers(self, name: str) -> bool:
        """Return True for an excluded name, and for names below one. Ask for parents first."""
        if self._pattern is None:
            return False
        steps = name.split("/")
        is_covered = posixpath.dirname(name) in self._folders or any(
            self._pattern.match("/".join(steps[start:])) for start in range(len(steps))
        )
        if is_covered:
            self._folders.add(name)
        return is_covered


def _members(stream: Readable, path: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the members of a tar that is read once. Raises `ArtifactsRefused`."""
    try:
        with open_stream(stream) as archive:
            for member in each_member(archive):
                yield archive, member
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise ArtifactsRefused(f"the artifact {path} cannot be read as a tar: {error}") from error


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> Iterator[bytes]:
    """Yield a file's content, padded to whole blocks. Raises `ArtifactsRefused`."""
    content: IO[bytes] | None = archive.extractfile(member)
    remaining = member.size
    while content is not None and remaining and (chunk := _piece(content, remaining, path)):
        remaining -= len(chunk)
        yield chunk
    if remaining:
        raise ArtifactsRefused(f"the artifact {path} ended early")
    yield bytes(padded(member.size) - member.size)


def _piece(content: IO[bytes], remaining: int, path: str) -> bytes:
    try:
        return content.read(min(MIB, remaining))
    except tarfile.TarError as error:
        # A process in the container cut the file while the engine read it.
        raise ArtifactsRefused(f"the artifact {path} ended early: {error}") from error


def _header(name: str, member: tarfile.TarInfo, link: str) -> bytes:
    """Return a header for a member under another name, without owner and set-id bits."""
    is_link = member.issym() or member.islnk()
    return TarEntry(
        name,
        tarfile.REGTYPE if member.isreg() else member.type,
        member.size if member.isreg() else 0,
        target=link if is_link else "",
        # The owner can always change it. A grader that is root needs no other permission.
        mode=(member.mode & 0o777) | (0o700 if member.isdir() else 0o600),
        mtime=max(0, int(member.mtime)),
    ).header


def _refusal(
    member: tarfile.TarInfo, name: str, top: str, contents: dict[str, bool], links: set[str]
) -> str | None:
    """Return why a member is not packed, or None. A symbolic link is added to `links`."""
    if member.issym():
        links.add(name)
        return None if link_stays_inside(name, member.linkname) else "a link that leads out"
    if member.islnk():
        other = member.linkname.removeprefix(f"{top}/")
        return None if contents.get(other) else "another name of a file that is left out"
    if member.isdir() or (member.isreg() and not member.issparse()):
        return None
    return "neither a file, a folder nor a link"


def _below(to: str, name: str) -> str:
    return posixpath.join(to.strip("/"), name) if name else to.strip("/")


def safe_names(stream: Readable) -> Iterator[str]:
    """Yield the names in a stored tar. Raises `ArtifactsRefused` for an unsafe member."""
    for _, member in _members(stream, "stored"):
        is_known = member.isreg() or member.isdir() or member.issym() or member.islnk()
        if not is_safe_name(member.name) or not is_known or member.issparse():
            raise ArtifactsRefused(f"a member {member.name!r} that no artifact has")
        yield member.name


def open_modes(tar: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a packed tar with permissions for every user, for a grader that is not root."""
    for archive, member in _members(PieceStream(iter(tar)), "stored"):
        if member.isdir() or member.isreg():
            member.mode |= 0o777 if member.isdir() or member.mode & 0o100 else 0o666
        yield from _copied(archive, member)
    yield END


def without(stream: Readable, names: Iterable[str]) -> Iterator[bytes]:
    """Yield a packed tar without the files in `names`, and without hard links to them."""
    left_out = set(names)
    for archive, member in _members(stream, "stored"):
        if member.name in left_out or (member.islnk() and member.linkname in left_out):
            continue
        yield from _copied(archive, member)
    yield END


def files(stream: Readable) -> Iterator[tuple[str, str, Iterator[bytes]]]:
    """Yield name, link target and content of each member of a packed tar."""
    for archive, member in _members(stream, "stored"):
        content = _content(archive, member, member.name) if member.isreg() else iter(())
        yield member.name, member.linkname, content


def _copied(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    yield member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    if member.isreg():
        yield from _content(archive, member, member.name)


CAP = 32 * MIB
"""The most bytes of a tar of workspace files."""

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
    # A long name or target takes a header and blocks of its own.
    return BLOCK + sum(BLOCK + padded(n + 1) for n in texts if n > tarfile.LENGTH_NAME)


def tar_of(entries: Mapping[str, Entry], paths: Mapping[str, Path]) -> Iterator[bytes]:
    """Yield a tar of files, links and folders in pieces. `paths` has the path of each name.

    Raises `UnsafeFile` or `OSError` if a file does not match its entry.
    """
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
class TarMember:
    """A file, link or folder in a stored tar."""

    name: str
    kind: str
    executable: bool
    target: bytes
    """The target of a link; empty for other kinds."""
    content: Iterator[bytes]
    """The content of a file, in pieces. Read it before the next member."""


def members(file: BinaryIO) -> Iterator[TarMember]:
    """Yield the files, links and folders of a stored tar. Writes nothing.

    Raises `tarfile.TarError`, `ValueError` or `EOFError` if it cannot be read.
    """
    with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as archive:
        for member in archive:
            kind = _KINDS.get(member.type)
            if kind is None or member.sparse or member.size > MAX_HASHED:
                continue
            content = content_of(archive, member) if kind == "file" else iter(())
            executable = kind == "file" and bool(member.mode & 0o100)
            yield TarMember(member.name, kind, executable, os.fsencode(member.linkname), content)
