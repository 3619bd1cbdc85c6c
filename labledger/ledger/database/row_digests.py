"""Digests of rows that change or are deleted during a run, in their column `row_digest`.

The chain of commits does not cover these rows: progress and stop cause, lease, takeover request,
budget, settings, dispatch journal, staged results, hosts declared lost. `statements` writes the
digest in the same statement as the row, by an SQL function of every connection that writes.
Verification and the commit of a staged result check it. A row that an older labledger wrote has no
digest until it is written again. `run_tally` counts the rows, so that one that was removed is
detected as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import COLUMNS
from labledger.records import canonical_json

Value = str | int | float | None

TALLIED = (
    "lease",
    "budget",
    "run_note",
    "run_tag",
    "run_setting",
    "host_fence",
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


def matches(table: str, row: Sequence[Value]) -> bool:
    """Return whether the last value of a row is the digest of the others, or missing."""
    *values, digest = row
    return digest is None or digest == row_digest(table, *values)


def combine(digest: str, other: str | None) -> str:
    """Return the exclusive or of two digests (hex), in which a missing one counts as `NO_ROWS`.

    It adds a row to the combined digest of others, and takes it away again.
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
    for row in connection.execute(statements.select_with_digest(table), (run_no,)):
        if not matches(table, row):
            idx = None if position is None else row[position]
            yield idx, f"the row of {table} was changed since labledger wrote it"
