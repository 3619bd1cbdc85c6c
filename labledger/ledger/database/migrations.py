"""Create, upgrade and back up ledgers, and check their revision.

Only the migrations, which Alembic runs, define tables. An upgrade makes a backup, and then changes
the ledger in one transaction. Importing Alembic takes longer than a small run, so the user's cache
has the statements that create an empty ledger.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import secrets
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from labledger import clock, fault_points, resources
from labledger.errors import LedgerError, LedgerMissing, LedgerOutdated, LedgerTooNew, NotALedger
from labledger.files import lab_folder
from labledger.files.durable_files import refuse_existing, sync_folder
from labledger.files.output_files import make_folder_for
from labledger.ledger.database import views_and_triggers
from labledger.ledger.database.connection import Connection, Database
from labledger.ledger.database.sqlite import (
    APPLICATION_ID,
    DRIVER,
    empty_ledger_error,
    reading,
    readonly_engine,
    translated,
    writable_engine,
)
from labledger.records import canonical_json

_LIBRARIES = ("alembic", "sqlalchemy")
_TABLES_SQL = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
_REVISION_SQL = "SELECT version_num FROM alembic_version"
_IDENTITY_DIGEST = "digest"
"""Key of the row of `ledger_meta` with the digest of the others."""
_SET_REVISION_SQL = "INSERT INTO alembic_version (version_num) VALUES (?)"


def create_cached_tables(connection: Connection) -> bool:
    """Create the tables of an empty database, inside the caller's transaction.

    Returns False, and changes nothing, if the cache does not have the statements. The ledger must
    have nothing in it.
    """
    content = lab_folder.read_cached(_cache_name())
    if content is None:
        return False
    cached = json.loads(content)
    for statement in cached["statements"]:
        connection.execute(statement)
    connection.execute(_SET_REVISION_SQL, (cached["revision"],))
    return True


def store_tables(connection: Connection) -> None:
    """Store the statements of the tables that Alembic has just created."""
    cached = {
        "revision": connection.execute(_REVISION_SQL).scalar_one(),
        "statements": list(connection.execute(_TABLES_SQL).scalars()),
    }
    lab_folder.store_cached(_cache_name(), json.dumps(cached).encode())


def _cache_name() -> str:
    return f"tables-{canonical_json.digest(list(_cache_inputs()))}"


def _cache_inputs() -> Iterator[tuple[str, str]]:
    """Yield what the tables depend on: the texts of the migrations, the files of the libraries."""
    folder = resources.migrations()
    for path in sorted(folder.rglob("*.py")):
        yield str(path.relative_to(folder)), canonical_json.sha256_hex(path.read_bytes())
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            status = Path(spec.origin).stat()
            yield spec.origin, f"{status.st_size} {status.st_mtime_ns}"


REVISIONS = (
    *("0001", "0002", "0003", "0004", "0005", "0006"),
    *("0007", "0008", "0009", "0010", "0011", "0012", "0013", "0014"),
    *("0015", "0016", "0017", "0018", "0019", "0020", "0021", "0022"),
)
"""Every revision in order; this labledger reads and writes the last one."""

HEAD = REVISIONS[-1]


@dataclass(frozen=True, slots=True)
class LedgerUpgrade:
    """The result of an upgrade."""

    path: Path
    before: str | None
    """The revision before the upgrade; None if the ledger was created."""
    after: str
    backup: Path | None
    """The copy of the ledger before the upgrade; None if the ledger was created or up to date."""


def read_revision(path: Path) -> str | None:
    """Return the revision of the ledger at `path`; None if its creation was interrupted.

    Raises `LedgerMissing`, and `LedgerError` for a file that is not a ledger.
    """
    with reading(path, "read the ledger's revision") as connection:
        return _revision(connection, path)


def require_current(path: Path) -> None:
    """Raise `LedgerMissing`, `LedgerOutdated` or `LedgerTooNew` unless `path` is at `HEAD`."""
    with reading(path, "read the ledger's revision") as connection:
        require_current_connection(connection, path)


def require_current_connection(connection: Connection, path: Path) -> None:
    """Do what `require_current` does, on an open connection."""
    revision = _revision(connection, path)
    if revision is None:
        raise empty_ledger_error(path)
    _refuse_newer(revision, path)
    if revision != HEAD:
        raise LedgerOutdated(
            f"the ledger at {path} is at revision {revision}; this labledger needs {HEAD}",
            hint="`labledger db upgrade` brings it up to date, after a backup",
        )


def any_revision_engine(path: Path) -> Database:
    """Return an engine that reads a ledger of any revision, as one of the current revision.

    An earlier one is read in an upgraded copy. Raises `LedgerMissing`, `LedgerTooNew`, and
    `LedgerOutdated` for a ledger that is too large for a copy.
    """
    engine = readonly_engine(path)
    try:
        with translated("open the ledger", path), engine.connect() as connection:
            require_current_connection(connection, path)
    except LedgerOutdated:
        engine.dispose()
        return readonly_engine(_upgraded_copy(path))
    except BaseException:
        engine.dispose()
        raise
    return engine


def any_revision_path(path: Path) -> Path:
    """Return the path of the file that `any_revision_engine` reads, and raise as it does."""
    try:
        require_current(path)
    except LedgerOutdated:
        return _upgraded_copy(path)
    return path


def _upgraded_copy(path: Path) -> Path:
    # Imported late: it is seldom needed, and commands must start fast.
    from labledger.ledger.database.earlier_revisions import upgraded_copy

    return upgraded_copy(path)


def upgrade(path: Path) -> LedgerUpgrade:
    """Create the ledger at `path`, or bring it up to date after backing it up.

    All changes of the ledger are one transaction. Two processes that call this at the same time
    both succeed. Raises `LedgerTooNew`, and `LedgerError` if a run is live, the backup fails, or
    the file is not a ledger; the ledger is then unchanged.
    """
    lab_folder.refuse_network(path)
    _create_folder(path.parent)
    with _locked(path.parent):
        _create_file(path)
        _refuse_unsuitable_file(path)
        engine = writable_engine(path, foreign_keys=False)
        try:
            with translated("upgrade the ledger", path), engine.connect() as connection:
                before, backup_path = _back_up_outdated(connection, path)
                if before != HEAD:
                    with connection.begin():
                        _migrate(connection, path, before)
                return LedgerUpgrade(path, before, HEAD, backup_path)
        finally:
            engine.dispose()


def revision_of(connection: Connection, path: Path) -> str | None:
    """Return the revision of an open ledger; None if it is empty. Raises `LedgerTooNew`."""
    revision = _revision(connection, path)
    if revision is not None:
        _refuse_newer(revision, path)
    return revision


def upgrade_copy(path: Path) -> None:
    """Upgrade a copy of a ledger that only this process uses, whether it has live runs or not.

    The copy gets no backup, and is one file without a write-ahead log. Raises `LedgerError` if it
    cannot be upgraded.
    """
    engine = writable_engine(path, foreign_keys=False)
    try:
        with translated("upgrade a copy of the ledger", path), engine.connect() as connection:
            with connection.begin():
                _migrate(connection, path, _revision(connection, path))
            connection.driver.execute("PRAGMA journal_mode = DELETE")
    finally:
        engine.dispose()


def backup(path: Path, target: Path) -> Path:
    """Copy the ledger, live or not, to the new file `target` and check the copy.

    A missing folder of the file is created. Raises `LedgerError` if `target` exists or the copy is
    damaged; then no file is left.
    """
    with reading(path, "back the ledger up") as connection:
        make_folder_for(target)
        copy_open_ledger(connection, target)
    return target


def _back_up_outdated(connection: Connection, path: Path) -> tuple[str | None, Path | None]:
    """Back the ledger up if it has an older revision; return its revision and the backup's path.

    Both are None for an empty file. Raise `LedgerError` if the ledger cannot be upgraded.
    """
    with connection.begin():
        before = _revision(connection, path)
        if before is None or before == HEAD:
            return before, None
        _refuse_newer(before, path)
        _refuse_live_runs(connection, path)
    timestamp = clock.utc_now().replace(":", "").replace("-", "").replace(".", "")
    target = path.with_name(f"{path.name}.backup-{before}-{timestamp}")
    copy_open_ledger(connection, target)
    return before, target


def _migrate(connection: Connection, path: Path, before: str | None) -> None:
    if _revision(connection, path) != before:
        raise LedgerError(f"the ledger at {path} changed while it was being upgraded; try again")
    views_and_triggers.drop_all(connection)
    if before is not None:
        run_alembic(connection)
    else:
        create_tables(connection)
    fault_points.fault_point("inside_upgrade")
    if before is None:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(
            "INSERT INTO ledger_meta (key, value) VALUES ('ledger_id', ?), ('created_at', ?)",
            (uuid.uuid4().hex, clock.utc_now()),
        )
    _store_identity(connection)
    views_and_triggers.create_all(connection)
    violation = connection.execute("PRAGMA foreign_key_check").first()
    if violation is not None:
        table, _rowid, parent, _constraint = violation
        raise LedgerError(
            f"the upgrade of {path} would leave a row of {table} without its row of {parent}; "
            "nothing was changed",
            hint="`labledger verify` lists the damage",
        )


def _store_identity(connection: Connection) -> None:
    """Store a digest of the ledger's id and time of creation, unless it has one."""
    stored, digest = read_identity(connection)
    if stored is None:
        connection.execute(
            "INSERT INTO ledger_meta (key, value) VALUES (?, ?)", (_IDENTITY_DIGEST, digest)
        )


