"""Check that a ledger's file, tables, indexes, views and triggers are those of its revision.

Views and triggers are compared by their text. Tables are compared by their columns and constraints
in any order: a table that a migration altered lists them in another order than a new one.
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
"""Key of the row of `ledger_meta` with the digest of the others."""
_LIBRARY_PREFIXES = ("alembic_version", "sqlite_")
"""The beginnings of the names that Alembic and SQLite give to their own tables and indexes."""


def find_problems(connection: Connection) -> Iterator[str]:
    """Yield damage of pages and references, and every object of the schema that differs."""
    for (message,) in connection.execute("PRAGMA integrity_check"):
        if message != "ok":
            yield f"SQLite's integrity check: {message}"
    for table, _, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"a row of {table} has lost its row of {parent}"
    yield from _compare_definitions(connection)
    stored, expected = _identity(connection)
    if stored != expected:
        yield "the ledger's own id or its time of creation was changed or removed"


def store_identity(connection: Connection) -> None:
    """Store a digest of the ledger's id and time of creation, unless it has one."""
    stored, digest = _identity(connection)
    if stored is None:
        connection.execute("INSERT INTO ledger_meta (key, value) VALUES (?, ?)", (_DIGEST, digest))


def _identity(connection: Connection) -> tuple[str | None, str]:
    """Return the stored digest, None in an older ledger, and the expected one."""
    rows = connection.execute("SELECT key, value FROM ledger_meta").all()
    values = {str(key): str(value) for key, value in rows}
    stored = values.pop(_DIGEST, None)
    return stored, canonical_json.digest(values)


def _compare_definitions(connection: Connection) -> Iterator[str]:
    expected = _expected_definitions()
    actual = {
        (str(kind), str(name)): _normalised(sql)
        for kind, name, sql in connection.execute(_SCHEMA_SQL)
        if not name.startswith(_LIBRARY_PREFIXES)
    }
    for kind, name in expected:
        if (kind, name) not in actual:
            yield f"{kind} {name} is missing from the ledger's schema"
        elif actual[kind, name] != expected[kind, name]:
            yield f"{kind} {name} is not defined as in a ledger of this revision"
    for kind, name in actual.keys() - expected.keys():
        if kind == "trigger":
            yield f"trigger {name} is not one of labledger's: it may change what is written"


def _expected_definitions() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the definitions in a ledger of the newest revision, by type and name."""
    # SQLAlchemy and `tables` take long to import, and everything that opens a ledger imports this
    # module.
    from sqlalchemy.dialects import sqlite
    from sqlalchemy.schema import CreateIndex, CreateTable

    from labledger.ledger.database import tables

    dialect = sqlite.dialect()
    statements = {
        ("view", name): view.statement(name) for name, view in views_and_triggers.ALL_VIEWS.items()
    }
    statements |= {("trigger", name): sql for name, sql in views_and_triggers.TRIGGERS.items()}
    for table in tables.metadata.tables.values():
        statements["table", table.name] = str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            statements["index", str(index.name)] = str(CreateIndex(index).compile(dialect=dialect))
    return {key: _normalised(sql) for key, sql in statements.items()}


def _normalised(sql: str) -> tuple[str, ...]:
    """Return a definition without its layout; a table's columns and constraints are sorted."""
    text = " ".join(sql.split())
    if not text.startswith("CREATE TABLE"):
        return (text,)
    text = _QUOTED.sub(r"\1", text)
    head, _, rest = text.partition("(")
    body, _, options = rest.rpartition(")")
    return (head.strip(), options.strip(), *sorted(_split_at_commas(body)))


def _split_at_commas(body: str) -> Iterator[str]:
    """Yield the parts of `body` between commas that are outside of parentheses."""
    depth, start = 0, 0
    for position, letter in enumerate(body):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield body[start:position].strip()
            start = position + 1
    yield body[start:].strip()
