"""Files that arrive in pieces, and the pieces of files that are sent."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from labledger.errors import LabLedgerError
from labledger.files.durable_files import make_folder, sync_folder


class DigestMismatch(LabLedgerError):
    """The content that arrived has another digest."""


class PartialFile:
    """A file that grows under another name until it is complete. Not thread-safe."""

    def __init__(self, path: Path, target: Path) -> None:
        self._path = path
        self._target = target

    @property
    def size(self) -> int:
        """How many bytes have arrived."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, offset: int, content: bytes) -> int:
        """Append a piece if it begins where the file ends. Return the new size of the file.

        A piece at offset 0 begins the file again.
        """
        if offset == 0:
            make_folder(self._path.parent)
            self._path.write_bytes(content)
        elif offset == self.size:
            with self._path.open("ab") as file:
                file.write(content)
        return self.size

    def finish(self, sha256: str | None) -> None:
        """Give the complete file its name. Raises `DigestMismatch` and `OSError`.

        `sha256` is the digest of the content in hex; None if it is unknown. A file with another
        digest, or that cannot be synced, is deleted, because a later sync of it would succeed.
        """
        with self._path.open("rb") as file:
            digest = None if sha256 is None else hashlib.file_digest(file, "sha256").hexdigest()
            if digest != sha256:
                self.discard()
                raise DigestMismatch(f"{self._target.name} arrived with the digest {digest}")
            try:
                os.fsync(file.fileno())
            except OSError:
                self.discard()
                raise
        make_folder(self._target.parent)
        self._path.replace(self._target)
        sync_folder(self._target.parent)

    def discard(self) -> None:
        """Delete the bytes that have arrived."""
        self._path.unlink(missing_ok=True)


def read_chunk(path: Path, offset: int, size: int) -> bytes:
    """Return at most `size` bytes of a file from `offset` on; empty at its end."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)
