"""SQL that writes and reads whole rows, made from the columns in `table_rows`.

No other module lists the columns of a table. Rows are written with `row_digest` in the same
statement if the table has that column, so that no writer can forget it.
"""

from __future__ import annotations

from labledger.ledger.database.table_rows import COLUMNS, DIGESTED, KEYS


def columns(table: str, *, start: int = 0, qualified: bool = False) -> str:
    """Return the columns of a table as SQL, separated by commas, without the first `start`."""
    prefix = f"{table}." if qualified else ""
    return ", ".join(f"{prefix}{name}" for name in COLUMNS[table][start:])


def select(table: str, *, start: int = 0) -> str:
    """Return the SQL of a run's rows, to which ORDER BY can be added."""
    return f"SELECT {columns(table, start=start)} FROM {table} WHERE run_no = ?"  # noqa: S608


def select_with_digest(table: str) -> str:
    """Return the SQL of a run's rows with their digests, as `row_digests.matches` takes them."""
    return f"SELECT {columns(table)}, row_digest FROM {table} WHERE run_no = ?"  # noqa: S608


def insert(table: str, *, unless_exists: str | None = None) -> str:
    """Return the SQL that inserts a row, with its digest if it has one.

    Its parameters are those of `COLUMNS`. A row whose column `unless_exists` has the value of an
    existing row is left out.
    """
    names, values = columns(table), ", ".join(f"?{n + 1}" for n in range(len(COLUMNS[table])))
    if table in DIGESTED:
        names, values = f"{names}, row_digest", f"{values}, row_digest('{table}', {values})"
    conflict = f" ON CONFLICT ({unless_exists}) DO NOTHING" if unless_exists else ""
    return f"INSERT INTO {table} ({names}) VALUES ({values}){conflict}"  # noqa: S608


def upsert(table: str) -> str:
    """Return the SQL of `insert` that replaces the row of the same primary key."""
    names = (*COLUMNS[table], "row_digest")
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in KEYS[table])
    return f"{insert(table)} ON CONFLICT ({', '.join(KEYS[table])}) DO UPDATE SET {changes}"


def update(table: str, **changes: str) -> str:
    """Return the beginning of an UPDATE that sets columns to SQL expressions, and the digest."""
    values = ", ".join(changes.get(name, name) for name in COLUMNS[table])
    pairs = ", ".join(f"{name} = {value}" for name, value in changes.items())
    return f"UPDATE {table} SET {pairs}, row_digest = row_digest('{table}', {values})"  # noqa: S608
