"""Small questions that the writer and the reader both ask."""

from __future__ import annotations

import difflib

from sqlalchemy import Connection

from labledger.errors import RunNotFound


def ledger_id(connection: Connection) -> str:
    """The ledger's own id (32 hex digits), the same for its whole life."""
    found: str = connection.exec_driver_sql(
        "SELECT value FROM ledger_meta WHERE key = 'ledger_id'"
    ).scalar_one()
    return found


def run_number(connection: Connection, run_id: str) -> int:
    """The `run_no` of a run. Raises `RunNotFound`, with close names where there are any."""
    found = connection.exec_driver_sql(
        "SELECT run_no FROM run WHERE run_id = ?", (run_id,)
    ).scalar()
    if found is not None:
        return int(found)
    known = (
        connection.exec_driver_sql("SELECT run_id FROM run ORDER BY run_no DESC LIMIT 10000")
        .scalars()
        .all()
    )
    close = difflib.get_close_matches(run_id, known, n=3)
    names = close or list(known[:3])
    listed = " or ".join(names)
    raise RunNotFound(
        f"the ledger holds no run {run_id!r}",
        hint=f"did you mean {listed}?"
        if close
        else f"the newest are {', '.join(names)}"
        if names
        else "`labledger run` makes the first one",
    )
