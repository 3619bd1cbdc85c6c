"""Read a container's changes through the engine's API, and pack them for a regrading.

For users who may not read the engine's folders. The engine mounts the container for each request,
so a folder with many changes is read as a whole. Originals come from a container of the image that
never runs. Equal changes give equal snapshots.
"""

from __future__ import annotations

import hashlib
import stat
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, BinaryIO

from labledger.engine.container_files import ChangeKind, ContainerFiles
from labledger.engine.engine_errors import ContainerFailed, NoSuchContainer
from labledger.files.tars import END, TarEntry, content_of, each_member, open_stream, padded
from labledger.files.untrusted_files import MIB, parents, printable
from labledger.trial.evidence.container_changes import (
    MAX_CHANGES,
    MAX_NAMES,
    STORABLE,
    Change,
    Exclusions,
    is_exact,
)
from labledger.trial.evidence.redaction import Redactor

MAX_REQUESTS = 500
"""How many tars are requested from a container."""
MAX_STREAMED = 2048 * MIB
"""How many bytes of a container's files are read. Most of the files may be unchanged."""
MAX_SKIPPED = 256 * MIB
"""A larger file that is not needed ends the reading of its folder as a whole."""
_MAX_PATH = 3_500
"""The engine's list may lack the contents of a folder with a longer path."""
_MANY = 12
"""A folder is read as a whole if it needs more requests than this."""

_KINDS = {
    **dict.fromkeys((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE), "file"),
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.FIFOTYPE: "fifo",
}
"""The types of tar members that an engine may send for each kind."""

HelperContainer = Callable[[], AbstractContextManager[ContainerFiles]]
"""Makes a container of the image that never runs, and removes it."""


class LinkedContent(Exception):
    """A file is a further name of an earlier file of the same tar, whose path is the argument."""


@dataclass(frozen=True, slots=True)
class _Request:
    path: str
    whole: bool
    """Whether to read the tar to its end. Otherwise only `path` itself is read."""


