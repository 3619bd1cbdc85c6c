"""Compare a run in two ledgers: the same history, a longer one, or a conflict.

Equal chain digests prove equal histories, so two queries decide; rows are compared only to
describe a conflict. An import uses this before it writes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labledger.ledger.commit_rows import statements
from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection
from labledger.ledger.read.lookup import run_number


class RunRelation(StrEnum):
    """How much of a source's run the target ledger already has."""

    NEW = "new"
    """Nothing."""
    GROWN = "grown"
    """Its first commits: the source has more."""
    SAME = "same"
    """All of it, or more than the source has."""
    CONFLICT = "conflict"
    """Another history under the same name."""


@dataclass(frozen=True, slots=True)
class History:
    """A run of a source compared with the run of that id in the target."""

    run_id: str
    relation: RunRelation
    total: int
    """Slots of its schedule in the source."""
    committed: int
    """How many of them the source has committed."""
    committed_here: int = 0
    """How many of them the target has committed."""
    left_staged: int = 0
    """Staged results that the source has not committed; they are not imported."""
    difference: str = ""
    """The first difference, for a conflict."""


_PROGRESS_SQL = (
    "SELECT schedule.genesis_digest, schedule.total_slots, "
    "(SELECT count(*) FROM slot_commit WHERE slot_commit.run_no = schedule.run_no) "
    "FROM schedule WHERE schedule.run_no = ?"
)
_STAGED_SQL = "SELECT count(DISTINCT schedule_idx) FROM staged_result WHERE run_no = ?"
_LINK_SQL = "SELECT chain_digest FROM slot_commit WHERE run_no = ? AND schedule_idx = ?"
_COMMITS_SQL = (
    "SELECT schedule_idx, chain_digest, payload_digest, committed_at, status FROM slot_commit "
    "WHERE run_no = ? ORDER BY schedule_idx"
)
_PARTS = {
    "variant": f"{row_sql.select('run_variant', start=2)} ORDER BY variant_idx",
    "task": f"{row_sql.select('run_task', start=2)} ORDER BY task_idx",
    "slot": f"{row_sql.select('slot', start=2)} ORDER BY schedule_idx",
}


def compare(source: Connection, target: Connection | None, run_id: str) -> History:
    """Compare the run of `source` with the one of that id in `target` by their digests."""
    theirs = run_number(source, run_id)
    genesis, total, committed = source.exec_driver_sql(_PROGRESS_SQL, (theirs,)).one()
    staged = source.exec_driver_sql(_STAGED_SQL, (theirs,)).scalar_one()
    ours = None
    if target is not None:
        sql = "SELECT run_no FROM run WHERE run_id = ?"
        ours = target.exec_driver_sql(sql, (run_id,)).scalar()
    if target is None or ours is None:
        return History(run_id, RunRelation.NEW, total, committed, left_staged=staged)
    our_genesis, _, here = target.exec_driver_sql(_PROGRESS_SQL, (ours,)).one()
    relation, difference = RunRelation.SAME if here >= committed else RunRelation.GROWN, ""
    if our_genesis != genesis:
        relation, difference = RunRelation.CONFLICT, _first_part(source, theirs, target, ours)
    else:
        last = min(here, committed) - 1
        links = [
            connection.exec_driver_sql(_LINK_SQL, (run_no, last)).scalar()
            for connection, run_no in ((source, theirs), (target, ours))
        ]
        if links[0] != links[1]:
            relation, difference = RunRelation.CONFLICT, _first_commit(source, theirs, target, ours)
    return History(run_id, relation, total, committed, here, staged, difference)


def _first_part(source: Connection, theirs: int, target: Connection, ours: int) -> str:
    """Describe the first difference in what the runs were created with."""
    names = [name for name in statements.RUN_COLUMNS if name != "run_id"]
    sql = f"SELECT {', '.join(names)} FROM run WHERE run_no = ?"  # noqa: S608
    rows = (
        source.exec_driver_sql(sql, (theirs,)).one(),
        target.exec_driver_sql(sql, (ours,)).one(),
    )
    for name, there, here in zip(names, *rows, strict=True):
        if there != here:
            return f"its {name} is {_short(there)} there and {_short(here)} here"
    for part, sql in _PARTS.items():
        for number, there, here in _both(source, theirs, target, ours, sql):
            if there != here:
                return f"{part} {number} is {_short(there)} there and {_short(here)} here"
    return "its genesis digest differs"


def _first_commit(source: Connection, theirs: int, target: Connection, ours: int) -> str:
    """Describe the first commit that differs."""
    for number, there, here in _both(source, theirs, target, ours, _COMMITS_SQL):
        if there is None or here is None or there[1] != here[1]:
            if there is None or here is None or there[0] != here[0]:
                break
            what = "the same records" if there[2] == here[2] else "other records"
            return (
                f"slot {number} has {what}: committed at {there[3]} there ({there[4]}) "
                f"and at {here[3]} here ({here[4]})"
            )
    return "its commits differ"


def _both(
    source: Connection, theirs: int, target: Connection, ours: int, sql: str
) -> Iterator[tuple[int, Any, Any]]:
    """Yield number and both sides' rows in pairs; None for a side that has no more rows."""
    there, here = (
        iter(connection.exec_driver_sql(sql, (run_no,)))
        for connection, run_no in ((source, theirs), (target, ours))
    )
    number = 0
    while True:
        pair = next(there, None), next(here, None)
        if pair == (None, None):
            return
        yield number, pair[0] and tuple(pair[0]), pair[1] and tuple(pair[1])
        number += 1


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
