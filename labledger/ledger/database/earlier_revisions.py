"""Read a ledger of an earlier revision, in a temporary copy that is upgraded.

The ledger itself is only read, in one snapshot, so an older labledger may write to it meanwhile. A
process keeps the copy for all its reads, and makes a new one when the ledger has changed and the
copy is old.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from labledger import clock
from labledger.errors import LedgerDamaged, LedgerError, LedgerOutdated
from labledger.ledger.database import migrations
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import file_identities, reading
from labledger.text.figures import format_size

MAX_BYTES = 1 << 30
"""A larger ledger is not copied: that could take minutes, and fill the disk."""
_SPACE = 3
"""Free space in sizes of the ledger that is needed for the copy, its upgrade, and its log."""
_FRESH_S = 10.0
_FRESH_TIMES = 10
"""A copy is used for ten seconds, or for ten times as long as it took to make, whichever is longer.
Writes to the ledger meanwhile do not shorten this time."""


@dataclass(frozen=True, slots=True)
class _Copy:
    path: Path
    """A newer copy replaces this file. A reader that has the old file open keeps reading it."""
    state: object
    """The state of the ledger's files when they were copied."""
    fresh_until: float
    """By the monotonic clock."""


_copies: dict[Path, _Copy] = {}
_lock = threading.Lock()


def upgraded_copy(path: Path) -> Path:
    """Return the path of a copy at the current revision of the ledger at `path`.

    Raises `LedgerOutdated` for a ledger that is too large for a copy, or for which there is no
    space.
    """
    with reading(path, "copy the ledger") as connection:
        revision = migrations.revision_of(connection, path)
        with _lock:
            key, state = path.absolute(), _state_of(path)
            copy = _copies.get(key)
            if copy is None or (copy.state != state and clock.monotonic() >= copy.fresh_until):
                _require_space(connection, path, revision)
                target = _new_path() if copy is None else copy.path
                began = clock.monotonic()
                copy_to(connection, path, target)
                ended = clock.monotonic()
                fresh_until = ended + max(_FRESH_S, _FRESH_TIMES * (ended - began))
                copy = _copies[key] = _Copy(target, state, fresh_until)
            return copy.path


def _new_path() -> Path:
    """Return a path in a new folder that only this user can enter, until the process ends."""
    folder = tempfile.mkdtemp(prefix="labledger-read-")
    atexit.register(_remove, folder, os.getpid())
    return Path(folder) / "ledger.sqlite"


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # Not at the end of a process that was forked.
        shutil.rmtree(folder, ignore_errors=True)


def copy_to(connection: Connection, path: Path, target: Path) -> None:
    """Copy the ledger that a connection has open, upgrade the copy, and put it at `target`."""
    unfinished = target.with_name("unfinished.sqlite")
    unfinished.unlink(missing_ok=True)
    try:
        migrations.copy_open_ledger(connection, unfinished)
        migrations.upgrade_copy(unfinished)
    except LedgerError as error:
        reason = str(error.__cause__ or error.message)
        is_damaged = "malformed" in reason or "is damaged" in error.message
        raise (LedgerDamaged if is_damaged else LedgerError)(
            f"the ledger at {path} is of an earlier revision, and could not be read in an upgraded "
            f"copy: {reason}",
            hint="`labledger verify` says what is damaged; restore a backup"
            if is_damaged
            else f"the copy is made in {target.parent.parent}; TMPDIR names another folder",
        ) from error
    unfinished.replace(target)


def _require_space(connection: Connection, path: Path, revision: str | None) -> None:
    pages, page_size = (
        int(connection.execute(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "page_size")
    )
    size, temporary = pages * page_size, tempfile.gettempdir()
    if size > MAX_BYTES:
        why = f"it has {format_size(size)}, and at most {format_size(MAX_BYTES)} are copied"
    elif shutil.disk_usage(temporary).free < _SPACE * size:
        why = f"{temporary} has less than {format_size(_SPACE * size)} of free space"
    else:
        return
    raise LedgerOutdated(
        f"the ledger at {path} is at revision {revision}, and cannot be read in an upgraded copy: "
        f"{why}",
        hint="`labledger db upgrade` brings it up to date, after a backup",
    )


def _state_of(path: Path) -> object:
    """Return a value that changes whenever something is written to a ledger."""
    sizes = []
    for suffix in ("", "-wal"):
        try:
            status = Path(f"{path}{suffix}").stat()
        except OSError:
            sizes.append((0, 0))
        else:
            sizes.append((status.st_size, status.st_mtime_ns))
    return file_identities(path), *sizes
