"""Make SQL: statements about whole rows with their digests, and pieces that statements share.

No other module lists the columns of a table. The shared pieces are in `fragments.sql`. Rows outside
the chain of commits have a column `row_digest`, which an SQL function writes in the same statement,
so no writer forgets it. `run_tally` counts the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import COLUMNS, DIGESTED, KEYS
from labledger.records import canonical_json
from labledger.records.model_calls import CHARGED_NOTHING_SQL
from labledger.records.pass_rate import PASSED_SQL
from labledger.records.resource_use import NUMBERS


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
    """Return the SQL of a run's rows with their digests, as `fits_its_digest` takes them."""
    return f"SELECT {columns(table)}, row_digest FROM {table} WHERE run_no = ?"  # noqa: S608


@cache
def insert(table: str, *, unless_exists: str | None = None) -> str:
    """Return the SQL that inserts a row, with its digest if it has one.

    Its parameters are the columns in `COLUMNS`. A row is ignored if an existing row has the same
    value in the column `unless_exists`.
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
def update(table: str, condition: str, **changes: str) -> str:
    """Return the SQL that sets columns of some rows to SQL expressions, and their digests."""
    values = ", ".join(changes.get(name, name) for name in COLUMNS[table])
    pairs = ", ".join(f"{name} = {value}" for name, value in changes.items())
    digest = f"row_digest('{table}', {values})"
    return f"UPDATE {table} SET {pairs}, row_digest = {digest} WHERE {condition}"  # noqa: S608


_FRAGMENT = re.compile(r"^-- (\w+)((?: [A-Z]+)*): .*\n((?:(?!--).+\n)+)", re.MULTILINE)
_USE = re.compile(r"\{(\w+)((?: [\w.()*]+)*)\}")


def _read_fragments() -> dict[str, tuple[list[str], str]]:
    """Return the parameters and the text of each fragment by its name."""
    file = Path(__file__).with_name("fragments.sql").read_text("utf-8")
    return {
        name: (parameters.split(), text.removesuffix("\n"))
        for name, parameters, text in _FRAGMENT.findall(file)
    }


FRAGMENTS = {
    **_read_fragments(),
    "passed": (["status", "verdict", "agent_exit_status"], PASSED_SQL),
    "charged_nothing": (["CALL"], CHARGED_NOTHING_SQL),
    "resource_use": (["TABLE"], ", ".join(f"{{TABLE}}.{name}" for name in NUMBERS)),
}


def expand(sql: str, arguments: Mapping[str, str] | None = None) -> str:
    """Return SQL with the text of each `{fragment}`. Raises `KeyError` for an unknown one.

    `arguments` are the values of parameters: `{NAME}` stands for one of them.
    """
    values = arguments or {}

    def text_of(use: re.Match[str]) -> str:
        if use[1] in values:
            return values[use[1]]
        parameters, text = FRAGMENTS[use[1]]
        arguments_of_use = [values.get(word, word) for word in use[2].split()]
        return expand(text, dict(zip(parameters, arguments_of_use, strict=True)))

    return _USE.sub(text_of, sql)


# -- digests of rows

Value = str | int | float | None

TALLIED = (
    "lease",
    "budget",
    "run_note",
    "run_tag",
    "run_setting",
    "run_receiver",
    "notification",
    "host_fence",
    "control_request",
    "dispatch",
    "staged_result",
)
"""Tables whose rows are counted by run in `run_tally`, so that a removed row is detected too."""

NO_ROWS = "0" * 64
"""The combined digest of no rows."""


_TALLY_SQL = (
    "SELECT row_count, content, row_digest FROM run_tally WHERE run_no = ? AND table_name = ?"
)


def row_digest(table: str, *values: Value) -> str:
    """Return the SHA-256 (hex) of a row of `table` with these values, in the order of `COLUMNS`."""
    return canonical_json.digest([table, *values])


def fits_its_digest(table: str, row: Sequence[Value]) -> bool:
    """Return whether the last value of a row is the digest of the others, or missing."""
    *values, digest = row
    return digest is None or digest == row_digest(table, *values)


def combine(digest: str, other: str | None) -> str:
    """Return the exclusive or of two digests (hex), in which a missing one counts as `NO_ROWS`.

    This adds a row to the combined digest of other rows, or removes it again.
    """
    return digest if other is None else f"{int(digest, 16) ^ int(other, 16):064x}"


def tally(digests: Iterable[str | None]) -> tuple[int, str]:
    """Return how many rows have these digests, and the combined digest."""
    count, combined = 0, 0
    for digest in digests:
        count += 1
        combined ^= 0 if digest is None else int(digest, 16)
    return count, f"{combined:064x}"


def find_missing_rows(
    connection: Connection, table: str, run_no: int
) -> Iterator[tuple[int | None, str]]:
    """Yield a message if rows of a run were removed or inserted other than by labledger."""
    stored = connection.execute(_TALLY_SQL, (run_no, table)).first()
    sql = f"SELECT row_digest FROM {table} WHERE run_no = ?"  # noqa: S608
    there = tally(connection.execute(sql, (run_no,)).scalars())
    if stored is None:
        yield None, f"the row of run_tally that says how many rows of {table} there are is missing"
    elif stored[0] != there[0]:
        yield None, f"{table} has {there[0]} rows of the run; labledger left {stored[0]}"
    elif stored[1] != there[1]:
        yield None, f"{table} has other rows of the run than labledger left"
    elif stored[2] is None:
        # Other rows may have been written before there were digests; these never were.
        yield None, f"the row of run_tally that counts {table} has no digest"


def find_changed_rows(
    connection: Connection, table: str, run_no: int
) -> Iterator[tuple[int | None, str]]:
    """Yield slot and message for each row of a run that has changed since labledger wrote it."""
    names = COLUMNS[table]
    position = names.index("schedule_idx") if "schedule_idx" in names else None
    for row in connection.execute(select_with_digest(table), (run_no,)):
        if not fits_its_digest(table, row):
            idx = None if position is None else row[position]
            yield idx, f"the row of {table} was changed since labledger wrote it"
