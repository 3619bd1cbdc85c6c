"""Writing files that appear whole or not at all, streamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
