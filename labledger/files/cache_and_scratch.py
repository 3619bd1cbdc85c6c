"""Folders of labledger outside of the lab: the user's cache, and folders for temporary files.

Only speed depends on a file of the cache: one is used if it is complete and belongs to this user.
Its name contains a digest of everything that the content depends on. A temporary folder is locked
by the process that made it, and removed when that process is done; the folder of a process that was
killed is removed by whoever next makes one for the same purpose.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labledger.files.durable_files import write_file
from labledger.records.canonical_json import sha256_hex


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


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Yield a new empty folder in `$TMPDIR`, and remove it with what is in it.

    `purpose` is a part of its name. Raises `OSError`.
    """
    root = Path(tempfile.gettempdir())
    prefix = f"labledger-{purpose}-"
    for path in root.glob(f"{prefix}*"):
        _remove_if_abandoned(path)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        descriptor = _open_folder(path)
        _lock(descriptor, fcntl.LOCK_SH)
        if path.exists():
            break
        # Another process took it for an abandoned one before it was locked.
        os.close(descriptor)
    # Not the locked folder itself: an upgrade of a ledger in it would lock it again, and wait.
    inner = path / "files"
    try:
        inner.mkdir()
        yield inner
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _remove_if_abandoned(path: Path) -> None:
    """Remove a folder of this user that no process has locked."""
    with suppress(OSError):
        descriptor = _open_folder(path)
        try:
            is_mine = os.fstat(descriptor).st_uid == os.geteuid()
            if is_mine and _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _lock(descriptor: int, kind: int) -> bool:
    """Lock a folder. Return False if it is locked, or on a file system that has no locks."""
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        return False
    return True
