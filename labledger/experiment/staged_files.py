"""Find and digest the files beside the experiment that are staged into its containers.

Only regular files inside the experiment's folder are accepted; links to such files are followed.
The plan of a run lists them, and freezing puts their contents into the artifact store.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labledger.errors import ExperimentChanged
from labledger.experiment.authored_fields import UnusablePath, relative_name
from labledger.files.artifact_store import ArtifactStore
from labledger.records.json_codec import Section

MAX_FILES = 5_000
"""The largest number of files that one entry may expand to."""

SKIPPED_FOLDERS = frozenset({"__pycache__", ".git", ".lab"})
"""Folders that are skipped inside a staged folder."""


@dataclass(frozen=True, slots=True)
class StagedFile(Section):
    """A file to be staged for a phase, under `name` relative to the phase's folder."""

    name: str
    sha256: str
    size: int
    executable: bool
    source: Path | None = field(default=None, compare=False)
    """The authored file; None if the artifact store has it. Not part of the document."""

    def freeze(self, store: ArtifactStore) -> None:
        """Put an authored file into `store`. Raises `ExperimentChanged` if it has changed."""
        if self.source is None or store.contains(self.sha256):
            return
        try:
            stored_digest, _ = store.put_file(self.source)
        except FileNotFoundError:
            stored_digest = "gone"
        if stored_digest != self.sha256:
            raise ExperimentChanged(
                f"{self.source} changed while it was being read",
                hint="do not change the experiment's files until the run has started; start it "
                "again",
            )


def find_files(folder: Path, authored: str) -> dict[str, Path]:
    """Return the files that one entry of `files` names: a file, or all files in a folder.

    The result maps relative names to paths, sorted by name. `__pycache__`, `.git` and `.lab`
    inside a folder are skipped. Raises `UnusablePath` for a name that is unsafe or does not exist,
    for anything but regular files, and for links that lead out of `folder`.
    """
    name = relative_name(authored)
    root = folder / name
    if not root.exists():
        raise UnusablePath(
            f"{authored!r} does not exist (looked for {root.absolute()})",
            "paths are relative to the experiment file's folder",
        )
    if not root.is_dir():
        return {name: _require_regular(folder, root, name)}
    if not root.resolve().is_relative_to(folder.resolve()):
        raise UnusablePath(f"{authored!r} is a link that leads out of the folder")
    files = {}
    for path in _walk(root):
        inner = path.relative_to(folder).as_posix()
        files[relative_name(inner)] = _require_regular(folder, path, inner)
        if len(files) > MAX_FILES:
            raise UnusablePath(
                f"{authored!r} contains more than {MAX_FILES:,} files", "put it in an image"
            )
    if not files:
        raise UnusablePath(f"{authored!r} is a folder that contains no files")
    return dict(sorted(files.items()))


def stage_files(folder: Path, authored: Sequence[str]) -> tuple[StagedFile, ...]:
    """Return the files of a phase with their digests, sorted by name.

    Raises `UnusablePath` as `find_files` does, and for a file that cannot be read.
    """
    files: dict[str, Path] = {}
    for entry in authored:
        files |= find_files(folder, entry)
    return tuple(_staged_file(name, path) for name, path in sorted(files.items()))


def _staged_file(name: str, path: Path) -> StagedFile:
    hasher = hashlib.sha256()
    size = 0
    try:
        with path.open("rb") as handle:
            executable = bool(os.fstat(handle.fileno()).st_mode & stat.S_IXUSR)
            while chunk := handle.read(1 << 20):
                hasher.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise UnusablePath(f"{name!r} cannot be read: {error.strerror}") from None
    return StagedFile(name, hasher.hexdigest(), size, executable, path)


def _walk(root: Path) -> Iterator[Path]:
    for current, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in folders:
            if (Path(current) / name).is_symlink():
                link = str((Path(current) / name).relative_to(root.parent))
                raise UnusablePath(
                    f"{link!r} is a link to a folder", "name the folder itself instead"
                )
        yield from (Path(current) / name for name in files)


def _require_regular(folder: Path, path: Path, name: str) -> Path:
    """Return `path` if it is a regular file inside `folder`, links followed."""
    if not path.is_file():
        raise UnusablePath(f"{name!r} is not a regular file")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UnusablePath(f"{name!r} is a link that leads out of the folder", "copy the file here")
    return path
