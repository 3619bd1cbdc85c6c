"""Inspect small folders that a listing does not list, such as `.git` or `node_modules`.

Their digests show whether they are still as seeded. If not, `artifacts` stores all of their files,
so that `restored_workspace` can restore them. Caches and large folders are not inspected.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from labledger.records import canonical_json
from labledger.workspace.listing import CACHES, Entry, Listing, entry_of, seeded_entry
from labledger.workspace.seed import Seed
from labledger.workspace.untrusted_files import MIB

MAX_FILES = 5_000
MAX_BYTES = 64 * MIB
"""Limits for all inspected folders of a workspace together."""

FolderContents = dict[str, Entry]
"""Files, links and empty folders (of kind `folder`) by name."""


def is_cache(folder: str) -> bool:
    return PurePosixPath(folder).name in CACHES


def inspect_unlisted_folders(workspace: Path, listing: Listing) -> dict[str, FolderContents]:
    """Return the contents of unlisted folders, except caches.

    Folders are left out if they are too large or contain what cannot be stored exactly.
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
        children = _children(workspace, folder, files, bytes_left)
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


def _children(
    workspace: Path, folder: str, files: int, bytes_left: int
) -> dict[str, os.DirEntry[str] | None] | None:
    """Return the files below a folder by name, and empty folders as None, without reading them.

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
                if bytes_left < 0 or len(contents) + len(pending) > files or not _is_text(inner):
                    return None
    return contents


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\ufffd" not in name


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
    """Return the contents of some folders of a seed."""
    contents: dict[str, FolderContents] = {folder: {} for folder in folders}
    if contents:
        for seeded in seed.entries():
            for folder, entries in contents.items():
                if seeded.name.startswith(f"{folder}/"):
                    entries[seeded.name] = seeded_entry(seeded)
    return contents
