"""The statements with which Alembic made a ledger's tables, kept for the next new ledger.

Alembic and SQLAlchemy take longer to import than a small run takes, and make the same tables each
time. What they made once is kept in the user's cache folder under a digest of the migrations and
of the libraries that ran them; where anything of those has changed, Alembic is asked again. Only
`migrate` uses this, and only for a ledger with nothing in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path

from labledger import canonical, resources
from labledger.ledger.connection import Connection
from labledger.records import JsonObject
from labledger.store import make_folder, write_atomically

_LIBRARIES = ("alembic", "sqlalchemy")
_TABLES_SQL = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
_REVISION_SQL = "SELECT version_num FROM alembic_version"
_SET_REVISION_SQL = "INSERT INTO alembic_version (version_num) VALUES (?)"


def make(connection: Connection) -> bool:
    """Make the tables in an empty database, inside the caller's transaction.

    Returns False, and changes nothing, where it is not known how.
    """
    path = _path()
    kept = _read(path) if path is not None else None
    if kept is None:
        return False
    for statement in kept["statements"]:
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql(_SET_REVISION_SQL, (kept["revision"],))
    return True


def keep(connection: Connection) -> None:
    """Keep the statements that made the tables which Alembic has just made, if there is room."""
    path = _path()
    if path is None:
        return
    made = {
        "revision": connection.exec_driver_sql(_REVISION_SQL).scalar_one(),
        "statements": connection.exec_driver_sql(_TABLES_SQL).scalars().all(),
    }
    content = json.dumps(made).encode()
    try:
        make_folder(path.parent)
        write_atomically(path, canonical.sha256_hex(content).encode() + b"\n" + content)
    except OSError:
        return  # The next ledger takes as long as this one.


def _read(path: Path) -> JsonObject | None:
    """What `keep` has written; None where it is not there, not whole, or somebody else's."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            digest, _, content = file.read().partition(b"\n")
    except OSError:
        return None
    if digest.decode("ascii", "replace") != canonical.sha256_hex(content):
        return None
    kept: JsonObject = json.loads(content)
    return kept


def _path() -> Path | None:
    """Where the statements are kept; None where this user has no folder for such things."""
    try:
        folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    key = canonical.sha256_hex(json.dumps(list(_what_makes_tables())).encode())
    return Path(folder) / "labledger" / f"tables-{key[:32]}"


def _what_makes_tables() -> Iterator[tuple[str, str]]:
    """All that the tables depend on: the migrations' text, and which libraries run them."""
    top = resources.migrations()
    for path in sorted(top.rglob("*.py")):
        yield str(path.relative_to(top)), canonical.sha256_hex(path.read_bytes())
    for name in _LIBRARIES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            about = Path(found.origin).stat()
            yield found.origin, f"{about.st_size} {about.st_mtime_ns}"
