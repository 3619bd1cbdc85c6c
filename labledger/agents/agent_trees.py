"""Folders of installed agents: their digests, their manifests, and the check before they are used.

An agent's entry in the cache is a folder with `manifest.json` and `tree`, which containers mount.
It gets its name when it is complete. Its name has a digest of everything that it was made from, so
that a changed profile, or another Python, is another entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from labledger.records.json_codec import Section

MANIFEST, TREE = "manifest.json", "tree"
SCHEMA = "labledger.agent_tree.v1"
"""The `schema_version` of a manifest."""


@dataclass(frozen=True, slots=True)
class InstalledAgent(Section):
    """An installed agent, as its manifest says. Trials that it runs in have it as evidence."""

    name: str
    version: str
    machine: str
    """The architecture, as `uname -m` prints it."""
    runtime: str
    """What it runs on: `native`, or such as ``node 24.19.0`` or ``python 3.12.4``."""
    packages: Mapping[str, str]
    """The digest of each package, as its registry states it, such as
    ``pypi:NAME==VERSION`` with ``sha256:…``."""
    tree_sha256: str
    """The digest of all files: names, contents, links and whether they are executable."""
    size: int
    """In bytes."""
    schema_version: str = SCHEMA
    folder: Path = field(default=Path(), compare=False)
    """What containers mount read-only at `launch.folder_of(name)`. Not in the manifest."""


def tree_digest(tree: Path) -> tuple[str, int]:
    """Return the digest of a folder's files, and how many bytes they have. Raises `OSError`."""
    digest = hashlib.sha256()
    size = 0
    for folder, folders, files in os.walk(tree):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(folder, name)
            status = path.lstat()
            kind, content = "folder", ""
            if stat.S_ISLNK(status.st_mode):
                kind, content = "link", str(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                kind = "program" if status.st_mode & 0o111 else "file"
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                size += status.st_size
            elif not stat.S_ISDIR(status.st_mode):
                kind = "other"
            line = json.dumps([kind, os.fsdecode(path.relative_to(tree)), content])
            digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest(), size


def read_entry(entry: Path) -> InstalledAgent | None:
    """Return the agent of an entry as its manifest says; None if there is none that is readable."""
    try:
        stored = InstalledAgent.from_json(json.loads((entry / MANIFEST).read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return None if stored.schema_version != SCHEMA else replace(stored, folder=entry / TREE)


def checked_entry(entry: Path) -> InstalledAgent | None:
    """Return the agent of an entry if its files are those that were installed, else None."""
    stored = read_entry(entry)
    try:
        if stored is None or tree_digest(stored.folder) != (stored.tree_sha256, stored.size):
            return None
    except OSError:
        return None
    return stored
