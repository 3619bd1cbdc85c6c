"""Whether a ledger's file, tables, indexes, views and triggers are those of its revision.

A view or a trigger answers by its text: one of the right name with another text is a finding.
Tables are compared by their columns and constraints in any order, since a table that was altered
by a migration lists them in another order than one that was created whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from labledger.ledger.database import views_and_triggers
from labledger.ledger.database.connection import Connection
from labledger.records import canonical_json

_SCHEMA_SQL = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
_QUOTED = re.compile(r'"(\w+)"')
_DIGEST = "digest"
"""Key of the row of `ledger_meta` that holds the digest of the others."""
_NOT_OURS = ("alembic_version", "sqlite_")


def problems(connection: Connection) -> Iterator[str]:
    """Find damage of pages and references, and every object of the schema that differs."""
    for (message,) in connection.exec_driver_sql("PRAGMA integrity_check"):
        if message != "ok":
            yield f"SQLite's integrity check: {message}"
    for table, _, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        yield f"a row of {table} has lost its row of {parent}"
    yield from _definitions(connection)
    kept, expected = _identity(connection)
    if kept not in (None, expected):
        yield "the ledger's own id or its time of creation was changed"


def keep_identity(connection: Connection) -> None:
    """Keep a digest of what the ledger says of itself, where there is none yet."""
    kept, digest = _identity(connection)
    if kept is None:
        connection.exec_driver_sql(
            "INSERT INTO ledger_meta (key, value) VALUES (?, ?)", (_DIGEST, digest)
        )


def _identity(connection: Connection) -> tuple[str | None, str]:
    """Return the digest that is kept, None in a ledger of old, and the one that should be."""
    rows = connection.exec_driver_sql("SELECT key, value FROM ledger_meta").all()
    described = {str(key): str(value) for key, value in rows}
    kept = described.pop(_DIGEST, None)
    return kept, canonical_json.digest(described)


def _definitions(connection: Connection) -> Iterator[str]:
    expected = _expected()
    found = {
        (str(kind), str(name)): _normalised(sql)
        for kind, name, sql in connection.exec_driver_sql(_SCHEMA_SQL)
        if not name.startswith(_NOT_OURS)
    }
    for kind, name in expected:
        if (kind, name) not in found:
            yield f"{kind} {name} is missing from the ledger's schema"
        elif found[kind, name] != expected[kind, name]:
            yield f"{kind} {name} is not defined as in a ledger of this revision"
    for kind, name in found.keys() - expected.keys():
        if kind == "trigger":
            yield f"trigger {name} is not one of labledger's: it may change what is written"


def _expected() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return what a ledger of the newest revision has, by type and name."""
    # Both take long to import, and whoever opens a ledger imports this module.
    from sqlalchemy.dialects import sqlite
    from sqlalchemy.schema import CreateIndex, CreateTable

    from labledger.ledger.database import tables

    dialect = sqlite.dialect()
    found = {
        ("view", name): view.statement(name) for name, view in views_and_triggers.VIEWS.items()
    }
    found |= {("trigger", name): sql for name, sql in views_and_triggers.TRIGGERS.items()}
    for table in tables.metadata.tables.values():
        found["table", table.name] = str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            found["index", str(index.name)] = str(CreateIndex(index).compile(dialect=dialect))
    return {key: _normalised(sql) for key, sql in found.items()}


def _normalised(sql: str) -> tuple[str, ...]:
    """Return a definition without layout; of a table the parts in brackets are sorted."""
    text = " ".join(sql.split())
    if not text.startswith("CREATE TABLE"):
        return (text,)
    text = _QUOTED.sub(r"\1", text)
    head, _, rest = text.partition("(")
    body, _, options = rest.rpartition(")")
    return (head.strip(), options.strip(), *sorted(_parts(body)))


def _parts(body: str) -> Iterator[str]:
    """Split at the commas that are in no brackets."""
    depth, start = 0, 0
    for place, letter in enumerate(body):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield body[start:place].strip()
            start = place + 1
    yield body[start:].strip()
