"""Files that arrive in pieces, and get their name once they are complete, checked and durable.

A piece is accepted only where the file ends, so that repeated and delayed pieces do no harm, and a
transfer that broke off goes on where it ended. Memory stays flat. Used on hosts for inputs, and in
the coordinator for artifacts and events of results.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from labledger.errors import LabLedgerError
from labledger.storage.durable_files import make_folder, sync_folder


class DigestMismatch(LabLedgerError):
    """What arrived is not what its digest says."""


class PartialFile:
    """A file that grows under another name until it is complete. For one thread at a time."""

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
        """Append a piece if it begins where the file ends. Return the size of the file then.

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
        """Give the complete file its name. Raises `DigestMismatch`; nothing is left then.

        `sha256` is the digest of the content in hex, None if it is not known.
        """
        with self._path.open("rb") as file:
            if sha256 is not None:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != sha256:
                    self._path.unlink()
                    message = f"{self._target.name} arrived with the digest {digest}"
                    raise DigestMismatch(message)
            os.fsync(file.fileno())
        make_folder(self._target.parent)
        self._path.replace(self._target)
        sync_folder(self._target.parent)

    def discard(self) -> None:
        """Delete what has arrived."""
        self._path.unlink(missing_ok=True)


def read_chunk(path: Path, offset: int, size: int) -> bytes:
    """Return at most `size` bytes of a file from `offset` on; empty at its end."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)
