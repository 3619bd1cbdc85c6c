"""Digests of rows that change or are deleted during a run, in their column `row_digest`.

The chain of commits does not cover these rows: progress and stop cause, lease, takeover request,
budget, settings, dispatch journal, staged results, hosts declared lost. `row_sql` writes the digest
in the same statement as the row, by an SQL function of every connection that writes. Verification
and the commit of a staged result check it. A row that an older labledger wrote has no digest until
it is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import COLUMNS
from labledger.records import canonical_json

Value = str | int | float | None


def row_digest(table: str, *values: Value) -> str:
    """Return the SHA-256 (hex) of a row of `table` with these values, in the order of `COLUMNS`."""
    return canonical_json.digest([table, *values])


def matches(table: str, row: Sequence[Value]) -> bool:
    """Return whether the last value of a row is the digest of the others, or missing."""
    *values, digest = row
    return digest is None or digest == row_digest(table, *values)


def find_changed_rows(
    connection: Connection, table: str, run_no: int
) -> Iterator[tuple[int | None, str]]:
    """Yield slot and message for each row of a run that has changed since labledger wrote it."""
    names = COLUMNS[table]
    position = names.index("schedule_idx") if "schedule_idx" in names else None
    for row in connection.exec_driver_sql(row_sql.select_with_digest(table), (run_no,)):
        if not matches(table, row):
            idx = None if position is None else row[position]
            yield idx, f"the row of {table} was changed since labledger wrote it"
