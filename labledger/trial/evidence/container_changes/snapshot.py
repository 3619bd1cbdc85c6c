"""Pack a container's changed files into a tar from which a regrading restores them.

Owners, permissions and whole seconds of times are kept; what is left out is counted, with the
first such path. A file with a secret is removed again as soon as the secret is seen. The same
changes give the same bytes. `collection` writes a snapshot, `restored_container` restores it.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import BinaryIO

from labledger.storage.tar_writer import END, padded
from labledger.trial.evidence.container_changes.archives import LinkedContent
from labledger.trial.evidence.container_changes.changes import STORABLE, Change, is_exact, printable
from labledger.trial.evidence.redaction import Redactor
from labledger.workspace.untrusted_files import MIB

CAP = 256 * MIB
"""The limit of a snapshot in bytes."""

_TYPES = {
    "file": tarfile.REGTYPE,
    "folder": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "fifo": tarfile.FIFOTYPE,
}


def header(change: Change) -> bytes:
    """Return the header of a change's member, with those of a long name or target."""
    info = tarfile.TarInfo(change.path)
    info.type = _TYPES[change.kind or ""]
    info.mode, info.uid, info.gid, info.mtime = change.mode, change.uid, change.gid, change.mtime
    info.size, info.linkname = change.size, change.target
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


@dataclass(slots=True)
class _LeftOut:
    count: int = 0
    first: str = ""

    def add(self, path: str) -> None:
        self.count += 1
        self.first = self.first or path


@dataclass(slots=True)
class SnapshotWriter:
    """Writes the members of a snapshot to a temporary file, in the order of the changes."""

    file: BinaryIO
    redactor: Redactor
    changes: dict[str, Change] = field(default_factory=dict)
    """What was added, with the digests of what the snapshot holds, by printable path."""
    left_out: dict[str, _LeftOut] = field(default_factory=dict)
    """What the snapshot does not hold, by the reason."""
    _contents: dict[str, int] = field(default_factory=dict)
    """Where the content of each stored file begins."""
    _is_empty: bool = True

    @property
    def size(self) -> int:
        """Bytes of the whole snapshot, 0 if nothing is in it."""
        return 0 if self._is_empty else self.file.tell() + len(END)

    def add(self, change: Change, content: Iterator[bytes]) -> None:
        """Add a change, with its content if it is a file. Raises `OSError`."""
        path = printable(change.path)
        if not is_exact(change.path):
            self._leave_out("have names that are not UTF-8", change, path)
        elif change.change == "deleted" or change.kind == "socket":
            self._list(change)
        elif change.kind not in STORABLE:
            reason = "could not be read" if change.kind is None else "are devices"
            self._leave_out(reason, change, path)
        elif self._names_secret(change):
            self._leave_out("hold secrets", change, path)
        elif change.kind == "file":
            self._add_file(change, content)
        else:
            self._write_header(change)
            self._list(change)

    def content(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a stored file, None if it is larger or is not stored."""
        change = self.changes.get(path)
        if change is None or path not in self._contents or change.size > max_bytes:
            return None
        return b"".join(self._stored(path, change.size))

    def chunks(self) -> Iterator[bytes]:
        """Yield the whole snapshot. Nothing can be added after that."""
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
        self._list(replace(change, sha256=hasher.hexdigest()))

    def _stored(self, path: str, size: int) -> Iterator[bytes]:
        """Yield a stored file's content. Others may be written between two pieces."""
        offset = self._contents[path]
        while size > 0:
            end = self.file.tell()
            self.file.seek(offset)
            chunk = self.file.read(min(MIB, size))
            self.file.seek(end)
            offset, size = offset + len(chunk), size - len(chunk)
            yield chunk

    def _names_secret(self, change: Change) -> bool:
        texts = [change.path, change.target]
        return self.redactor.contains_secret(["\n".join(texts).encode("utf-8", "surrogateescape")])

    def _write_header(self, change: Change) -> None:
        self._is_empty = False
        self.file.write(header(change))

    def _list(self, change: Change) -> None:
        self.changes[change.path] = change

    def _leave_out(self, reason: str, change: Change, path: str | None = None) -> None:
        """List a change that the snapshot does not hold."""
        path = path or change.path
        self.changes[path] = replace(
            change, path=path, target=printable(change.target), sha256=None
        )
        self.left_out.setdefault(reason, _LeftOut()).add(path)
