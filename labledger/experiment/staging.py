"""Files beside the experiment that are staged into its containers."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labledger.experiment.findings import Refused, relative_name
from labledger.records import JsonObject

MAX_FILES = 5_000
"""How many files one entry may expand to."""

SKIPPED_FOLDERS = frozenset({"__pycache__", ".git", ".lab"})
"""Folders that are never staged as a part of another."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file to be staged for a phase, under `name` relative to the phase's folder."""

    name: str
    source: Path
    sha256: str
    size: int
    executable: bool

    def as_json(self) -> JsonObject:
        return {
            "name": self.name,
            "sha256": self.sha256,
            "size": self.size,
            "executable": self.executable,
        }


def find(folder: Path, authored: str) -> dict[str, Path]:
    """The files that one entry of `files` names: itself, or a folder's files at any depth.

    Returns relative names and where they lie, sorted by name. `__pycache__`, `.git` and `.lab`
    are left out of folders. Raises `Refused` for a name that is unsafe or names nothing, for
    what is no regular file, and for links that lead out of `folder`.
    """
    name = relative_name(authored)
    root = folder / name
    if not root.exists():
        raise Refused(
            f"{authored!r} does not exist (looked for {root.absolute()})",
            "files are named relative to the experiment file's folder",
        )
    if not root.is_dir():
        return {name: _regular(folder, root, name)}
    if not root.resolve().is_relative_to(folder.resolve()):
        raise Refused(f"{authored!r} is a link that leads out of the folder")
    found = {}
    for path in _walk(root):
        inner = path.relative_to(folder).as_posix()
        found[relative_name(inner)] = _regular(folder, path, inner)
        if len(found) > MAX_FILES:
            raise Refused(f"{authored!r} holds more than {MAX_FILES:,} files", "put it in an image")
    if not found:
        raise Refused(f"{authored!r} is a folder without files")
    return dict(sorted(found.items()))


def stage(folder: Path, authored: Sequence[str]) -> tuple[StagedFile, ...]:
    """The files of a phase, read and digested, sorted by name. Raises `Refused` as `find` does."""
    found: dict[str, Path] = {}
    for entry in authored:
        found |= find(folder, entry)
    return tuple(_digested(name, path) for name, path in sorted(found.items()))


def _digested(name: str, path: Path) -> StagedFile:
    hasher = hashlib.sha256()
    size = 0
    try:
        with path.open("rb") as handle:
            executable = bool(os.fstat(handle.fileno()).st_mode & stat.S_IXUSR)
            while chunk := handle.read(1 << 20):
                hasher.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise Refused(f"{name!r} cannot be read: {error.strerror}") from None
    return StagedFile(name, path, hasher.hexdigest(), size, executable)


def _walk(root: Path) -> Iterator[Path]:
    for current, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in folders:
            if (Path(current) / name).is_symlink():
                link = str((Path(current) / name).relative_to(root.parent))
                raise Refused(f"{link!r} is a link to a folder", "name the folder itself instead")
        yield from (Path(current) / name for name in files)


def _regular(folder: Path, path: Path, name: str) -> Path:
    """`path`, if it is a regular file inside `folder`, links followed."""
    if not path.is_file():
        raise Refused(f"{name!r} is not a regular file")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Refused(f"{name!r} is a link that leads out of the folder", "copy the file here")
    return path
