"""The seed of a workspace: the files that it has before any phase runs.

A seed is given inline in the task, or as a tar in the artifact store. It may come from an imported
ledger. So its names are checked, and nothing is written outside of the workspace or through a
link.
"""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labledger import clock
from labledger.files.artifact_store import ArtifactStore
from labledger.files.tars import TarEntry, tar_chunks
from labledger.files.untrusted_files import is_safe_name, parents

OPEN_FOLDER = OPEN_PROGRAM = 0o777
"""Containers may run as any user. The run folder above is closed to other users of the host."""
OPEN_FILE = 0o666
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class SeedEntry:
    """A file or link that a workspace begins with."""

    name: str
    content: bytes
    """The file's content, or the target of a link."""
    executable: bool = False
    is_link: bool = False


class UnsafeSeed(OSError):
    """A seed with a name that would be written outside of the workspace."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EINVAL, "would lead out of the workspace", name)


@dataclass(slots=True)
class _NameChecker:
    """Checks the names of a seed while it fills a workspace."""

    links: set[str] = field(default_factory=set)

    def check(self, name: str, *, is_link: bool = False) -> None:
        """Raise `UnsafeSeed` for an unsafe name, or one that is an earlier link or below one."""
        if not is_safe_name(name) or not self.links.isdisjoint([name, *parents(name)]):
            raise UnsafeSeed(name)
        if is_link:
            self.links.add(name)


class InlineSeed:
    """A seed given as texts by name."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def fill(self, workspace: Path) -> None:
        checker = _NameChecker()
        for name, text in self._files.items():
            checker.check(name)
            target = workspace / name
            make_folders(workspace, Path(name).parent)
            target.write_bytes(text.encode())
            target.chmod(OPEN_FILE)

    def entries(self) -> Iterator[SeedEntry]:
        for name, text in self._files.items():
            yield SeedEntry(name, text.encode())


class TarSeed:
    """A seed stored as a tar in the artifact store. A changed tar is never used.

    Each method raises `ArtifactChanged` or `FileNotFoundError` if the tar changed or is missing.
    """

    def __init__(self, store: ArtifactStore, sha256: str) -> None:
        self._store, self._sha256 = store, sha256

    def _open(self) -> tarfile.TarFile:
        return tarfile.open(self._store.checked(self._sha256), "r:")

    def fill(self, workspace: Path) -> None:
        with self._open() as archive:
            checker = _NameChecker()
            for member in archive:
                checker.check(member.name, is_link=member.issym())
                target = workspace / member.name
                if member.isdir():
                    target.mkdir(exist_ok=True)
                    target.chmod(OPEN_FOLDER)
                elif member.issym():
                    target.symlink_to(member.linkname)
                elif (content := archive.extractfile(member)) is not None:
                    with target.open("wb") as handle:
                        shutil.copyfileobj(content, handle)
                    target.chmod(OPEN_PROGRAM if member.mode & 0o100 else OPEN_FILE)

    def find_change(self, folder: Path) -> str | None:
        """Return how a folder has changed since `fill`, as the rest of a sentence, or None."""
        with self._open() as archive:
            members = {member.name: member for member in archive}
            for name, member in members.items():
                if not _fits(folder / name, member, archive):
                    return f"differs from its tar: {name!r} was changed or removed"
        for path, folders, names in os.walk(folder):
            for name in (*folders, *names):
                relative = Path(path, name).relative_to(folder).as_posix()
                if relative not in members:
                    return f"differs from its tar: {relative!r} was added"
        return None

    def entries(self) -> Iterator[SeedEntry]:
        with self._open() as archive:
            for member in archive:
                if member.issym():
                    yield SeedEntry(member.name, os.fsencode(member.linkname), is_link=True)
                elif member.isreg() and (content := archive.extractfile(member)) is not None:
                    executable = bool(member.mode & 0o100)
                    yield SeedEntry(member.name, content.read(), executable=executable)


def _fits(path: Path, member: tarfile.TarInfo, archive: tarfile.TarFile) -> bool:
    """Return whether a path has the content that `TarSeed.fill` writes for a member."""
    if member.issym():
        return path.is_symlink() and str(path.readlink()) == member.linkname
    if path.is_symlink() or member.isdir() or not path.is_file():
        return member.isdir() and path.is_dir() and not path.is_symlink()
    content = archive.extractfile(member)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if content is None or content.read(len(chunk)) != chunk:
                return False
    if content is not None and content.read(1):
        return False
    return not member.mode & 0o100 or bool(path.stat().st_mode & 0o100)


def seed_tar(seed: Seed, workspace: str) -> Iterator[bytes]:
    """Yield a tar that fills a folder of a container, open to all its users.

    `workspace` is the absolute path of the folder. Raises `UnsafeSeed`.
    """
    return tar_chunks(_members(seed.entries(), workspace.strip("/"), int(clock.unix_time())))


def _members(
    entries: Iterator[SeedEntry], top: str, now: int
) -> Iterator[tuple[TarEntry, Iterable[bytes]]]:
    checker = _NameChecker()
    made_folders: set[str] = set()

    def entry_at(name: str, kind: bytes, mode: int, size: int = 0, target: str = "") -> TarEntry:
        path = f"{top}/{name}".lstrip("/")
        return TarEntry(path, kind, size, target=target, mode=mode, mtime=now)

    for entry in entries:
        checker.check(entry.name, is_link=entry.is_link)
        for folder in reversed([*parents(entry.name)]):
            if folder not in made_folders:
                made_folders.add(folder)
                yield entry_at(folder, tarfile.DIRTYPE, OPEN_FOLDER), ()
        if entry.is_link:
            target = os.fsdecode(entry.content)
            yield entry_at(entry.name, tarfile.SYMTYPE, OPEN_FOLDER, target=target), ()
            continue
        mode = OPEN_PROGRAM if entry.executable else OPEN_FILE
        header = entry_at(entry.name, tarfile.REGTYPE, mode, len(entry.content))
        yield header, [entry.content]


Seed = InlineSeed | TarSeed


def make_folders(workspace: Path, relative: Path) -> None:
    """Create the folder `relative` of a workspace, and its parents, open to any user.

    Raises `NotADirectoryError` for a link.
    """
    folder = workspace
    for step in relative.parts:
        folder = folder / step
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        folder.chmod(OPEN_FOLDER)


def set_modes(top: Path, folder_mode: int, file_mode: int) -> None:
    """Set the permissions of all entries below a folder. Programs get `folder_mode`, too."""
    for current, folders, names in os.walk(top):
        for path in (Path(current, name) for name in (*folders, *names)):
            if not path.is_symlink():
                is_program = path.is_dir() or bool(path.stat().st_mode & 0o100)
                path.chmod(folder_mode if is_program else file_mode)


def make_readable_folder(folder: Path, mode: int = 0o755) -> None:
    """Create a folder that any user of a container can read."""
    folder.mkdir(parents=True)
    folder.chmod(mode)


def write_readable_file(path: Path, text: str) -> None:
    """Write a file that any user of a container can read. The text may have surrogate escapes."""
    path.write_text(text, "utf-8", "surrogateescape")
    path.chmod(0o644)
