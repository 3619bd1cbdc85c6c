"""Small questions that the writer and the reader both ask."""

from __future__ import annotations

import re

from labledger.errors import RunNotFound
from labledger.ledger.connection import Connection
from labledger.near_names import near_names

_GENERATION = re.compile(r"(.+)\.g([1-9][0-9]{0,8})")


def ledger_id(connection: Connection) -> str:
    """The ledger's own id (32 hex digits), the same for its whole life."""
    found: str = connection.exec_driver_sql(
        "SELECT value FROM ledger_meta WHERE key = 'ledger_id'"
    ).scalar_one()
    return found


def graded_number(connection: Connection, name: str) -> int:
    """The `run_no` that holds what `name` means to those who ask for outcomes.

    A run is whatever counts of it; its id with `.g` and a number is that generation, complete or
    not. Raises `RunNotFound`, with the generations that there are where the run is known.
    """
    run_no = _number(connection, name)
    if run_no is not None:
        counted = connection.exec_driver_sql(
            "SELECT run_no FROM counted WHERE root_no = ?", (run_no,)
        ).scalar()
        return run_no if counted is None else int(counted)
    found = _GENERATION.fullmatch(name)
    root_no = None if found is None else _number(connection, found[1])
    if found is None or root_no is None:
        return run_number(connection, name)
    known = connection.exec_driver_sql(
        "SELECT generation, run_no FROM grading WHERE root_id = ? ORDER BY generation", (found[1],)
    ).all()
    for generation, number in known:
        if generation == int(found[2]):
            return int(number)
    listed = ", ".join(f"{found[1]}.g{generation}" for generation, _ in known)
    raise RunNotFound(
        f"run {found[1]} has no generation {found[2]}",
        hint=f"its gradings: {listed}" if known else f"{found[1]} is a regrading itself",
    )


def run_number(connection: Connection, run_id: str) -> int:
    """The `run_no` of a run. Raises `RunNotFound`, with close names where there are any."""
    found = _number(connection, run_id)
    if found is not None:
        return found
    grading = _GENERATION.fullmatch(run_id)
    if grading is not None and grading[2] == "1" and _number(connection, grading[1]) is not None:
        raise RunNotFound(
            f"the ledger holds no run {run_id!r}",
            hint=f"the first grading of {grading[1]} is that run's own: name {grading[1]}",
        )
    known = (
        connection.exec_driver_sql("SELECT run_id FROM run ORDER BY run_no DESC LIMIT 10000")
        .scalars()
        .all()
    )
    close = near_names(run_id, known, 3)
    names = close or list(known[:3])
    listed = " or ".join(names)
    raise RunNotFound(
        f"the ledger holds no run {run_id!r}",
        hint=f"did you mean {listed}?"
        if close
        else f"its {'newest runs are' if len(known) > 1 else 'only run is'} {', '.join(names)}"
        if names
        else "`labledger run` makes the first one",
    )


def _number(connection: Connection, run_id: str) -> int | None:
    found = connection.exec_driver_sql(
        "SELECT run_no FROM run WHERE run_id = ?", (run_id,)
    ).scalar()
    return None if found is None else int(found)