def store_identity_again(connection: Connection) -> None:
    """Store the digest of an identity that was changed. The triggers must be dropped."""
    _, digest = read_identity(connection)
    connection.execute("DELETE FROM ledger_meta WHERE key = ?", (_IDENTITY_DIGEST,))
    connection.execute(
        "INSERT INTO ledger_meta (key, value) VALUES (?, ?)", (_IDENTITY_DIGEST, digest)
    )


def read_identity(connection: Connection) -> tuple[str | None, str]:
    """Return the stored digest, None in an older ledger, and the expected one."""
    rows = connection.execute("SELECT key, value FROM ledger_meta").all()
    values = {str(key): str(value) for key, value in rows}
    stored = values.pop(_IDENTITY_DIGEST, None)
    return stored, canonical_json.digest(values)


def create_tables(connection: Connection) -> None:
    """Create the tables of a new ledger, inside the caller's transaction."""
    if not create_cached_tables(connection):
        run_alembic(connection)
        store_tables(connection)


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
        with (
            _without_informational_messages("alembic"),
            engine.connect() as borrowed,
        ):
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
def _without_informational_messages(library: str) -> Iterator[None]:
    """Keep a library's informational messages out of the log of the program that uses labledger."""
    # Imported late: only upgrades need it.
    import logging

    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


