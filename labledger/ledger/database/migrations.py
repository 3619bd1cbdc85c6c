"""Create, upgrade and back up ledgers, and check their revision.

Alembic alone creates and changes tables; `cached_tables` repeats what it created before. An
upgrade is one transaction after a backup. Whatever opens a ledger, and the commands that upgrade
and back one up, call this module.
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labledger import clock, faults, resources
from labledger.errors import LedgerError, LedgerMissing, LedgerOutdated, LedgerTooNew, NotALedger
from labledger.ledger.database import cached_tables, schema_checks, views_and_triggers
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import (
    APPLICATION_ID,
    DRIVER,
    empty_ledger_error,
    readonly_engine,
    require,
    translated,
    writable_engine,
)
from labledger.storage import network_filesystems
from labledger.storage.durable_files import sync_folder

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
"""Every revision in order; this labledger reads and writes the last one."""

HEAD = REVISIONS[-1]


@dataclass(frozen=True, slots=True)
class LedgerUpgrade:
    """What an upgrade did."""

    path: Path
    before: str | None
    """The revision before the upgrade; None if the ledger was created."""
    after: str
    backup: Path | None
    """The copy of the ledger before the upgrade; None if the ledger was created or up to date."""


def current(path: Path) -> str | None:
    """Return the revision of the ledger at `path`; None if its creation was interrupted.

    Raises `LedgerMissing`, and `LedgerError` for a file that is not a ledger.
    """
    engine = readonly_engine(path)
    try:
        with translated("read the ledger's revision", path), engine.connect() as connection:
            return _revision(connection, path)
    finally:
        engine.dispose()


def check_current(path: Path) -> None:
    """Raise `LedgerMissing`, `LedgerOutdated` or `LedgerTooNew` unless `path` is up to date."""
    engine = readonly_engine(path)
    try:
        with translated("read the ledger's revision", path), engine.connect() as connection:
            check_revision(connection, path)
    finally:
        engine.dispose()


def check_revision(connection: Connection, path: Path) -> None:
    """Do what `check_current` does, on an open connection."""
    revision = _revision(connection, path)
    if revision is None:
        raise empty_ledger_error(path)
    _refuse_newer(revision, path)
    if revision != HEAD:
        raise LedgerOutdated(
            f"the ledger at {path} is at revision {revision}; this labledger needs {HEAD}",
            hint="`labledger db upgrade` brings it up to date, after a backup",
        )


def check_exists(path: Path) -> None:
    """Raise `LedgerMissing` unless there is a ledger at `path`, of whatever revision."""
    require(path)


def upgrade(path: Path) -> LedgerUpgrade:
    """Create the ledger at `path`, or bring it up to date after backing it up.

    This is one transaction; two processes that do it at once both succeed. Raises `LedgerTooNew`,
    and `LedgerError` if a run is live or the file is not a ledger; then nothing has changed.
    """
    network_filesystems.refuse_network(path)
    _create_folder(path.parent)
    with _one_at_a_time(path.parent):
        _create_file(path)
        _refuse_foreign(path)
        engine = writable_engine(path, foreign_keys=False)
        try:
            with translated("upgrade the ledger", path), engine.connect() as connection:
                before, backup_path = _prepare(connection, path)
                if before != HEAD:
                    with connection.begin():
                        _migrate(connection, path, before)
                return LedgerUpgrade(path, before, HEAD, backup_path)
        finally:
            engine.dispose()


def backup(path: Path, target: Path) -> Path:
    """Copy the ledger, live or not, to the new file `target` and check the copy.

    Raises `LedgerError` if `target` exists or the copy is damaged; then no file is left.
    """
    engine = readonly_engine(path)
    try:
        with translated("back the ledger up", path), engine.connect() as connection:
            _copy(connection, target)
    finally:
        engine.dispose()
    return target


def _prepare(connection: Connection, path: Path) -> tuple[str | None, Path | None]:
    """Return the revision and the path of the backup. Raise if the ledger cannot be upgraded."""
    with connection.begin():
        before = _revision(connection, path)
        if before is None or before == HEAD:
            return before, None
        _refuse_newer(before, path)
        _refuse_live_runs(connection, path)
    moment = clock.utc_now().replace(":", "").replace("-", "").replace(".", "")
    target = path.with_name(f"{path.name}.backup-{before}-{moment}")
    _copy(connection, target)
    return before, target


def _migrate(connection: Connection, path: Path, before: str | None) -> None:
    if _revision(connection, path) != before:
        raise LedgerError(f"the ledger at {path} changed while it was being upgraded; try again")
    views_and_triggers.drop_all(connection)
    if before is not None:
        run_alembic(connection)
    elif not cached_tables.create_tables(connection):
        run_alembic(connection)
        cached_tables.store_tables(connection)
    faults.fault_point("inside_upgrade")
    if before is None:
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(
            "INSERT INTO ledger_meta (key, value) VALUES ('ledger_id', ?), ('created_at', ?)",
            (uuid.uuid4().hex, clock.utc_now()),
        )
    schema_checks.store_identity(connection)
    views_and_triggers.create_all(connection)
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if broken is not None:
        raise LedgerError(
            f"the upgrade of {path} would leave a row of {broken[0]} without its {broken[2]}; "
            "nothing was changed",
            hint="`labledger verify` says what is damaged",
        )


def run_alembic(connection: Connection, revision: str = "head") -> None:
    """Bring the tables up to a revision, inside the caller's transaction."""
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    config = Config()
    config.set_main_option("script_location", str(resources.migrations()).replace("%", "%%"))
    engine = create_engine(
        "sqlite://",
        module=DRIVER,
        creator=lambda: _BorrowedConnection(connection.driver),
        poolclass=NullPool,
    )
    try:
        with _only_warnings(logging.getLogger("alembic")), engine.connect() as borrowed:
            config.attributes["connection"] = borrowed
            command.upgrade(config, revision)
    except DBAPIError as error:
        raise error.orig or error from error


