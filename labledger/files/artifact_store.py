"""The artifact store: content-addressed files beside the ledger.

A file is written once, and is durable before it gets its name. Only garbage collection removes
files, and only while no other process may need one (`in_use`, `alone`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from labledger.errors import ArtifactChanged
from labledger.files.durable_files import (
    content_digest,
    make_folder,
    new_file,
    publish,
    sync_folder,
)
from labledger.records.canonical_json import sha256_hex

_NAME = re.compile(r"[0-9a-f]{64}")


class ArtifactStore:
    """Files named by the SHA-256 of their content, under `root`/sha256/ab/abcd….

    A file gets its name once its content is durable, so that a named file is always complete. Files
    are never changed. If another program changed one, the next writer of the same content replaces
    it and keeps the changed file in `root`/damaged.
    """

    def __init__(self, root: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """`warn` gets a sentence about each changed file that is replaced."""
        self.root = root
        self._warn = warn

    @staticmethod
    def is_name(text: str) -> bool:
        """Return whether a text has the form of an artifact's name."""
        return _NAME.fullmatch(text) is not None

    def path(self, sha256: str) -> Path:
        """Return the path of an artifact, whether it exists or not."""
        return self.root / "sha256" / sha256[:2] / sha256

    @property
    def staged_events(self) -> Path:
        """The folder with the event files of results that are not committed yet."""
        return self.root / "staged"

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep garbage collection away during a block that writes or needs artifacts.

        Any number of processes may use the store. Waits while artifacts are being removed. A
        process that may not write to the lab folder writes no artifacts, so it takes no lock.
        """
        try:
            descriptor = self._open_lock()
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT):
                raise
            yield
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep other processes from using the store. Yields False if one already uses it."""
        descriptor = self._open_lock()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            yield False
            return
        try:
            yield True
        finally:
            os.close(descriptor)

    def _open_lock(self) -> int:
        path = self.root.with_name(f"{self.root.name}.lock")
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def contains(self, sha256: str) -> bool:
        """Return whether an artifact exists as a file."""
        return self.path(sha256).is_file()

    def keeps(self, sha256: str) -> bool:
        """Return whether an artifact exists unchanged, and make its name durable.

        The process that wrote it may have died before the name was durable. If the file was
        changed, keep a copy of it in `damaged`, because the caller will replace it.
        """
        if not self.contains(sha256):
            return False
        try:
            self.checked(sha256)
        except ArtifactChanged:
            self._keep_damaged(sha256)
            return False
        except FileNotFoundError:
            return False
        _sync_name(self.path(sha256))
        return True

    def _keep_damaged(self, sha256: str) -> None:
        """Give a changed file a second name. The first name stays until the file is replaced."""
        target = self.root / "damaged" / f"{sha256}.{secrets.token_hex(4)}"
        make_folder(target.parent)
        try:
            target.hardlink_to(self.path(sha256))
        except OSError:  # Some file systems have no hard links.
            shutil.copyfile(self.path(sha256), target)
        self._warn(
            f"artifact {self.path(sha256)} was changed by another program; it is replaced by its "
            f"original content, and the changed file is kept as {target}"
        )

    def checked(self, sha256: str) -> Path:
        """Return the path of an artifact after checking its content against its name.

        Each process reads the content once, and again if the file's time or size changes. Raises
        `ArtifactChanged`, and `FileNotFoundError`.
        """
        path = self.path(sha256)
        status = path.stat()
        signature = (status.st_dev, status.st_ino, status.st_size)
        if _digest_of(path, signature, status.st_mtime_ns, status.st_ctime_ns) != sha256:
            raise ArtifactChanged(
                f"artifact {path} is not what was stored: its content does not fit its name",
                hint="`labledger resume` of a run replaces the files of its unchanged experiment; "
                "otherwise restore it from a copy of .lab/artifacts; `labledger verify` says what "
                "else differs",
            )
        return path

    def find_damage(self, sha256: str, size: int) -> str | None:
        """Return how a file differs from its name and size, as the rest of a sentence, or None."""
        try:
            with self.path(sha256).open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
                has_size = handle.tell() == size
        except FileNotFoundError:
            return f"is missing from the store {self.root}"
        except OSError as error:
            return f"cannot be read from the store: {error.strerror}"
        return None if digest == sha256 and has_size else "was changed in the store"

    def put_bytes(self, content: bytes) -> str:
        """Store `content` durably. Return its SHA-256 in hex."""
        sha256 = sha256_hex(content)
        if not self.keeps(sha256):
            self.put_stream(iter([content]))
        return sha256

    def put_stream(self, chunks: Iterator[bytes]) -> tuple[str, int]:
        """Store a stream durably, in constant memory. Return its SHA-256 in hex and its size."""
        hasher = hashlib.sha256()
        size = 0
        with new_file(self.root / "incoming") as handle:
            for chunk in chunks:
                hasher.update(chunk)
                size += len(chunk)
                handle.write(chunk)
            target = self.path(hasher.hexdigest())
            make_folder(target.parent)
            publish(handle, target)
            _sync_name(target)
        return hasher.hexdigest(), size

    def put_file(self, source: Path) -> tuple[str, int]:
        """Store a file's content durably. Return its SHA-256 in hex and its size."""
        with source.open("rb") as handle:
            return self.put_stream(iter(lambda: handle.read(1 << 20), b""))


@lru_cache(maxsize=4096)
def _digest_of(path: Path, *_: object) -> str:
    """Return the SHA-256 (hex) of a file. The other arguments make the cache notice changes."""
    return content_digest(path)


def _sync_name(artifact: Path) -> None:
    """Make the names of an artifact and of its folder durable.

    Another thread may have created the folder without making its name durable yet.
    """
    sync_folder(artifact.parent)
    sync_folder(artifact.parent.parent)