def _revision(connection: Connection, path: Path) -> str | None:
    names = set(connection.execute("SELECT name FROM sqlite_schema").scalars())
    if not names:
        return None
    application_id = connection.execute("PRAGMA application_id").scalar_one()
    if application_id != APPLICATION_ID or "alembic_version" not in names:
        raise NotALedger(
            f"{path} is a SQLite database, but not a ledger of labledger",
            hint="choose another folder with `lab_dir=`",
        )
    revisions = connection.execute("SELECT version_num FROM alembic_version").all()
    if len(revisions) != 1:
        raise LedgerError(
            f"the ledger at {path} is damaged: its table alembic_version has "
            f"{len(revisions) or 'no'} rows where it should have one, with the ledger's revision",
            hint="restore a copy of the ledger; `labledger db backup` makes them",
        )
    return str(revisions[0][0])


def _refuse_unsuitable_file(path: Path) -> None:
    """Raise `NotALedger` for another database, and `LedgerTooNew` for a later version's ledger.

    The file is opened read-only: opening another program's database for writing would already
    change it, because that sets WAL mode.
    """
    with suppress(LedgerMissing):
        revision = read_revision(path)
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
    lease = connection.execute(
        "SELECT run.run_id, lease.host, lease.pid, lease.expires_at FROM lease "
        "JOIN run ON run.run_no = lease.run_no WHERE lease.expires_at > ?",
        (clock.utc_now(),),
    ).first()
    if lease is not None:
        run_id, host, pid, expires_at = lease
        raise LedgerError(
            f"the ledger at {path} is in use: run {run_id} belongs to process {pid} on {host} "
            f"until {expires_at}",
            hint="upgrade when that run has stopped",
        )


def copy_open_ledger(connection: Connection, target: Path) -> None:
    """Copy the ledger that a connection has open to the new file `target`, and check the copy.

    The copy has another name until it is complete and durable, so that a partial copy never looks
    like a backup. The connection's path may name another file by now. Raises as `backup` does.
    """
    try:
        refuse_existing(target)
        partial = target.with_name(f"{target.name}.unfinished-{secrets.token_hex(4)}")
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise LedgerError(
            f"could not make the backup {target}: {error.strerror}",
            hint="choose a file that does not exist, in a folder that can be written",
        ) from error
    try:
        copy = DRIVER.connect(str(partial), isolation_level=None)
        try:
            connection.driver.backup(copy)
            # It returns the mode that it could not leave, and raises nothing.
            mode = copy.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
        finally:
            copy.close()
        if mode != "delete":
            raise LedgerError(f"could not make the backup {target}: it could not be written whole")
        integrity = _integrity_of_file(partial)
        if integrity != "ok":
            raise LedgerError(f"the backup {target} is damaged: {integrity}")
        with partial.open("rb") as handle:
            os.fsync(handle.fileno())
        refuse_existing(target)
        partial.rename(target)
        sync_folder(target.parent)
    except (OSError, DRIVER.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LedgerError(f"could not make the backup {target}: {reason}") from error
    finally:
        for suffix in ("", "-journal"):
            Path(f"{partial}{suffix}").unlink(missing_ok=True)


def _integrity_of_file(path: Path) -> str:
    """Check what a database's file holds by itself, without a journal and what was in memory."""
    uri = f"file:{quote(str(path.absolute()))}?immutable=1"
    with closing(DRIVER.connect(uri, uri=True)) as file:
        return str(file.execute("PRAGMA integrity_check").fetchone()[0])


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
        sync_folder(path.parent)
    except FileExistsError:
        return
    except OSError as error:
        raise LedgerError(f"could not create the ledger {path}: {error.strerror}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that processes that create or upgrade the ledger wait for each other."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