class _BorrowedConnection:
    """A driver's connection for Alembic, which must not end the caller's transaction."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def commit(self) -> None:
        """Do nothing: the caller commits."""

    def rollback(self) -> None:
        """Do nothing: the caller rolls back, because the error reaches it."""

    def close(self) -> None:
        """Do nothing: the caller closes the connection."""


@contextmanager
def _only_warnings(logger: logging.Logger) -> Iterator[None]:
    """Keep a library's informational messages out of the log of the program that uses labledger."""
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


def _revision(connection: Connection, path: Path) -> str | None:
    names = set(connection.exec_driver_sql("SELECT name FROM sqlite_schema").scalars())
    if not names:
        return None
    kind = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    if kind != APPLICATION_ID or "alembic_version" not in names:
        raise NotALedger(
            f"{path} is a SQLite database, but not a ledger of labledger",
            hint="choose another folder with --lab-dir",
        )
    sql = "SELECT version_num FROM alembic_version"
    revision: str = connection.exec_driver_sql(sql).scalar_one()
    return revision


def _refuse_foreign(path: Path) -> None:
    """Check the file without writing: opening it for writing would already change a foreign one."""
    with suppress(LedgerMissing):
        revision = current(path)
        if revision is not None:
            _refuse_newer(revision, path)


def _refuse_newer(revision: str, path: Path) -> None:
    if revision not in REVISIONS:
        raise LedgerTooNew(
            f"the ledger at {path} is at revision {revision}; "
            f"this labledger knows {HEAD} and older",
            hint="install the labledger that wrote it, or a later one",
        )


def _refuse_live_runs(connection: Connection, path: Path) -> None:
    live = connection.exec_driver_sql(
        "SELECT run.run_id, lease.host, lease.pid, lease.expires_at FROM lease "
        "JOIN run ON run.run_no = lease.run_no WHERE lease.expires_at > ?",
        (clock.utc_now(),),
    ).first()
    if live is not None:
        raise LedgerError(
            f"the ledger at {path} is in use: run {live[0]} belongs to process {live[2]} on "
            f"{live[1]} until {live[3]}",
            hint="upgrade when that run has stopped",
        )


def _copy(connection: Connection, target: Path) -> None:
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise LedgerError(
            f"could not make the backup {target}: {error.strerror}",
            hint="choose a file that does not exist, in a folder that can be written",
        ) from error
    try:
        copy = DRIVER.connect(str(target), isolation_level=None)
        try:
            connection.driver.backup(copy)
            integrity = copy.execute("PRAGMA integrity_check").fetchone()[0]
            copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            copy.close()
        if integrity != "ok":
            raise LedgerError(f"the backup {target} is not whole: {integrity}")
        with target.open("rb") as handle:
            os.fsync(handle.fileno())
        sync_folder(target.parent)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, DRIVER.Error):
            raise LedgerError(f"could not make the backup {target}: {error}") from error
        raise


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"could not create the folder {folder}: {error.strerror}") from error


def _create_file(path: Path) -> None:
    """Create an empty file that only its owner can read; SQLite's other files take its mode.

    An existing file is not opened: closing it again would drop the locks that SQLite has on it for
    other connections of this process.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise LedgerError(f"could not create the ledger {path}: {error.strerror}") from error


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock the folder, so that processes that create or upgrade the ledger wait for each other."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
