"""Small files in the user's cache folder: what was learned once and can be learned again.

Nothing depends on them but time. What is there is used only where it is whole and this user's own;
where nothing can be kept, nothing is. A name says, by a digest, all that its content depends on.
"""

from __future__ import annotations

import os
from pathlib import Path

from labledger.records.canonical_json import sha256_hex
from labledger.storage.durable_files import write_file


def read(name: str) -> bytes | None:
    """What was kept under a name; None where it is not there, not whole, or somebody else's."""
    folder = _folder()
    if folder is None:
        return None
    try:
        with (folder / name).open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            digest, _, content = file.read().partition(b"\n")
    except OSError:
        return None
    return content if digest == sha256_hex(content).encode() else None


def keep(name: str, content: bytes) -> None:
    """Keep a content under a name, where that is possible."""
    folder = _folder()
    if folder is None:
        return
    try:
        write_file(folder / name, sha256_hex(content).encode() + b"\n" + content)
    except OSError:
        return  # It is learned again the next time.


def _folder() -> Path | None:
    """The folder for such files; None where this user has no home."""
    try:
        top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(top) / "labledger"
