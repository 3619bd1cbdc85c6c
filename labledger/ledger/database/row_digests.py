"""Digests of the rows that change, or go, while a run goes on: one in each of these rows.

The chain covers what is committed. These rows are not in it: how far a run is and why it stopped,
its lease, takeover request and budget, the journal of containers, and results that wait to be
committed. Whoever writes one of them writes its digest in the same statement, by the SQL function
`row_digest` of every connection that writes; `verify` and the commit of a staged result check it.
A row that an earlier version of labledger wrote has no digest until it is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labledger.ledger.database.connection import Connection
from labledger.records import canonical_json

Value = str | int | float | None

COLUMNS: dict[str, tuple[str, ...]] = {
    "schedule_progress": (
        "run_no",
        "next_schedule_idx",
        "epoch",
        "status",
        "updated_at",
        "ended_at",
        "stop_cause",
        "stop_message",
    ),
    "lease": (
        "run_no",
        "epoch",
        "host",
        "pid",
        "process_token",
        "acquired_at",
        "renewed_at",
        "expires_at",
    ),
    "claim": ("run_no", "host", "pid", "process_token", "claimed_at", "expires_at"),
    "budget": ("run_no", "kind", "amount"),
    "dispatch": (
        "run_no",
        "schedule_idx",
        "attempt",
        "epoch",
        "container",
        "host",
        "dispatched_at",
    ),
    "staged_result": ("run_no", "schedule_idx", "attempt", "final", "payload", "staged_at"),
}
"""What a row's digest covers, by table: every column but the digest itself, in this order."""


def row_digest(table: str, *values: Value) -> str:
    """Return the SHA-256 (hex) of a row of `table` with these values, in the order of `COLUMNS`."""
    return canonical_json.digest([table, *values])


def fits(table: str, row: Sequence[Value]) -> bool:
    """Return whether the last value of a row is the digest of the others, or missing."""
    *values, digest = row
    return digest is None or digest == row_digest(table, *values)


def select(table: str) -> str:
    """Return the SQL of the rows of a run with their digests, as `fits` takes them."""
    columns = ", ".join(COLUMNS[table])
    return f"SELECT {columns}, row_digest FROM {table} WHERE run_no = ?"  # noqa: S608


def insert(table: str) -> str:
    """Return the SQL that inserts a row and its digest. Its parameters are those of `COLUMNS`."""
    columns = COLUMNS[table]
    values = ", ".join(f"?{number}" for number in range(1, len(columns) + 1))
    return (
        f"INSERT INTO {table} ({', '.join(columns)}, row_digest) "  # noqa: S608
        f"VALUES ({values}, row_digest('{table}', {values}))"
    )


def upsert(table: str, *key: str) -> str:
    """Return the SQL of `insert` that replaces the row of the same `key`."""
    replaced = [name for name in (*COLUMNS[table], "row_digest") if name not in key]
    changes = ", ".join(f"{name} = excluded.{name}" for name in replaced)
    return f"{insert(table)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"


def update(table: str, **changes: str) -> str:
    """Return the beginning of an UPDATE that sets columns to SQL expressions, and the digest."""
    values = ", ".join(changes.get(name, name) for name in COLUMNS[table])
    pairs = ", ".join(f"{name} = {value}" for name, value in changes.items())
    return f"UPDATE {table} SET {pairs}, row_digest = row_digest('{table}', {values})"  # noqa: S608


def problems(connection: Connection, table: str, run_no: int) -> Iterator[tuple[int | None, str]]:
    """Find the rows of a run that were not written by labledger as they are: slot and message."""
    place = COLUMNS[table].index("schedule_idx") if "schedule_idx" in COLUMNS[table] else None
    for row in connection.exec_driver_sql(select(table), (run_no,)):
        if not fits(table, row):
            idx = None if place is None else row[place]
            yield idx, f"the row of {table} was changed since labledger wrote it"
