"""The statements with which Alembic made a ledger's tables, kept for the next new ledger.

Alembic and SQLAlchemy take longer to import than a small run takes, and make the same tables each
time. What they made once is kept in the user's cache folder under a digest of the migrations and
of the libraries that ran them; where anything of those has changed, Alembic is asked again. Only
`migrate` uses this, and only for a ledger with nothing in it.
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


def make(connection: Connection) -> bool:
    """Make the tables in an empty database, inside the caller's transaction.

    Returns False, and changes nothing, where it is not known how.
    """
    content = user_cache.read(_name())
    if content is None:
        return False
    made = json.loads(content)
    for statement in made["statements"]:
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql(_SET_REVISION_SQL, (made["revision"],))
    return True


def keep(connection: Connection) -> None:
    """Keep the statements that made the tables which Alembic has just made."""
    made = {
        "revision": connection.exec_driver_sql(_REVISION_SQL).scalar_one(),
        "statements": connection.exec_driver_sql(_TABLES_SQL).scalars().all(),
    }
    user_cache.keep(_name(), json.dumps(made).encode())


def _name() -> str:
    return f"tables-{canonical_json.digest(list(_what_makes_tables()))}"


def _what_makes_tables() -> Iterator[tuple[str, str]]:
    """All that the tables depend on: the migrations' text, and which libraries run them."""
    top = resources.migrations()
    for path in sorted(top.rglob("*.py")):
        yield str(path.relative_to(top)), canonical_json.sha256_hex(path.read_bytes())
    for name in _LIBRARIES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            about = Path(found.origin).stat()
            yield found.origin, f"{about.st_size} {about.st_mtime_ns}"