@dataclass(slots=True)
class ArchiveReader:
    """Reads the changes of one stopped container."""

    files: ContainerFiles
    helper: HelperContainer
    exclusions: Exclusions
    workspace: str
    """Relative to the container's root, "" for the root itself."""
    truncated: bool = False
    _requests_left: int = MAX_REQUESTS
    _bytes_left: int = MAX_STREAMED
    _refused: set[str] = field(default_factory=set)
    """Paths that the engine could not read."""

    def changes(self) -> Iterator[tuple[Change, Iterator[bytes]]]:
        """Yield each change. Raises `ContainerFailed`, `EngineUnavailable`.

        A file's content raises `LinkedContent` if an earlier change had the same content as a hard
        link.
        """
        listed = self._listed()
        present = {path: change for path, change in listed.items() if change != "deleted"}
        for path, change in listed.items():
            if change == "deleted":
                yield Change(path, change), iter(())
        unread = set(present)
        requests = archive_requests(present, self._order, self._cannot_be_whole)
        yield from self._changes(present, requests, unread)
        remaining = sorted((path for path in unread if "\ufffd" not in path), key=self._order)
        yield from self._changes(present, [_Request(path, False) for path in remaining], unread)
        # The engine refuses a link that leads to itself, but not the link's folder.
        refused = {path: present[path] for path in self._refused & unread}
        folders = sorted({path.rpartition("/")[0] for path in refused} - {""})
        requests = [_Request(path, True) for path in folders if not self._cannot_be_whole(path)]
        yield from self._changes(refused, requests, unread)
        for path in sorted(unread):
            is_unread = path in refused or self._requests_left <= 0 or self._bytes_left <= 0
            self.truncated |= is_unread
            # The engine puts everything but sockets into a tar.
            kind = None if is_unread or "\ufffd" in path else "socket"
            yield Change(path, present[path], kind), iter(())

    def _changes(
        self, present: Mapping[str, ChangeKind], requests: Iterable[_Request], unread: set[str]
    ) -> Iterator[tuple[Change, Iterator[bytes]]]:
        for change, content in self._read(self.files, present, requests):
            unread.discard(printable(change.path))
            if not self.exclusions.was_made_by_engine(change):
                yield change, content

    def _listed(self) -> dict[str, ChangeKind]:
        """Return the engine's list without the excluded paths."""
        inside: dict[str, ChangeKind] = {}
        outside: dict[str, ChangeKind] = {}
        characters_left = {True: MAX_NAMES, False: MAX_NAMES}
        for absolute, change in self.files.changes():
            path = absolute.strip("/")
            if not path or self.exclusions.excludes(path):
                continue
            # The engine does not see paths that are longer than the kernel allows.
            self.truncated |= len(path.encode()) > _MAX_PATH
            is_inside = self._is_in_workspace(path)
            listed = inside if is_inside else outside
            characters_left[is_inside] -= len(path)
            if len(listed) >= MAX_CHANGES or characters_left[is_inside] < 0:
                self.truncated = True
            else:
                listed[path] = change
        return inside | outside

    def _is_in_workspace(self, path: str) -> bool:
        return not self.workspace or f"{path}/".startswith(f"{self.workspace}/")

    def _order(self, path: str) -> tuple[bool, str]:
        return (not self._is_in_workspace(path), path)

    def _cannot_be_whole(self, path: str) -> bool:
        """Return True for a folder with mounts, or above the workspace, which comes first."""
        is_above_mount = path in self.exclusions.mount_parents
        return is_above_mount or self.workspace.startswith(f"{path}/")

    def _read(
        self, files: ContainerFiles, needed: Mapping[str, ChangeKind], requests: Iterable[_Request]
    ) -> Iterator[tuple[Change, Iterator[bytes]]]:
        """Yield the requested files of some tars, within the limits."""
        for request in requests:
            if self._requests_left <= 0 or self._bytes_left <= 0:
                return
            self._requests_left -= 1
            try:
                with files.tar_of(f"/{request.path}") as stream:
                    if stream is not None:
                        yield from self._members(stream, request, needed)
            except NoSuchContainer:
                raise
            except ContainerFailed:
                self._refused.add(request.path)

    def _members(
        self, stream: Any, request: _Request, needed: Mapping[str, ChangeKind]
    ) -> Iterator[tuple[Change, Iterator[bytes]]]:
        try:
            archive = open_stream(stream)
        except tarfile.ReadError:
            return  # The tar is empty, because the path is a socket.
        above = request.path.rpartition("/")[0]
        for member in each_member(archive):
            self._bytes_left -= tarfile.BLOCKSIZE
            path = f"{above}/{member.name}".strip("/") if request.whole else request.path
            kind = needed.get(printable(path))
            linked = f"{above}/{member.linkname}".strip("/") if member.islnk() else None
            is_readable = linked is None or printable(linked) in needed
            if kind is not None and is_readable and not self.exclusions.excludes(path):
                yield _change(path, kind, member), _content(archive, member, linked)
            self._bytes_left -= member.size
            if not request.whole or self._bytes_left <= 0 or member.size > MAX_SKIPPED:
                return

    def originals(self, paths: Iterable[str], max_bytes: int) -> Iterator[tuple[Change, bytes]]:
        """Yield the image's versions of some paths. Raises `ContainerFailed`."""
        needed: dict[str, ChangeKind] = {path: "changed" for path in paths if "\ufffd" not in path}
        if not needed:
            return
        self._requests_left, self._bytes_left = MAX_REQUESTS, MAX_STREAMED
        with self.helper() as files:
            requests = archive_requests(needed, self._order, lambda _: False)
            for change, content in self._read(files, needed, requests):
                is_read = change.kind == "file" and change.size <= max_bytes
                with suppress(LinkedContent):
                    yield change, b"".join(content) if is_read else b""


def archive_requests(
    needed: Mapping[str, ChangeKind],
    order: Callable[[str], tuple[bool, str]],
    cannot_be_whole: Callable[[str], bool],
) -> list[_Request]:
    """Return few requests that together read all these paths."""
    costs: dict[str, int] = defaultdict(int)
    """How many requests each path needs, with everything below it."""
    whole: set[str] = set()
    nodes = needed.keys() | {parent for path in needed for parent in parents(path)}
    for path in sorted(nodes, key=lambda path: -path.count("/")):
        costs[path] += path in needed
        is_new = needed.get(path) == "added"
        if (is_new or costs[path] > _MANY) and not cannot_be_whole(path):
            costs[path] = 1
            whole.add(path)
        costs[path.rpartition("/")[0]] += costs[path]
    return [
        _Request(path, path in whole)
        for path in sorted(needed.keys() | whole, key=order)
        if whole.isdisjoint(parents(path))
    ]


def _change(path: str, change: ChangeKind, member: tarfile.TarInfo) -> Change:
    kind = _KINDS.get(member.type, "other")
    return Change(
        path,
        change,
        kind,
        stat.S_IMODE(member.mode),
        member.uid,
        member.gid,
        int(member.mtime),
        member.size if kind == "file" else 0,
        member.linkname if kind == "link" else "",
    )


def _content(
    archive: tarfile.TarFile, member: tarfile.TarInfo, linked: str | None
) -> Iterator[bytes]:
    if linked is not None:
        raise LinkedContent(linked)
    yield from content_of(archive, member)


CAP = 256 * MIB
"""The limit of a snapshot in bytes."""

TYPES = {
    "file": tarfile.REGTYPE,
    "folder": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "fifo": tarfile.FIFOTYPE,
}
"""The type of the tar member for each kind."""


