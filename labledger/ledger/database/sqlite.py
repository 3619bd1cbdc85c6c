"""SQLite as the ledger uses it: the driver, its settings, the write-ahead log, and errors.

`writable_engine`, `readonly_engine` and `reading` are the only ways to open a ledger. `translated`
is the one boundary where errors of the driver become `LedgerError`, with a hint.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from labledger.errors import LedgerDamaged, LedgerDiskFull, LedgerError, LedgerMissing, NotALedger
from labledger.ledger.database.connection import Connection, Database
from labledger.ledger.database.statements import combine, row_digest

APPLICATION_ID = 0x4C4C4447
"""SQLite's `application_id` of a ledger: `LLDG`."""

LOCK_WAIT_S = 30
"""How long a statement waits for another connection's write."""

LOG_LIMIT_BYTES = 64 << 20
"""A larger write-ahead log is truncated. While a reader uses it, it may grow beyond this size."""

_READER_WAIT_S = 0.1
"""How long emptying the log waits for readers. No process can write meanwhile."""

_SAFE_SQLITE = (3, 51, 3)
"""The first release without a known corruption in WAL mode."""
_PRAGMAS = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA recursive_triggers = ON",
    # Each reader has its own; a larger one makes reading a large run no faster.
    "PRAGMA cache_size = -8192",
    "PRAGMA temp_store = MEMORY",
)
_WRITER_PRAGMAS = (
    "PRAGMA cache_size = -32768",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 4000",
    # The triggers of `run_tally` call functions of this package.
    "PRAGMA trusted_schema = ON",
)


def _choose_driver() -> ModuleType:
    """Return the standard library's driver, or pysqlite3 if it is installed and not older."""
    try:
        from pysqlite3 import dbapi2
    except ImportError:
        return sqlite3
    bundled: ModuleType = dbapi2
    return bundled if bundled.sqlite_version_info >= sqlite3.sqlite_version_info else sqlite3


DRIVER = _choose_driver()


_FIRST_WITH_UNHEX = (3, 41)


def driver_risk(version: tuple[int, ...] | None = None) -> str | None:
    """Return a sentence about the risk of the SQLite in use (or of `version`), or None."""
    version = version or DRIVER.sqlite_version_info
    if version >= _SAFE_SQLITE:
        return None
    return (
        f"SQLite {'.'.join(map(str, version))} has a known, rare corruption in WAL mode when one "
        "connection writes while another checkpoints (fixed in 3.51.3); "
        "`pip install pysqlite3` brings a newer SQLite"
    )


def writable_engine(path: Path, *, foreign_keys: bool = True) -> Database:
    """Return an engine whose transactions take the write lock at once. It creates no file."""
    return _engine(path, "mode=rw", foreign_keys=foreign_keys, pragmas=_WRITER_PRAGMAS)


def readonly_engine(path: Path) -> Database:
    """Return an engine that cannot write; each of its transactions reads one snapshot.

    Raises `LedgerMissing` if there is no file, and `LedgerError` if it cannot be opened.
    """
    require_ledger_file(path)
    engine = _engine(path, "mode=ro")
    try:
        with engine.connect() as connection:
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1")
    except (DRIVER.Error, UnicodeDecodeError) as error:
        engine.dispose()
        if log_size(path) == 0 and not os.access(path.parent, os.W_OK):
            engine = _engine(path, "immutable=1")
        else:
            raise _ledger_error("open the ledger", path, error) from error
    return engine


@contextmanager
def reading(path: Path, action: str) -> Iterator[Connection]:
    """Open a ledger to read one snapshot of it. If that fails, it could not `action`.

    Raises what `readonly_engine` does, and what `translated` makes of an error in the block.
    """
    engine = readonly_engine(path)
    try:
        with translated(action, path), engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def require_ledger_file(path: Path) -> None:
    """Raise `LedgerMissing` unless there is a file at `path`, and it or its log is not empty."""
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerMissing(
            f"there is no ledger at {path}", hint="`labledger run` creates one"
        ) from None
    except OSError as error:
        raise LedgerError(f"could not open the ledger: {error.strerror} ({path})") from error
    if size == 0 and log_size(path) == 0:
        raise empty_ledger_error(path)


def empty_ledger_error(path: Path) -> LedgerError:
    """Return the error for a ledger with nothing in it: its creation failed, or it was lost."""
    runs = path.parent / "runs"
    if any(runs.glob("*/resolved.json")):
        return LedgerError(
            f"the ledger at {path} is empty, and {runs} holds runs: its content was lost",
            hint=recovery_hint(path),
        )
    return LedgerMissing(
        f"the ledger at {path} is empty: its creation was interrupted",
        hint="`labledger run` creates it again",
    )


def recovery_hint(path: Path) -> str:
    """Return what gets back the content of a ledger that was lost or cannot be read."""
    return (
        "put a copy in its place (`labledger db backup` makes them); without one, "
        f"`labledger import {path.parent / 'runs'}/RUN_ID --without-artifacts --lab-dir NEW_LAB` "
        "brings what the mirrors of a run hold into a new lab"
    )


def _missing_end(path: Path) -> str:
    """Return how much of a ledger's file is cut off, by its own header; empty if nothing is."""
    with suppress(OSError), path.open("rb") as file:
        header = file.read(100)
        page_size = int.from_bytes(header[16:18], "big")
        expected = int.from_bytes(header[28:32], "big") * (1 << 16 if page_size == 1 else page_size)
        size = file.seek(0, os.SEEK_END)
        if size < expected:
            return f"; the file is cut off: it has {size:,} of {expected:,} bytes"
    return ""


