"""Look up runs and gradings by name, and the ledger's id, inside the caller's transaction.

Reader, writer, import and verification share these queries. An unknown name raises `RunNotFound`
with similar names as a hint.
"""

from __future__ import annotations

import re
from pathlib import Path

from labledger.errors import LedgerError, RunNotFound
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import readonly_engine, translated
from labledger.ledger.read.tombstones import newest_tombstone
from labledger.text.phrases import near_names

_LEDGER_ID = re.compile(r"[0-9a-f]{32}")
_GENERATION = re.compile(r"(.+)\.g([1-9][0-9]{0,8})")


def ledger_id(connection: Connection) -> str:
    """Return the ledger's id (32 hex digits), which never changes.

    Raises `LedgerError` if the row that holds it is missing or holds something else.
    """
    value = connection.exec_driver_sql(
        "SELECT value FROM ledger_meta WHERE key = 'ledger_id'"
    ).scalar()
    if not isinstance(value, str) or _LEDGER_ID.fullmatch(value) is None:
        raise LedgerError(
            f"the ledger is damaged: its table ledger_meta says {value!r} where it should say the "
            "ledger's id",
            hint="`labledger verify` lists what differs; restore a copy of the ledger",
        )
    return value


def current_grading_run_no(connection: Connection, name: str) -> int:
    """Return the `run_no` of the grading that `name` stands for.

    A run's id stands for its current grading; its id with `.g` and a number for that generation,
    complete or not. Raises `RunNotFound`, with a hint of the existing generations.
    """
    run_no = _find_run_no(connection, name)
    if run_no is not None:
        counted = connection.exec_driver_sql(
            "SELECT run_no FROM counted WHERE root_no = ?", (run_no,)
        ).scalar()
        return run_no if counted is None else int(counted)
    match = _GENERATION.fullmatch(name)
    root_no = None if match is None else _find_run_no(connection, match[1])
    if match is None or root_no is None:
        return run_number(connection, name)
    known = connection.exec_driver_sql(
        "SELECT generation, run_no FROM grading WHERE root_id = ? ORDER BY generation", (match[1],)
    ).all()
    for generation, number in known:
        if generation == int(match[2]):
            return int(number)
    listed = ", ".join(f"{match[1]}.g{generation}" for generation, _ in known)
    raise RunNotFound(
        f"run {match[1]} has no generation {match[2]}",
        hint=f"its gradings: {listed}" if known else f"{match[1]} is a regrading itself",
    )


def ledger_holds_run(path: Path, run_id: str) -> bool:
    """Return whether there is a readable ledger at `path`, of any revision, that has a run."""
    try:
        engine = readonly_engine(path)
        try:
            with translated("read the ledger", path), engine.connect() as connection:
                return _find_run_no(connection, run_id) is not None
        finally:
            engine.dispose()
    except LedgerError:
        return False


def run_number(connection: Connection, run_id: str) -> int:
    """Return the `run_no` of a run. Raises `RunNotFound` with similar names as a hint."""
    run_no = _find_run_no(connection, run_id)
    if run_no is not None:
        return run_no
    stone = newest_tombstone(connection, run_id)
    if stone is not None:
        raise RunNotFound(
            f"run {run_id} was deleted on {stone.deleted_at}: {stone.because}",
            hint=f"`labledger import` of an archive brings it back; after {stone.committed} "
            f"committed slots, its last digest was {stone.chain_head}",
        )
    grading = _GENERATION.fullmatch(run_id)
    if (
        grading is not None
        and grading[2] == "1"
        and _find_run_no(connection, grading[1]) is not None
    ):
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
        else "`labledger run` creates the first one",
    )


def _find_run_no(connection: Connection, run_id: str) -> int | None:
    run_no = connection.exec_driver_sql(
        "SELECT run_no FROM run WHERE run_id = ?", (run_id,)
    ).scalar()
    return None if run_no is None else int(run_no)
