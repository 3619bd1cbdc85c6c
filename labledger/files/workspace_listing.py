"""List the files of a workspace, and inspect the folders that a listing leaves out.

A workspace is untrusted: no link is followed, only regular files are read, and everything is
limited. A listing has kind, size and digest of each file. Small unlisted folders, such as `.git`,
have a digest that shows whether they changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Self

from labledger.errors import MalformedJson
from labledger.files.untrusted_files import (
    MAX_VALUES,
    MIB,
    UnsafeFile,
    UntrustedFile,
    is_text,
    printable,
)
from labledger.files.workspace_seed import Seed, SeedEntry
from labledger.records import JsonObject, canonical_json
from labledger.records.canonical_json import sha256_hex

UNLISTED_FOLDERS = frozenset(
    {
        *(".git", ".hg", ".svn"),
        *(".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", "__pycache__"),
        *(".venv", "venv", "site-packages", "node_modules"),
    }
)
"""Folders of dependencies, caches or history. A listing names them, but not their files."""
CACHES = frozenset({".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__"})
"""The unlisted folders that no result depends on."""

MAX_ENTRIES = 20_000
MAX_NAMES = 4 * MIB
"""The most characters of all names in a listing together."""
MAX_HASHED = 64 * MIB
"""A larger file has no digest."""
HASHING_BUDGET = 1024 * MIB
"""The most bytes of a workspace that are read for digests. Later files have no digest."""


@dataclass(frozen=True, slots=True)
class Entry:
    kind: str
    """`file`, `link` or `other`; in unlisted folders also `folder`, for an empty folder."""
    size: int
    sha256: str | None = None
    """The digest of a file's content, or of a link's target."""
    executable: bool = False

    def has_same_content(self, other: Entry | None) -> bool:
        """Return whether both certainly have the same content."""
        mine = (self.kind, self.sha256)
        return self.sha256 is not None and other is not None and mine == (other.kind, other.sha256)


class MalformedListing(Exception):
    """A stored listing cannot be parsed."""


@dataclass(slots=True)
class Listing:
    """The files of a workspace by name."""

    entries: dict[str, Entry] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """Folders whose files are not listed."""
    empty: list[str] | None = None
    """Empty folders, if known."""
    digests: dict[str, str] = field(default_factory=dict)
    """Digests of folders in `left_out`, if known."""
    truncated: bool = False
    _characters_left: int = MAX_NAMES

    def as_json(self) -> JsonObject:
        return {
            "version": 1,
            "files": [
                {"path": name, "kind": e.kind, "size": e.size}
                | ({"sha256": e.sha256} if e.sha256 else {})
                | ({"executable": True} if e.executable else {})
                for name, e in sorted(self.entries.items())
            ],
            "left_out": sorted(self.left_out),
            "truncated": self.truncated,
            **({} if self.empty is None else {"empty": sorted(self.empty)}),
            **({"digests": self.digests} if self.digests else {}),
        }

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Parse a stored listing. Raises `MalformedListing`."""
        try:
            data = canonical_json.loads(content, max_values=MAX_VALUES)
            entries = {
                str(f["path"]): Entry(
                    str(f["kind"]), int(f["size"]), f.get("sha256"), bool(f.get("executable"))
                )
                for f in data["files"]
            }
            left_out, empty = (data.get(key) for key in ("left_out", "empty"))
            names = [str(name) for name in left_out]
            folders = None if empty is None else [str(name) for name in empty]
            digests = {str(name): str(digest) for name, digest in data.get("digests", {}).items()}
            return cls(entries, names, folders, digests, bool(data["truncated"]))
        except (MalformedJson, KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedListing(f"{type(error).__name__}: {error}") from None

    def add(self, name: str, entry: Entry) -> None:
        self._characters_left -= len(name)
        if len(self.entries) >= MAX_ENTRIES or self._characters_left < 0:
            self.truncated = True
        else:
            self.entries[name] = entry

    def leave_out(self, folder: str) -> None:
        if self.count_name(folder):
            self.left_out.append(folder)

    def count_name(self, folder: str) -> bool:
        """Count the length of a folder's name. Return False if the limit of names is exceeded."""
        self._characters_left -= len(folder)
        self.truncated |= self._characters_left < 0
        return not self.truncated


def list_seed(seed: Seed) -> Listing:
    """List the files of a seed as a workspace would have them."""
    listing = Listing()
    for seeded in seed.entries():
        if UNLISTED_FOLDERS.isdisjoint(Path(seeded.name).parts[:-1]):
            listing.add(seeded.name, seeded_entry(seeded))
    return listing


def seeded_entry(seeded: SeedEntry) -> Entry:
    kind = "link" if seeded.is_link else "file"
    digest = sha256_hex(seeded.content)
    return Entry(kind, len(seeded.content), digest, seeded.executable)


def list_folder(workspace: Path) -> Listing:
    """List the files of a workspace. Follows no link and opens only regular files."""
    listing = Listing(empty=[])
    budget = HASHING_BUDGET
    for name, child in walk(workspace, listing):
        entry = entry_of(child, budget)
        if entry.kind == "file" and entry.sha256:
            budget -= entry.size
        listing.add(name, entry)
    return listing


def entry_of(child: os.DirEntry[str], budget: int) -> Entry:
    """Return the entry of anything but a folder. A file larger than `budget` has no digest."""
    try:
        status = child.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(child.path)  # noqa: PTH115  (a Path would normalize it)
            return Entry("link", status.st_size, sha256_hex(os.fsencode(target)))
    except OSError:
        return Entry("other", 0)
    if not stat.S_ISREG(status.st_mode):
        return Entry("other", 0)
    path = Path(child.path)
    try:
        sha256 = UntrustedFile(path.parent, path.name).sha256(min(MAX_HASHED, budget))
    except UnsafeFile:
        sha256 = None
    return Entry("file", status.st_size, sha256, bool(status.st_mode & stat.S_IXUSR))


def walk(top: Path, listing: Listing) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all entries except folders, folder by folder. Not recursive, as folders may be deep."""
    pending = [""]
    folder_count = 0
    while pending and not listing.truncated:
        folder = pending.pop()
        folder_count += 1
        try:
            children = _children(top / folder)
        except OSError:
            listing.leave_out(folder.rstrip("/") or ".")
            continue
        listing.truncated |= max(folder_count, len(children)) > MAX_ENTRIES
        if folder and not children and listing.empty is not None:
            listing.empty.append(folder.rstrip("/"))
        folders = []
        for child in children:
            name = f"{folder}{printable(child.name)}"
            if not _is_folder(child):
                yield name, child
            elif child.name in UNLISTED_FOLDERS or name != folder + child.name:
                listing.leave_out(name)
            elif listing.count_name(name):
                folders.append(f"{name}/")
        pending.extend(reversed(folders))


def _children(folder: Path) -> list[os.DirEntry[str]]:
    """Return a folder's children by name, at most one more than the limit of a listing."""
    with os.scandir(folder) as children:
        return sorted(islice(children, MAX_ENTRIES + 1), key=lambda child: child.name)


def _is_folder(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir(follow_symlinks=False)
    except OSError:
        return False


MAX_FILES = 5_000
MAX_BYTES = 64 * MIB
"""Limits for all inspected folders of a workspace together."""

FolderContents = dict[str, Entry]
"""Files, links and empty folders (of kind `folder`) by name."""


def is_cache(folder: str) -> bool:
    return PurePosixPath(folder).name in CACHES


def inspect_unlisted_folders(workspace: Path, listing: Listing) -> dict[str, FolderContents]:
    """Return the contents of unlisted folders, except caches.

    Leaves out folders that are too large or contain files that cannot be stored exactly.
    """
    contents: dict[str, FolderContents] = {}
    files, bytes_left = MAX_FILES, MAX_BYTES
    if listing.truncated:
        return contents
    for folder in listing.left_out:
        if is_cache(folder) or "\ufffd" in folder:
            continue
        entries = _read_folder(workspace, folder, files, bytes_left)
        if entries is not None:
            contents[folder] = entries
            files -= len(entries)
            bytes_left -= sum(entry.size for entry in entries.values())
    return contents


def _read_folder(
    workspace: Path, folder: str, files: int, bytes_left: int
) -> FolderContents | None:
    """Return a folder's contents; None if it is too large or cannot be stored exactly."""
    try:
        children = _child_names(workspace, folder, files, bytes_left)
    except OSError:
        return None
    if children is None:
        return None
    contents: FolderContents = {}
    for name, child in children.items():
        contents[name] = Entry("folder", 0) if child is None else entry_of(child, MAX_BYTES)
        if child is not None and contents[name].sha256 is None:
            return None
    return contents


def _child_names(
    workspace: Path, folder: str, files: int, bytes_left: int
) -> dict[str, os.DirEntry[str] | None] | None:
    """Return the files below a folder by name, and empty folders as None, without their contents.

    Return None if a limit is exceeded or a name is not UTF-8. Raises `OSError`.
    """
    contents: dict[str, os.DirEntry[str] | None] = {}
    pending = [folder]
    while pending:
        name = pending.pop()
        with os.scandir(workspace / name) as children:
            contents[name] = None
            for child in children:
                contents.pop(name, None)
                inner = f"{name}/{child.name}"
                if child.is_dir(follow_symlinks=False):
                    pending.append(inner)
                else:
                    contents[inner] = child
                    bytes_left -= child.stat(follow_symlinks=False).st_size
                if bytes_left < 0 or len(contents) + len(pending) > files or not is_text(inner):
                    return None
    return contents


def digest(entries: FolderContents) -> str:
    """Return the digest of a folder's files and links. Empty folders do not affect it."""
    return canonical_json.digest(
        [
            [name, entry.kind, entry.sha256, entry.executable]
            for name, entry in sorted(entries.items())
            if entry.kind != "folder"
        ]
    )


def seeded_unlisted_folders(seed: Seed, folders: Iterable[str]) -> dict[str, FolderContents]:
    """Return the contents that a seed gives to some unlisted folders."""
    contents: dict[str, FolderContents] = {folder: {} for folder in folders}
    if contents:
        for seeded in seed.entries():
            for folder, entries in contents.items():
                if seeded.name.startswith(f"{folder}/"):
                    entries[seeded.name] = seeded_entry(seeded)
    return contents