@contextmanager
def translated(action: str, path: Path, hint: str | None = None) -> Iterator[None]:
    """Raise a `LedgerError` ("could not `action`") if the driver fails in the block.

    `hint` replaces the usual one, which is about the lab's own ledger.
    """
    try:
        yield
    except (DRIVER.Error, UnicodeDecodeError) as error:
        raise _ledger_error(action, path, error, hint) from error


def _engine(
    path: Path, mode: str, *, foreign_keys: bool = True, pragmas: tuple[str, ...] = ()
) -> Database:
    uri = f"file:{quote(str(path.absolute()))}?{mode}"
    reading = not pragmas

    def connect() -> Any:
        connection = DRIVER.connect(
            uri,
            uri=True,
            timeout=LOCK_WAIT_S,
            isolation_level=None,
            check_same_thread=not reading,
        )
        try:
            for pragma in (*_PRAGMAS, *pragmas):
                connection.execute(pragma)
            connection.create_function("regexp", 2, _regexp, deterministic=True)
            if DRIVER.sqlite_version_info < _FIRST_WITH_UNHEX:
                connection.create_function("unhex", 1, _unhex, deterministic=True)
            if not foreign_keys:
                connection.execute("PRAGMA foreign_keys = OFF")
            if not reading:
                connection.create_function("row_digest", -1, row_digest, deterministic=True)
                connection.create_function("combine", 2, combine, deterministic=True)
                connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}")
                _store_log(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection

    return Database(connect, writes=not reading)


def _unhex(text: str | None) -> bytes | None:
    """Return what SQLite's own `unhex` does, which older versions lack."""
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        return None


def _regexp(pattern: str, value: str | None) -> bool | None:
    """Implement SQL's `value REGEXP pattern`, for which SQLite has no function of its own."""
    return None if value is None else re.search(pattern, value) is not None


def _log(path: Path) -> Path:
    return Path(f"{os.path.realpath(path)}-wal")


def log_size(path: Path) -> int:
    """Return the size of the write-ahead log beside a database, in bytes."""
    try:
        return _log(path).stat().st_size
    except OSError:
        return 0


_CHUNK_BYTES = 1 << 20


def _store_log(driver: Any, path: Path) -> None:
    """Write the log again and sync it, so that everything that looks committed is durable.

    If a sync of the log failed and its process was killed, the system still shows content that the
    disk may lack. Later syncs succeed without storing it; only writing it again does.
    """
    if log_size(path) == 0:
        return
    driver.execute(
        "BEGIN IMMEDIATE"
    )  # SQLite has now read the log, and no other process writes to it.
    try:
        with _log(path).open("r+b", buffering=0) as log:
            offset = 0
            while chunk := os.pread(log.fileno(), _CHUNK_BYTES, offset):
                offset += os.pwrite(log.fileno(), chunk, offset)
            os.fsync(log.fileno())
    except OSError as error:
        is_full = error.errno == errno.ENOSPC
        raise (LedgerDiskFull if is_full else LedgerError)(
            f"could not store the ledger's log: {error.strerror} ({_log(path)})",
            hint=_HINTS["full" if is_full else "disk I/O"],
        ) from error
    finally:
        driver.execute("ROLLBACK")


FileIdentity = tuple[int, int] | None
"""Device and inode of a file, None if there is none."""


def file_identities(path: Path) -> tuple[FileIdentity, ...]:
    """Return which files a database and the two that SQLite keeps beside it are at present."""
    return tuple(_file_identity(f"{path}{suffix}") for suffix in ("", "-wal", "-shm"))


def _file_identity(path: str) -> FileIdentity:
    try:
        # Every transaction asks this three times; to make a `Path` takes longer than to ask.
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino


def empty_log(connection: Connection) -> bool:
    """Move all of the write-ahead log into the database; return False if a reader still uses it.

    This waits for readers that overlap each other, but not for one that stays.
    """
    driver: Any = connection.driver
    try:
        driver.execute(f"PRAGMA busy_timeout = {round(_READER_WAIT_S * 1000)}")
        busy, *_ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        driver.execute(f"PRAGMA busy_timeout = {LOCK_WAIT_S * 1000}")
    except DRIVER.Error:
        return False
    return not busy


def shrink_log(connection: Connection, path: Path) -> bool:
    """Empty the log if it has outgrown its limit; return False if a reader still uses it."""
    return log_size(path) <= LOG_LIMIT_BYTES or empty_log(connection)


_HINTS = {
    "full": "free some space, then `labledger resume`",
    "locked": "another process has been writing for long; try again",
    "readonly": "make the ledger's folder writable",
    "unable to open": "check the permissions of the ledger's folder",
    "not a database": "this file is not a ledger; choose another with `lab_dir=`",
    "malformed": "`labledger verify` says what is damaged; restore a backup",
    "disk I/O": "check the disk and its file system, then `labledger verify`",
}


def _ledger_error(
    action: str, path: Path, error: Exception, hint: str | None = None
) -> LedgerError:
    # The driver cannot decode a message of SQLite that quotes a damaged name.
    undecodable = "the database is malformed: it holds a name that is not UTF-8"
    cause = undecodable if isinstance(error, UnicodeDecodeError) else str(error)
    if "malformed" in cause:
        cause += _missing_end(path)
    types = {"full": LedgerDiskFull, "not a database": NotALedger, "malformed": LedgerDamaged}
    error_type = next((types[text] for text in types if text in cause), LedgerError)
    hint = hint or next((hint for text, hint in _HINTS.items() if text in cause), None)
    return error_type(f"could not {action}: {cause} ({path})", hint=hint)
