"""SQLite as the ledger uses it: which driver, which settings, and driver errors in our words."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from labledger.errors import LedgerDiskFull, LedgerError, LedgerMissing, NotALedger
from labledger.ledger.database.connection import Connection, Engine
from labledger.ledger.database.row_digests import row_digest

APPLICATION_ID = 0x4C4C4447
"""SQLite's `application_id` of a ledger: `LLDG`."""

LOCK_WAIT_S = 30
"""How long a statement waits for another connection's write."""

LOG_LIMIT_BYTES = 64 << 20
"""What the write-ahead log is cut back to. While a reader stays, it may grow beyond that."""

_READERS_WAIT_S = 0.1
"""How long emptying the log waits for readers; nobody writes meanwhile."""

_SAFE_SQLITE = (3, 51, 3)
_PRAGMAS = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA recursive_triggers = ON",
    "PRAGMA cache_size = -32768",
    "PRAGMA temp_store = MEMORY",
)
_WRITER_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 4000",
)


def _choose_driver() -> ModuleType:
    """The newer SQLite of the standard library's and pysqlite3's, where that is installed."""
    try:
        from pysqlite3 import dbapi2
    except ImportError:
        return sqlite3
    bundled: ModuleType = dbapi2
    return bundled if bundled.sqlite_version_info >= sqlite3.sqlite_version_info else sqlite3


DRIVER = _choose_driver()


def driver_risk(version: tuple[int, ...] | None = None) -> str | None:
    """A sentence that names the risk of the SQLite in use (or of `version`), or None."""
    found = version or DRIVER.sqlite_version_info
    if found >= _SAFE_SQLITE:
        return None
    return (
        f"SQLite {'.'.join(map(str, found))} has a known, rare corruption in WAL mode when one "
        "connection writes while another checkpoints (mended in 3.51.3); "
        "`pip install pysqlite3` brings a newer SQLite"
    )


def writable_engine(path: Path, *, foreign_keys: bool = True) -> Engine:
    """An engine whose transactions take the write lock at once. Creates no file."""
    return _engine(path, "mode=rw", foreign_keys=foreign_keys, pragmas=_WRITER_PRAGMAS)


def readonly_engine(path: Path) -> Engine:
    """An engine that cannot write; each of its transactions sees one state of the ledger.

    Raises `LedgerMissing` where there is no file, and `LedgerError` where it cannot be opened.
    """
    require(path)
    engine = _engine(path, "mode=ro")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1 FROM sqlite_schema LIMIT 1")
    except (DRIVER.Error, UnicodeDecodeError) as error:
        engine.dispose()
        if log_size(path) == 0 and not os.access(path.parent, os.W_OK):
            engine = _engine(path, "immutable=1")
        else:
            raise _in_our_words("open the ledger", path, error) from error
    return engine


def require(path: Path) -> None:
    """Raise `LedgerMissing` unless there is a file with something in it."""
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerMissing(
            f"there is no ledger at {path}", hint="`labledger run` creates one"
        ) from None
    except OSError as error:
        raise LedgerError(f"could not open the ledger: {error.strerror} ({path})") from error
    if size == 0 and log_size(path) == 0:
        raise emptied(path)


def emptied(path: Path) -> LedgerError:
    """What to say of a ledger with nothing in it: it is yet to be made, or was lost."""
    runs = path.parent / "runs"
    if any(runs.glob("*/resolved.json")):
        return LedgerError(
            f"the ledger at {path} is empty, and {runs} holds runs: its content was lost",
            hint="put a copy in its place (`labledger db backup` makes them); without one, "
            f"`labledger import {runs}/RUN_ID --without-artifacts --lab-dir NEW_LAB` brings what "
            "the mirrors of a run hold into a new lab",
        )
    return LedgerMissing(
        f"the ledger at {path} is empty: its creation was interrupted",
        hint="`labledger run` creates it anew",
    )


@contextmanager
def translated(what: str, path: Path) -> Iterator[None]:
    """The one boundary where a failure of the driver while trying to `what` is a `LedgerError`."""
    try:
        yield
    except (DRIVER.Error, UnicodeDecodeError) as error:
        raise _in_our_words(what, path, error) from error


def _engine(
    path: Path, mode: str, *, foreign_keys: bool = True, pragmas: tuple[str, ...] = ()
) -> Engine:
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
        for pragma in (*_PRAGMAS, *pragmas):
            connection.execute(pragma)
        connection.create_function("regexp", 2, _matches, deterministic=True)
        if not reading:
            connection.create_function("row_digest", -1, row_digest, deterministic=True)
            connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}")
        if not foreign_keys:
            connection.execute("PRAGMA foreign_keys = OFF")
        return connection

    return Engine(connect, writes=not reading)


def _matches(pattern: str, value: str | None) -> bool | None:
    """SQL's `value REGEXP pattern`, which SQLite leaves to its users."""
    return None if value is None else re.search(pattern, value) is not None


def log_size(path: Path) -> int:
    """Bytes of the write-ahead log beside a database."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except OSError:
        return 0


def empty_log(connection: Connection) -> bool:
    """Move all of the write-ahead log into the database. False where a reader still needs it.

    Readers that come one after another, so that there is always one, are waited out; one that
    stays is not.
    """
    driver: Any = connection.driver
    try:
        driver.execute(f"PRAGMA busy_timeout = {round(_READERS_WAIT_S * 1000)}")
        busy, *_ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        driver.execute(f"PRAGMA busy_timeout = {LOCK_WAIT_S * 1000}")
    except DRIVER.Error:
        return False
    return not busy


def shrink_log(connection: Connection, path: Path) -> bool:
    """Empty the log where it has outgrown its limit. False where a reader still needs it."""
    return log_size(path) <= LOG_LIMIT_BYTES or empty_log(connection)


_HINTS = (
    ("full", "free some space, then `labledger resume`"),
    ("locked", "another process has been writing for long; try again"),
    ("readonly", "make the ledger's folder writable"),
    ("unable to open", "check the permissions of the ledger's folder"),
    ("not a database", "this file is not a ledger; choose another with --lab-dir"),
    ("malformed", "`labledger verify` says what is damaged; restore a backup"),
    ("disk I/O", "check the disk and its file system, then `labledger verify`"),
)


def _in_our_words(what: str, path: Path, error: Exception) -> LedgerError:
    # The driver cannot read a message of SQLite's that quotes a damaged name.
    unread = "the database is malformed: it holds a name that is not UTF-8"
    cause = unread if isinstance(error, UnicodeDecodeError) else str(error)
    kinds = {"full": LedgerDiskFull, "not a database": NotALedger}
    kind = next((kind for word, kind in kinds.items() if word in cause), LedgerError)
    hint = next((hint for word, hint in _HINTS if word in cause), None)
    return kind(f"could not {what}: {cause} ({path})", hint=hint)
