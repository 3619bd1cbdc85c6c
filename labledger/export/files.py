"""Files of lines: written whole or not at all, and compared with what they should hold."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from labledger.errors import LabLedgerError
from labledger.store import Fence, make_folder, sync_directory


@contextmanager
def replacing(path: Path, fence: Fence = nullcontext) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path`, within `fence`, when the block ends well.

    Raises `LabLedgerError` where that fails; `path` is then as it was.
    """
    try:
        make_folder(path.parent)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise LabLedgerError(f"could not write {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        with fence():
            Path(name).replace(path)
        sync_directory(path.parent)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise LabLedgerError(f"could not write {path}: {error.strerror}") from error
        raise


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a file is not what the ledger would make of it."""

    path: Path
    line: int
    """The first line that differs, counted from 1; 0 where there is no file."""
    message: str


def first_difference(path: Path, expected: Iterable[tuple[str, bytes]]) -> Difference | None:
    """Compare a file with the lines that it should have, each with its place in the ledger."""
    number = 0
    try:
        with path.open("rb") as handle:
            for number, (place, line) in enumerate(expected, 1):
                if handle.readline() != line:
                    return Difference(path, number, f"differs from the ledger at {place}")
            if handle.read(1):
                return Difference(path, number + 1, "has more than the ledger")
    except FileNotFoundError:
        return Difference(path, 0, "is missing")
    except OSError as error:
        return Difference(path, number, f"cannot be read: {error.strerror}")
    return None
