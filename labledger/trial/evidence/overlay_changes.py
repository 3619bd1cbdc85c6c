"""Read a container's changes from the folders of the engine's overlay file system.

This is fast, because only changes are read. It needs the host's root user and no mapping of user
ids; otherwise, `engine_archives` is used. The image's layers are merged below the container's
folder as the kernel does. No link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Self

from labledger.engine.container_files import ChangeKind
from labledger.files.untrusted_files import head_chunks, open_checked
from labledger.records import JsonObject
from labledger.trial.evidence.container_changes import (
    MAX_CHANGES,
    Change,
    Exclusions,
    kind_of,
)
from labledger.trial.evidence.tampering import is_whiteout

_OPAQUE, _REDIRECT, _METACOPY = (
    f"trusted.overlay.{name}" for name in ("opaque", "redirect", "metacopy")
)
_CAP_SYS_ADMIN = 1 << 21
_ALL_USERS = ["0", "0", "4294967295"]

Layers = tuple[str, ...]
"""Folders of one name in the image's layers, uppermost first, that are merged into one."""


class OverlayUnusable(Exception):
    """The folders of an overlay do not show everything that its container sees."""


@dataclass(slots=True)
class OverlayReader:
    """Reads the changes of one stopped container."""

    upper: str
    lower: Layers
    exclusions: Exclusions
    workspace: str
    """Relative to the container's root, "" for the root itself."""
    truncated: bool = False
    _originals: dict[str, str] = field(default_factory=dict)
    """The image's file at each path that was changed or deleted."""

    @classmethod
    def of(cls, attributes: JsonObject, exclusions: Exclusions, workspace: str) -> Self | None:
        """Return a reader of the container with these attributes, or None if that is not
        possible.
        """
        driver = attributes.get("GraphDriver") or {}
        folders = driver.get("Data") or {}
        upper, lower = folders.get("UpperDir"), folders.get("LowerDir")
        if driver.get("Name") != "overlay2" or not upper or not lower or not may_read_overlays():
            return None
        layers = tuple(str(lower).split(":"))
        try:
            # If the engine maps user ids, its own file does not belong to root.
            if os.lstat(f"{layers[0]}/.dockerenv").st_uid != 0 or not os.path.isdir(upper):  # noqa: PTH112
                return None
            _require_plain(upper)
        except (OSError, OverlayUnusable):
            return None
        return cls(str(upper), layers, exclusions, workspace)

    def changes(self) -> Iterator[tuple[Change, Iterator[bytes]]]:
        """Yield each change. May raise `OverlayUnusable` after some changes."""
        top = self._layers_of_workspace()
        if self.workspace and top is not None:
            yield from self._walk(self.workspace, top, skipped=None)
        yield from self._walk("", self.lower, skipped=self.workspace or None)

    def _layers_of_workspace(self) -> Layers | None:
        """Return the layers of the workspace, or None if nothing has changed below it."""
        layers, path = self.lower, self.upper
        for name in self.workspace.split("/"):
            path = f"{path}/{name}"
            try:
                status = os.lstat(path)
            except OSError:
                return None
            if not stat.S_ISDIR(status.st_mode):
                return None
            _, layers = _below(layers, name)
            if _is_opaque(path):
                layers = ()
        return layers

    def _walk(
        self, top: str, layers: Layers, skipped: str | None
    ) -> Iterator[tuple[Change, Iterator[bytes]]]:
        remaining = MAX_CHANGES
        pending = [(top, layers)]
        while pending:
            folder, layers = pending.pop()
            path = f"{self.upper}/{folder}" if folder else self.upper
            try:
                names = self._names(path)
                hidden = _require_plain(path)
            except OSError:
                self.truncated = True
                continue
            for change, below in self._children(folder, names, layers, is_opaque=hidden):
                if self.exclusions.excludes(change.path):
                    continue
                remaining -= 1
                if remaining < 0:
                    self.truncated = True
                    return
                if change.kind == "folder" and change.path != skipped:
                    pending.append((change.path, below))
                if not self.exclusions.was_made_by_engine(change):
                    yield change, self._content(change)

    def _names(self, folder: str) -> list[str]:
        with os.scandir(folder) as children:
            names = sorted(child.name for child in islice(children, MAX_CHANGES + 1))
        self.truncated |= len(names) > MAX_CHANGES
        return names

    def _children(
        self, folder: str, names: list[str], layers: Layers, *, is_opaque: bool
    ) -> Iterator[tuple[Change, Layers]]:
        """Yield the changes in a folder, each with its layers below it."""
        above = f"{folder}/" if folder else ""
        if is_opaque:
            for name in sorted(_visible_names(layers) - set(names)):
                self._note_original(f"{above}{name}", layers, name)
                yield Change(f"{above}{name}", "deleted"), ()
        for name in names:
            path = f"{above}{name}"
            try:
                status = os.lstat(f"{self.upper}/{path}")
            except OSError:
                self.truncated = True
                continue
            original, below = _below(layers, name)
            if original is not None:
                self._note_original(path, layers, name)
            if is_whiteout(status):
                if original is not None:
                    yield Change(path, "deleted"), ()
                continue
            change: ChangeKind = "added" if original is None else "changed"
            yield self._change(path, change, status), below

    def _change(self, path: str, change: ChangeKind, status: os.stat_result) -> Change:
        kind = kind_of(status.st_mode)
        full = f"{self.upper}/{path}"
        if kind == "file" and _METACOPY in os.listxattr(full, follow_symlinks=False):
            raise OverlayUnusable
        return Change(
            path,
            change,
            kind,
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns // 1_000_000_000,
            status.st_size if kind == "file" else 0,
            os.readlink(full) if kind == "link" else "",  # noqa: PTH115
        )

    def _note_original(self, path: str, layers: Layers, name: str) -> None:
        for layer in layers:
            if os.path.lexists(f"{layer}/{name}"):
                self._originals[path] = f"{layer}/{name}"
                return

    def _content(self, change: Change) -> Iterator[bytes]:
        if change.kind == "file":
            yield from _content(f"{self.upper}/{change.path}", change.size)

    def originals(self, paths: Iterable[str], max_bytes: int) -> Iterator[tuple[Change, bytes]]:
        """Yield the image's versions of some paths. Call it after `changes`."""
        for path in paths:
            if (full := self._originals.get(path)) is None:
                continue
            try:
                status = os.lstat(full)
                kind, size = kind_of(status.st_mode), status.st_size
                is_read = kind == "file" and size <= max_bytes
                content = b"".join(_content(full, size)) if is_read else b""
            except OSError:
                continue
            mode = stat.S_IMODE(status.st_mode)
            yield Change(path, "changed", kind, mode, size=size if kind == "file" else 0), content


