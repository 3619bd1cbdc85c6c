"""Contents of files that are written beside an experiment: bytes, or a file to copy.

A copy keeps the executable bit and nothing else of its source. Files are read in pieces, as a
benchmark's may be larger than memory. Used for experiments that come from benchmarks.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

FileContent = bytes | Path
"""The content of a file, or the file that it is copied from. A copy keeps its executable bit."""

_CHUNK = 1 << 20


def write_content(target: Path, content: FileContent) -> None:
    """Write a new file whole. Raises `FileExistsError` if it exists, and `OSError`."""
    file = target.open("xb")
    try:
        with file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file, _CHUNK)
        if _is_executable(content):
            target.chmod(target.stat().st_mode | 0o111)
    except BaseException:
        target.unlink()
        raise


def content_digest(content: FileContent) -> str:
    """Return the SHA-256 (hex) of a content. Raises `OSError`."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_key(content: FileContent) -> str:
    """Return a text that differs if what `write_content` writes differs. Raises `OSError`."""
    digest = content_digest(content)
    return f"{digest} executable" if _is_executable(content) else digest


def _is_executable(content: FileContent) -> bool:
    return isinstance(content, Path) and bool(content.stat().st_mode & 0o111)