def header(change: Change) -> bytes:
    """Return the headers of a change's member, including a long name or target."""
    return TarEntry(
        change.path,
        TYPES[change.kind or ""],
        change.size,
        target=change.target,
        mode=change.mode,
        uid=change.uid,
        gid=change.gid,
        mtime=change.mtime,
    ).header


@dataclass(slots=True)
class _LeftOut:
    count: int = 0
    first: str = ""

    def add(self, path: str) -> None:
        self.count += 1
        self.first = self.first or path


@dataclass(slots=True)
class SnapshotWriter:
    """Writes the members of a snapshot to a temporary file, in the order of the changes.

    The snapshot keeps owners, permissions and whole seconds of times. Changes that it leaves out
    are counted, with the first such path. A file is removed again as soon as a secret is seen in
    it.
    """

    file: BinaryIO
    redactor: Redactor
    changes: dict[str, Change] = field(default_factory=dict)
    """The added changes by printable path, with digests of the stored contents."""
    left_out: dict[str, _LeftOut] = field(default_factory=dict)
    """The changes that the snapshot does not hold, by the reason."""
    _contents: dict[str, int] = field(default_factory=dict)
    """The offset at which the content of each stored file begins."""
    _is_empty: bool = True

    @property
    def size(self) -> int:
        """Bytes of the whole snapshot; 0 if it is empty."""
        return 0 if self._is_empty else self.file.tell() + len(END)

    def add(self, change: Change, content: Iterator[bytes]) -> None:
        """Add a change, with its content if it is a file. Raises `OSError`."""
        path = printable(change.path)
        if not is_exact(change.path):
            self._leave_out("have names that are not UTF-8", change, path)
        elif change.change == "deleted" or change.kind == "socket":
            self.changes[path] = change
        elif change.kind not in STORABLE:
            reason = "could not be read" if change.kind is None else "are devices"
            self._leave_out(reason, change, path)
        elif self.redactor.contains_secret(
            [f"{change.path}\n{change.target}".encode("utf-8", "surrogateescape")]
        ):
            self._leave_out("hold secrets", change, path)
        elif change.kind == "file":
            self._add_file(change, content)
        else:
            self._write_header(change)
            self.changes[path] = change

    def content(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a stored file, or None if it is larger or not stored."""
        change = self.changes.get(path)
        if change is None or path not in self._contents or change.size > max_bytes:
            return None
        return b"".join(self._stored(path, change.size))

    def chunks(self) -> Iterator[bytes]:
        """Yield the whole snapshot. Nothing can be added afterwards."""
        self.file.write(END)
        self.file.seek(0)
        while chunk := self.file.read(MIB):
            yield chunk

    def _add_file(self, change: Change, content: Iterator[bytes]) -> None:
        start = self.file.tell()
        try:
            first = next(content, b"")
        except LinkedContent as error:
            path = str(error)
            if path not in self._contents:
                self._leave_out("are other names of files that are left out", change, change.path)
                return
            change = replace(change, size=self.changes[path].size)
            content = self._stored(path, change.size)
            first = b""
        if start + padded(change.size) + len(END) > CAP:
            self._leave_out(f"would make the snapshot larger than {CAP:,} bytes", change)
            return
        self._write_header(change)
        self._contents[change.path] = self.file.tell()
        hasher, size = hashlib.sha256(), 0

        def written() -> Iterator[bytes]:
            nonlocal size
            for chunk in chain([first], content):
                size += len(chunk)
                hasher.update(chunk)
                self.file.write(chunk)
                yield chunk

        pieces = written()
        has_secret = self.redactor.contains_secret(pieces)
        if not has_secret:
            for _ in pieces:
                pass
        if has_secret or size != change.size:
            del self._contents[change.path]
            self.file.seek(start)
            self.file.truncate()
            self._leave_out("hold secrets" if has_secret else "changed while read", change)
            return
        self.file.write(bytes(padded(size) - size))
        self.changes[change.path] = replace(change, sha256=hasher.hexdigest())

    def _stored(self, path: str, size: int) -> Iterator[bytes]:
        """Yield a stored file's content. Other files may be written between two pieces."""
        offset = self._contents[path]
        while size > 0:
            end = self.file.tell()
            self.file.seek(offset)
            chunk = self.file.read(min(MIB, size))
            self.file.seek(end)
            offset, size = offset + len(chunk), size - len(chunk)
            yield chunk

    def _write_header(self, change: Change) -> None:
        self._is_empty = False
        self.file.write(header(change))

    def _leave_out(self, reason: str, change: Change, path: str | None = None) -> None:
        """List a change that the snapshot does not hold."""
        path = path or change.path
        self.changes[path] = replace(
            change, path=path, target=printable(change.target), sha256=None
        )
        self.left_out.setdefault(reason, _LeftOut()).add(path)