def may_read_overlays() -> bool:
    """Return whether this process sees the attributes with which overlays mark folders."""
    try:
        status = Path("/proc/self/status").read_text()
        users = Path("/proc/self/uid_map").read_text().split()
    except OSError:
        return False
    effective = next((line for line in status.splitlines() if line.startswith("CapEff:")), "0 0")
    return users == _ALL_USERS and bool(int(effective.split()[1], 16) & _CAP_SYS_ADMIN)


def _require_plain(folder: str) -> bool:
    """Return whether a folder hides the folders below it. Raises `OverlayUnusable`, `OSError`."""
    if _REDIRECT in os.listxattr(folder, follow_symlinks=False):
        raise OverlayUnusable
    return _is_opaque(folder)


def _is_opaque(folder: str) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def _below(layers: Layers, name: str) -> tuple[os.stat_result | None, Layers]:
    """Return what merged folders show under a name, and the folders of that name below it."""
    first: os.stat_result | None = None
    below: list[str] = []
    for layer in layers:
        path = f"{layer}/{name}"
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if is_whiteout(status):
            break
        first = first or status
        if not stat.S_ISDIR(status.st_mode):
            break
        below.append(path)
        if _is_opaque(path):
            break
    return first, tuple(below)


def _visible_names(layers: Layers) -> set[str]:
    """Return the names that merged folders show, at most `MAX_CHANGES` from each."""
    names: set[str] = set()
    for layer in layers:
        with os.scandir(layer) as children:
            names.update(child.name for child in islice(children, MAX_CHANGES))
    return {name for name in names if _below(layers, name)[0] is not None}


def _content(path: str, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a regular file."""
    with os.fdopen(open_checked(path, _require_regular), "rb") as file:
        yield from head_chunks(file, size)


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is no longer a regular file")
