"""Compare a run in two ledgers: the same history, a longer one, or a conflict.

Equal chain digests prove equal histories, so two digests of each run are enough. Rows are compared
only to describe a conflict. Compare before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection, RowStream
from labledger.ledger.database.table_rows import KEYS
from labledger.ledger.rows import digest_chain
from labledger.ledger.rows.lookup import find_run_no, run_number
from labledger.ledger.rows.tombstones import Tombstone, newest_tombstone


class RunRelation(StrEnum):
    """How much of a source's run the target ledger already has."""

    NEW = "new"
    """The target does not have the run."""
    GROWN = "grown"
    """The target has its first commits; the source has more."""
    SAME = "same"
    """The target has all of it, or more than the source."""
    CONFLICT = "conflict"
    """The target has another history under the same id."""


@dataclass(frozen=True, slots=True)
class History:
    """A run of a source compared with the run of that id in the target."""

    run_id: str
    relation: RunRelation
    total: int
    """Slots of its schedule in the source."""
    committed: int
    """How many of them the source has committed."""
    committed_in_target: int = 0
    """How many of them the target has committed."""
    left_staged: int = 0
    """The number of slots with staged results in the source; these results are not imported."""
    difference: str = ""
    """The first difference, for a conflict."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run in one ledger: a connection to it, and the run's number there."""

    connection: Connection
    run_no: int

    @classmethod
    def find(cls, connection: Connection, run_id: str) -> StoredRun:
        """Return a run of a ledger. Raises `RunNotFound`."""
        return cls(connection, run_number(connection, run_id))

    def execute(self, sql: str, *values: object) -> RowStream:
        """Execute a statement whose first value is the run's number."""
        return self.connection.execute(sql, (self.run_no, *values))


_PROGRESS_SQL = (
    "SELECT schedule.genesis_digest, schedule.total_slots, "
    "(SELECT count(*) FROM slot_commit WHERE slot_commit.run_no = schedule.run_no) "
    "FROM schedule WHERE schedule.run_no = ?"
)
_PARTS_SQL = "SELECT part, kind, created_at, digest FROM run_part WHERE run_no = ? ORDER BY part"
_STAGED_SQL = "SELECT count(DISTINCT schedule_idx) FROM staged_result WHERE run_no = ?"
_CHAIN_DIGEST_SQL = "SELECT chain_digest FROM slot_commit WHERE run_no = ? AND schedule_idx = ?"
_COMMITS_SQL = (
    "SELECT schedule_idx, chain_digest, payload_digest, committed_at, status FROM slot_commit "
    "WHERE run_no = ? ORDER BY schedule_idx"
)
_PART_QUERIES = {
    kind: f"{statements.select(table, start=2)} ORDER BY {KEYS[table][1]}"
    for kind, table in digest_chain.PLANNED_TABLES.items()
}


def compare(source: Connection, target: Connection | None, run_id: str) -> History:
    """Compare the run of `source` with the one of that id in `target` by their digests."""
    theirs = StoredRun.find(source, run_id)
    genesis, total, committed = theirs.execute(_PROGRESS_SQL).one()
    staged = theirs.execute(_STAGED_SQL).scalar_one()
    run_no = None if target is None else find_run_no(target, run_id)
    if target is None or run_no is None:
        stone = None if target is None else newest_tombstone(target, run_id)
        difference = "" if stone is None else _tombstone_difference(theirs, stone)
        relation = RunRelation.CONFLICT if difference else RunRelation.NEW
        return History(
            run_id, relation, total, committed, left_staged=staged, difference=difference
        )
    ours = StoredRun(target, run_no)
    our_genesis, our_total, our_committed = ours.execute(_PROGRESS_SQL).one()
    if our_genesis != genesis:
        difference = _first_creation_difference(theirs, ours)
    else:
        difference = _first_part_difference(theirs, ours)
    if not difference:
        last_idx = min(our_committed, committed) - 1
        digests = {run.execute(_CHAIN_DIGEST_SQL, last_idx).scalar() for run in (theirs, ours)}
        if len(digests) > 1:
            difference = _first_commit_difference(theirs, ours)
    if difference:
        relation = RunRelation.CONFLICT
    else:
        has_all = our_committed >= committed and our_total >= total
        relation = RunRelation.SAME if has_all else RunRelation.GROWN
    return History(run_id, relation, total, committed, our_committed, staged, difference)


def _tombstone_difference(source: StoredRun, stone: Tombstone) -> str:
    """Describe how a run differs from the one of that id that was deleted, or return ""."""
    genesis, _, committed = source.execute(_PROGRESS_SQL).one()
    if genesis != stone.genesis_digest:
        return f"another run of this id was deleted on {stone.deleted_at}"
    if stone.committed and committed >= stone.committed:
        last = source.execute(_CHAIN_DIGEST_SQL, stone.committed - 1).scalar()
        if last != stone.chain_head:
            return f"it has other commits than the run that was deleted on {stone.deleted_at}"
    return ""


def _first_creation_difference(source: StoredRun, target: StoredRun) -> str:
    """Describe the first difference in what the runs were created with."""
    names = [name for name in digest_chain.RUN_COLUMNS if name != "run_id"]
    sql = f"SELECT {', '.join(names)} FROM run WHERE run_no = ?"  # noqa: S608
    rows = (source.execute(sql).one(), target.execute(sql).one())
    for name, in_source, in_target in zip(names, *rows, strict=True):
        if in_source != in_target:
            return f"its {name} is {_both_values(in_source, in_target)}"
    for part, sql in _PART_QUERIES.items():
        for number, in_source, in_target in _row_pairs(source, target, sql):
            if in_source != in_target:
                return f"{part} {number} is {_both_values(in_source, in_target)}"
    return "its genesis digest differs"


def _first_part_difference(source: StoredRun, target: StoredRun) -> str:
    """Describe the first part that both runs have and that differs; empty if there is none."""
    for _, in_source, in_target in _row_pairs(source, target, _PARTS_SQL):
        if in_source is None or in_target is None:
            break
        if in_source[-1] != in_target[-1]:
            return (
                f"part {in_source[0]} of its schedule differs: the source has it since "
                f"{in_source[2]} ({in_source[1]}), this ledger since {in_target[2]} "
                f"({in_target[1]})"
            )
    return ""


def _first_commit_difference(source: StoredRun, target: StoredRun) -> str:
    """Describe the first commit that differs."""
    for number, in_source, in_target in _row_pairs(source, target, _COMMITS_SQL):
        if in_source is None or in_target is None or in_source[0] != in_target[0]:
            break
        _, source_chain, source_payload, source_time, source_status = in_source
        _, target_chain, target_payload, target_time, target_status = in_target
        if source_chain != target_chain:
            records = "the same records" if source_payload == target_payload else "other records"
            return (
                f"trial {number} has {records}: the source saved it at {source_time} "
                f"({source_status}), this ledger at {target_time} ({target_status})"
            )
    return "its commits differ"


def _row_pairs(source: StoredRun, target: StoredRun, sql: str) -> Iterator[tuple[int, Any, Any]]:
    """Yield the rows of both runs in numbered pairs, with None for a run that has no more rows."""
    pairs = zip_longest(source.execute(sql), target.execute(sql))
    for number, (in_source, in_target) in enumerate(pairs):
        yield number, in_source and tuple(in_source), in_target and tuple(in_target)


def _both_values(in_source: object, in_target: object) -> str:
    return f"{_shortened(in_source)} in the source and {_shortened(in_target)} in this ledger"


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
