"""Small files in the user's cache folder, such as the results of probing an image; home folders.

Only speed depends on the files: one is used if it is complete and belongs to this user; otherwise
the content is computed again. A name contains a digest of everything that the content depends on.
"""

from __future__ import annotations

import os
from pathlib import Path

from labledger.records.canonical_json import sha256_hex
from labledger.storage.durable_files import write_file


def read(name: str) -> bytes | None:
    """Return what was stored under a name; None if it is missing, damaged or another user's."""
    top = folder()
    if top is None:
        return None
    try:
        with (top / name).open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            digest, _, content = file.read().partition(b"\n")
    except OSError:
        return None
    return content if digest == sha256_hex(content).encode() else None


def store(name: str, content: bytes) -> None:
    """Store content under a name, if possible."""
    top = folder()
    if top is None:
        return
    try:
        write_file(top / name, sha256_hex(content).encode() + b"\n" + content)
    except OSError:
        return  # The caller computes the content again next time.


def expand_home(path: str) -> Path:
    """Return a path with `~` or `~USER` at its start replaced, if that user has a home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def folder() -> Path | None:
    """Return labledger's folder in the user's cache; None if this user has no home folder."""
    try:
        top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(top) / "labledger"
