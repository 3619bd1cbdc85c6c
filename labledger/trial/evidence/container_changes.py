"""The list of a container's changes to its file system, as the evidence stores it.

Paths are relative to the container's root. The list names everything that is not in the snapshot,
so that a regrading restores everything or nothing. A stored list is untrusted. `overlay_changes`
and `engine_archives` read the same changes in two ways.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

from labledger.engine.container_files import ChangeKind
from labledger.errors import MalformedJson
from labledger.files.untrusted_files import MAX_VALUES, MIB, is_safe_name, is_text, parents
from labledger.files.workspace_listing import MalformedListing
from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import decoder
from labledger.trial import contract

MAX_CHANGES = 20_000
"""How many changes are listed in the workspace, and how many outside it."""
MAX_NAMES = 4 * MIB
"""The limit of all listed paths together, in characters."""

_FOLDERS_OF_SYSTEM = ("dev", "proc", "sys", contract.ROOT.lstrip("/"))
_FILES_OF_ENGINE = (".dockerenv", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf")
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
STORABLE = frozenset({"file", "folder", "link", "fifo"})
"""Kinds that a snapshot can hold. Sockets are useless without their servers."""


@dataclass(frozen=True, slots=True)
class Change:
    """A path that differs from the image. A deletion has only path and change."""

    path: str
    change: ChangeKind
    kind: str | None = None
    """`file`, `folder`, `link`, `fifo`, `socket` or `other`; None if deleted or not read."""
    mode: int = 0
    """Permissions, with the set-user-id, set-group-id and sticky bits."""
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    """In whole seconds since 1970."""
    size: int = 0
    """The size of a file, in bytes."""
    target: str = ""
    """The target of a link, as written."""
    sha256: str | None = None
    """The SHA-256 of a file's content, if the snapshot holds it."""

    @property
    def is_stored(self) -> bool:
        """Whether a snapshot can restore it."""
        if self.change == "deleted" or self.kind == "socket":
            return True
        return self.sha256 is not None if self.kind == "file" else self.kind in STORABLE

    def as_json(self) -> JsonObject:
        what: JsonObject = {"path": self.path, "change": self.change}
        if self.kind is None:
            return what
        what |= {"kind": self.kind, "mode": self.mode, "uid": self.uid, "gid": self.gid}
        what["mtime"] = self.mtime
        if self.kind == "file":
            what["size"] = self.size
        if self.kind == "link":
            what["target"] = self.target
        return what | ({"sha256": self.sha256} if self.sha256 else {})


def kind_of(mode: int) -> str:
    """Return the kind of a file with the type and permissions `mode`."""
    return _KINDS.get(stat.S_IFMT(mode), "other")


@dataclass(frozen=True, slots=True)
class _StoredChanges:
    """The members of a stored list."""

    version: int
    workspace: str
    changes: tuple[Change, ...]
    volumes: list[str]
    truncated: bool


@dataclass(slots=True)
class ChangeList:
    """All changes of a container, as stored in `workspace_changes`."""

    workspace: str
    """The absolute path of the trial's workspace."""
    changes: dict[str, Change] = field(default_factory=dict)
    """By path."""
    volumes: list[str] = field(default_factory=list)
    """The volumes that the image declares. A volume's content is not a change of the container."""
    truncated: bool = False

    def as_json(self) -> JsonObject:
        return {
            "version": 1,
            "workspace": self.workspace,
            "changes": [self.changes[path].as_json() for path in sorted(self.changes)],
            "volumes": sorted(self.volumes),
            "truncated": self.truncated,
        }

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Parse a stored list. Raises `MalformedListing`."""
        try:
            data = canonical_json.loads(content, max_values=MAX_VALUES)
            if data["version"] != 1:
                raise MalformedListing("it was stored by a later version of labledger")
            stored = decoder(_StoredChanges)(data)
        except (MalformedJson, KeyError, TypeError, ValueError) as error:
            raise MalformedListing(f"{type(error).__name__}: {error}") from None
        changes = {change.path: change for change in stored.changes}
        return cls(stored.workspace, changes, stored.volumes, stored.truncated)


def is_exact(path: str) -> bool:
    """Return whether a path is stored exactly: it is UTF-8, and below the container's root."""
    return is_text(path) and is_safe_name(path)


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Paths of a container that are not changes of its trial: mounts, and the engine's files."""

    paths: frozenset[str]
    """Excluded with everything below them."""
    mount_parents: frozenset[str]
    """The folders above mounts, which the engine makes."""

    @classmethod
    def of(cls, mounts: Iterable[str]) -> Self:
        """Exclude mounts at absolute paths, and the files that every container has."""
        mounted = {path.strip("/") for path in mounts} - {""}
        above = {parent for path in mounted for parent in parents(path)}
        excluded = {*mounted, *_FOLDERS_OF_SYSTEM, *_FILES_OF_ENGINE}
        return cls(frozenset(excluded), frozenset(above))

    def excludes(self, path: str) -> bool:
        return path in self.paths or not self.paths.isdisjoint(parents(path))

    def was_made_by_engine(self, change: Change) -> bool:
        """Return whether a folder is as the engine makes the folders above a mount."""
        return (
            change.path in self.mount_parents
            and (change.change, change.kind) == ("added", "folder")
            and (change.mode, change.uid, change.gid) == (0o755, 0, 0)
        )


class ChangesReader(Protocol):
    """A reader of a stopped container's changes.

    Names may hold surrogates for bytes that are not UTF-8.
    """

    truncated: bool
    """Whether there were more changes than are listed, or some could not be read."""

    def changes(self) -> Iterator[tuple[Change, Iterator[bytes]]]:
        """Yield each change with a file's content, the changes in the workspace first.

        Read the content before the next change is taken, or not at all.
        """
        ...

    def originals(self, paths: Iterable[str], max_bytes: int) -> Iterator[tuple[Change, bytes]]:
        """Yield the image's versions of some paths, with a file's content.

        Files of more than `max_bytes`, and anything else than files, come without content.
        """
        ...
