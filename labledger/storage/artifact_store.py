"""The artifact store: content-addressed files beside the ledger.

A file is written once, and durable before it appears under its name. Used by the ledger's writer
and by everything that reads artifacts.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from labledger.records.canonical_json import sha256_hex


class ArtifactStore:
    """Files named by the SHA-256 of their content, under `root`/sha256/ab/abcd….

    A file appears under its name only when its content is synced to the disk, so a name found is
    always whole. Files are never changed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str) -> Path:
        return self.root / "sha256" / sha256[:2] / sha256

    @property
    def staged_events(self) -> Path:
        """Where the events of results that are not committed yet lie, if they are many."""
        return self.root / "staged"

    def contains(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def find_damage(self, sha256: str, size: int) -> str | None:
        """Return how a file differs from what its name says, as the rest of a sentence, or None."""
        try:
            with self.path(sha256).open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
                whole = handle.tell() == size
        except FileNotFoundError:
            return f"is missing from the store {self.root}"
        except OSError as error:
            return f"cannot be read from the store: {error.strerror}"
        return None if digest == sha256 and whole else "was changed in the store"

    def put_bytes(self, content: bytes) -> str:
        """Keep `content`, durably, and return its SHA-256 in hex."""
        sha256 = sha256_hex(content)
        if self.contains(sha256):
            # Whoever put it there may have died before its name was durable.
            _sync_name(self.path(sha256))
        else:
            with self._new_file() as (handle, publish):
                handle.write(content)
                publish.append(sha256)
        return sha256

    def put_stream(self, chunks: Iterator[bytes]) -> tuple[str, int]:
        """Keep a stream, durably, in flat memory; return its SHA-256 in hex and its size."""
        hasher = hashlib.sha256()
        size = 0
        with self._new_file() as (handle, publish):
            for chunk in chunks:
                hasher.update(chunk)
                size += len(chunk)
                handle.write(chunk)
            publish.append(hasher.hexdigest())
        return hasher.hexdigest(), size

    def put_file(self, source: Path) -> tuple[str, int]:
        with source.open("rb") as handle:
            return self.put_stream(iter(lambda: handle.read(1 << 20), b""))

    @contextmanager
    def _new_file(self) -> Iterator[tuple[BinaryIO, list[str]]]:
        """A temporary file that becomes the artifact named by the digest put in the list."""
        incoming = self.root / "incoming"
        make_folder(incoming)
        descriptor, name = tempfile.mkstemp(dir=incoming)
        publish: list[str] = []
        try:
            with os.fdopen(descriptor, "wb") as handle:
                yield handle, publish
                handle.flush()
                os.fsync(handle.fileno())
            target = self.path(publish[0])
            make_folder(target.parent)
            Path(name).replace(target)
            _sync_name(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _sync_name(artifact: Path) -> None:
    """Make an artifact's name durable, and the folder's that another thread may just have made."""
    sync_directory(artifact.parent)
    sync_directory(artifact.parent.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are not there, with durable names."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def sync_tree(folder: Path) -> None:
    """Make all files in a folder, and in those below it, durable with their names."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            continue
        if path.is_dir():
            sync_directory(path)
        else:
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
    sync_directory(folder)


def sync_directory(folder: Path) -> None:
    """Make the names of the entries of `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Fence = Callable[[], AbstractContextManager[object]]
"""Makes a moment in which what this process does is still its to do; raises where it is not."""


def write_atomically(path: Path, content: bytes, fence: Fence = nullcontext) -> None:
    """Replace `path` as a whole: a reader sees the old content or the new, never a part.

    Does so within `fence`; where that raises, `path` is as it was.
    """
    with written_atomically(path, fence) as handle:
        handle.write(content)


@contextmanager
def written_atomically(path: Path, fence: Fence = nullcontext) -> Iterator[BinaryIO]:
    """Give a file that takes the place of `path` when all has been written, as above."""
    make_folder(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        with fence():
            Path(name).replace(path)
        sync_directory(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
