"""Cache the statements with which Alembic created the tables of an empty ledger.

Importing Alembic and SQLAlchemy takes longer than a small run, and they create the same tables
each time. The statements are stored in the user's cache folder under a digest of the migrations
and of the libraries that ran them; if any of those has changed, Alembic runs again. Only
`migrations` uses this module, and only for a ledger with nothing in it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

from labledger import resources
from labledger.ledger.database.connection import Connection
from labledger.records import canonical_json
from labledger.storage import user_cache

_LIBRARIES = ("alembic", "sqlalchemy")
_TABLES_SQL = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
_REVISION_SQL = "SELECT version_num FROM alembic_version"
_SET_REVISION_SQL = "INSERT INTO alembic_version (version_num) VALUES (?)"


def create_tables(connection: Connection) -> bool:
    """Create the tables of an empty database, inside the caller's transaction.

    Returns False, and changes nothing, if the cache does not have the statements.
    """
    content = user_cache.read(_cache_name())
    if content is None:
        return False
    cached = json.loads(content)
    for statement in cached["statements"]:
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql(_SET_REVISION_SQL, (cached["revision"],))
    return True


def store_tables(connection: Connection) -> None:
    """Store the statements of the tables that Alembic has just created."""
    cached = {
        "revision": connection.exec_driver_sql(_REVISION_SQL).scalar_one(),
        "statements": connection.exec_driver_sql(_TABLES_SQL).scalars().all(),
    }
    user_cache.store(_cache_name(), json.dumps(cached).encode())


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
