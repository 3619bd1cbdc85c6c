"""Make SQL: statements about whole rows, and shared pieces that many statements contain.

No other module lists the columns of a table: they are in `table_rows`. Rows are written with
`row_digest` in the same statement if the table has that column, so that no writer can forget it.
A statement about rows is made once, so that SQLite compiles it once for a connection. The shared
pieces, each a rule or a join, are in `fragments.sql`; what counts as passed comes from
`records.pass_rate`, and for which calls nothing is charged from `records.model_calls`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from labledger.ledger.database.table_rows import COLUMNS, DIGESTED, KEYS
from labledger.records.model_calls import CHARGED_NOTHING_SQL
from labledger.records.pass_rate import PASSED_SQL


def columns(table: str, *, start: int = 0, qualified: bool = False) -> str:
    """Return the columns of a table as SQL, separated by commas, without the first `start`."""
    prefix = f"{table}." if qualified else ""
    return ", ".join(f"{prefix}{name}" for name in COLUMNS[table][start:])


@cache
def select(table: str, *, start: int = 0) -> str:
    """Return the SQL of a run's rows, to which ORDER BY can be added."""
    return f"SELECT {columns(table, start=start)} FROM {table} WHERE run_no = ?"  # noqa: S608


@cache
def select_with_digest(table: str) -> str:
    """Return the SQL of a run's rows with their digests, as `row_digests.matches` takes them."""
    return f"SELECT {columns(table)}, row_digest FROM {table} WHERE run_no = ?"  # noqa: S608


@cache
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


@cache
def upsert(table: str) -> str:
    """Return the SQL of `insert` that replaces the row of the same primary key."""
    names = (*COLUMNS[table], "row_digest")
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in KEYS[table])
    return f"{insert(table)} ON CONFLICT ({', '.join(KEYS[table])}) DO UPDATE SET {changes}"


@cache
def update(table: str, **changes: str) -> str:
    """Return the beginning of an UPDATE that sets columns to SQL expressions, and the digest."""
    values = ", ".join(changes.get(name, name) for name in COLUMNS[table])
    pairs = ", ".join(f"{name} = {value}" for name, value in changes.items())
    return f"UPDATE {table} SET {pairs}, row_digest = row_digest('{table}', {values})"  # noqa: S608


_FRAGMENT = re.compile(r"^-- (\w+)((?: [A-Z]+)*): .*\n((?:(?!--).+\n)+)", re.MULTILINE)
_USE = re.compile(r"\{(\w+)((?: [\w.()*]+)*)\}")


def _read_fragments() -> dict[str, tuple[list[str], str]]:
    """Return the parameters and the text of each fragment by its name."""
    file = Path(__file__).with_name("fragments.sql").read_text("utf-8")
    return {
        name: (parameters.split(), text.removesuffix("\n"))
        for name, parameters, text in _FRAGMENT.findall(file)
    }


_FRAGMENTS = {
    **_read_fragments(),
    "passed": (["status", "verdict", "agent_exit_status"], PASSED_SQL),
    "charged_nothing": (["CALL"], CHARGED_NOTHING_SQL),
}


def expand(sql: str, arguments: Mapping[str, str] | None = None) -> str:
    """Return SQL with the text of each `{fragment}`. Raises `KeyError` for an unknown one.

    `arguments` are the values of parameters: `{NAME}` stands for one of them.
    """
    values = arguments or {}

    def text_of(use: re.Match[str]) -> str:
        if use[1] in values:
            return values[use[1]]
        parameters, text = _FRAGMENTS[use[1]]
        given = [values.get(word, word) for word in use[2].split()]
        return expand(text, dict(zip(parameters, given, strict=True)))

    return _USE.sub(text_of, sql)
