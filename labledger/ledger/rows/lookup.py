"""Look up runs and gradings by name.

All queries run inside the caller's transaction. An unknown name raises `RunNotFound` with similar
names. Tombstones of deleted runs form a chain of digests, and no run number is used twice. So a run
that was removed in another way leaves a gap.
"""

from __future__ import annotations

import re
from pathlib import Path

from labledger.errors import LedgerError, RunNotFound
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import reading
from labledger.ledger.rows.tombstones import newest_tombstone
from labledger.text.words import near_names

_GENERATION = re.compile(r"(.+)\.g([1-9][0-9]{0,8})")


def current_grading_run_no(connection: Connection, name: str) -> int:
    """Return the `run_no` of the grading that `name` stands for.

    A run's id stands for its current grading. A run's id with `.g` and a number stands for that
    generation, complete or not. Raises `RunNotFound`, with the existing generations as a hint.
    """
    run_no = find_run_no(connection, name)
    if run_no is not None:
        current_run_no = connection.execute(
            "SELECT run_no FROM counted WHERE root_no = ?", (run_no,)
        ).scalar()
        return run_no if current_run_no is None else int(current_run_no)
    match = _GENERATION.fullmatch(name)
    root_no = None if match is None else find_run_no(connection, match[1])
    if match is None or root_no is None:
        return run_number(connection, name)
    return grading_run_no(connection, match[1], int(match[2]))


def grading_run_no(connection: Connection, root_id: str, generation: int) -> int:
    """Return the `run_no` of a grading of a run by its number.

    Raises `RunNotFound`, with the existing generations as a hint.
    """
    gradings = connection.execute(
        "SELECT generation, run_no FROM grading WHERE root_id = ? ORDER BY generation", (root_id,)
    ).all()
    for number, run_no in gradings:
        if number == generation:
            return int(run_no)
    listed = ", ".join(f"{root_id}.g{number}" for number, _ in gradings)
    raise RunNotFound(
        f"run {root_id} has no generation {generation}",
        hint=f"its gradings: {listed}" if gradings else f"{root_id} is a regrading itself",
    )


def read_root_id(connection: Connection, run_no: int) -> str:
    """Return the run whose agents ran: the root of a regrading, or any other run itself."""
    sql = "SELECT root_id FROM grading WHERE run_no = ?"
    return str(connection.execute(sql, (run_no,)).scalar_one())


def ledger_holds_run(path: Path, run_id: str) -> bool:
    """Return whether there is a readable ledger at `path`, of any revision, that has a run."""
    try:
        with reading(path, "read the ledger") as connection:
            return find_run_no(connection, run_id) is not None
    except LedgerError:
        return False


def run_number(connection: Connection, run_id: str) -> int:
    """Return the `run_no` of a run. Raises `RunNotFound` with similar names as a hint."""
    run_no = find_run_no(connection, run_id)
    if run_no is not None:
        return run_no
    stone = newest_tombstone(connection, run_id)
    if stone is not None:
        raise RunNotFound(
            f"run {run_id} was deleted on {stone.deleted_at}: {stone.because}",
            hint=f"`labledger import` of an archive brings it back; after {stone.committed} "
            f"saved trials, its last digest was {stone.chain_head}",
        )
    grading = _GENERATION.fullmatch(run_id)
    if (
        grading is not None
        and grading[2] == "1"
        and find_run_no(connection, grading[1]) is not None
    ):
        raise RunNotFound(
            f"the ledger holds no run {run_id!r}",
            hint=f"the first grading of {grading[1]} is that run's own: name {grading[1]}",
        )
    sql = "SELECT run_id FROM run ORDER BY run_no DESC LIMIT 10000"
    run_ids = list(connection.execute(sql).scalars())
    similar_ids = near_names(run_id, run_ids, 3)
    names = similar_ids or run_ids[:3]
    listed = " or ".join(names)
    raise RunNotFound(
        f"the ledger holds no run {run_id!r}",
        hint=f"did you mean {listed}?"
        if similar_ids
        else f"its {'newest runs are' if len(run_ids) > 1 else 'only run is'} {', '.join(names)}"
        if names
        else "`labledger run` creates the first one",
    )


def find_run_no(connection: Connection, run_id: str) -> int | None:
    """Return the `run_no` of a run; None if the ledger does not hold it."""
    run_no = connection.execute("SELECT run_no FROM run WHERE run_id = ?", (run_id,)).scalar()
    return None if run_no is None else int(run_no)
