"""Compare a run in two ledgers: the same history, a longer one, or a conflict.

Equal chain digests prove equal histories, so that two digests of each run are enough; rows are
compared only to describe a conflict. Compare before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labledger.ledger import digest_chain
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.read.lookup import run_number
from labledger.ledger.read.tombstones import newest_tombstone


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
    committed_in_target: int = 0
    """How many of them the target has committed."""
    left_staged: int = 0
    """The number of slots with staged results in the source; these results are not imported."""
    difference: str = ""
    """The first difference, for a conflict."""


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
    "variant": f"{statements.select('run_variant', start=2)} ORDER BY variant_idx",
    "task": f"{statements.select('run_task', start=2)} ORDER BY task_idx",
    "slot": f"{statements.select('slot', start=2)} ORDER BY schedule_idx",
}


def compare(source: Connection, target: Connection | None, run_id: str) -> History:
    """Compare the run of `source` with the one of that id in `target` by their digests."""
    source_no = run_number(source, run_id)
    genesis, total, committed = source.execute(_PROGRESS_SQL, (source_no,)).one()
    staged = source.execute(_STAGED_SQL, (source_no,)).scalar_one()
    target_no = None
    if target is not None:
        sql = "SELECT run_no FROM run WHERE run_id = ?"
        target_no = target.execute(sql, (run_id,)).scalar()
    if target is None or target_no is None:
        difference = "" if target is None else _tombstone_difference(source, run_id, target)
        relation = RunRelation.CONFLICT if difference else RunRelation.NEW
        return History(
            run_id, relation, total, committed, left_staged=staged, difference=difference
        )
    target_genesis, total_in_target, committed_in_target = target.execute(
        _PROGRESS_SQL, (target_no,)
    ).one()
    difference = ""
    if target_genesis != genesis:
        difference = _first_creation_difference(source, source_no, target, target_no)
    elif part_difference := _first_part_difference(source, source_no, target, target_no):
        difference = part_difference
    else:
        last_idx = min(committed_in_target, committed) - 1
        chain_digests = [
            connection.execute(_CHAIN_DIGEST_SQL, (run_no, last_idx)).scalar()
            for connection, run_no in ((source, source_no), (target, target_no))
        ]
        if chain_digests[0] != chain_digests[1]:
            difference = _first_commit_difference(source, source_no, target, target_no)
    if difference:
        relation = RunRelation.CONFLICT
    else:
        has_all = committed_in_target >= committed and total_in_target >= total
        relation = RunRelation.SAME if has_all else RunRelation.GROWN
    return History(run_id, relation, total, committed, committed_in_target, staged, difference)


def _tombstone_difference(source: Connection, run_id: str, target: Connection) -> str:
    """Describe how a run differs from the one of that id that was deleted, or return ""."""
    stone = newest_tombstone(target, run_id)
    if stone is None:
        return ""
    source_no = run_number(source, run_id)
    genesis, _, committed = source.execute(_PROGRESS_SQL, (source_no,)).one()
    if genesis != stone.genesis_digest:
        return f"another run of this id was deleted on {stone.deleted_at}"
    if stone.committed and committed >= stone.committed:
        last = source.execute(_CHAIN_DIGEST_SQL, (source_no, stone.committed - 1))
        if last.scalar() != stone.chain_head:
            return f"it has other commits than the run that was deleted on {stone.deleted_at}"
    return ""


def _first_creation_difference(
    source: Connection, source_no: int, target: Connection, target_no: int
) -> str:
    """Describe the first difference in what the runs were created with."""
    names = [name for name in digest_chain.RUN_COLUMNS if name != "run_id"]
    sql = f"SELECT {', '.join(names)} FROM run WHERE run_no = ?"  # noqa: S608
    rows = (
        source.execute(sql, (source_no,)).one(),
        target.execute(sql, (target_no,)).one(),
    )
    for name, in_source, in_target in zip(names, *rows, strict=True):
        if in_source != in_target:
            return f"its {name} is {_both_values(in_source, in_target)}"
    for part, sql in _PART_QUERIES.items():
        for number, in_source, in_target in _row_pairs(source, source_no, target, target_no, sql):
            if in_source != in_target:
                return f"{part} {number} is {_both_values(in_source, in_target)}"
    return "its genesis digest differs"


def _first_part_difference(
    source: Connection, source_no: int, target: Connection, target_no: int
) -> str:
    """Describe the first part that both runs have and that differs; empty if there is none."""
    for _, in_source, in_target in _row_pairs(source, source_no, target, target_no, _PARTS_SQL):
        if in_source is None or in_target is None:
            break
        if in_source[-1] != in_target[-1]:
            return (
                f"part {in_source[0]} of its schedule is another: the source has it since "
                f"{in_source[2]} ({in_source[1]}), this ledger since {in_target[2]} "
                f"({in_target[1]})"
            )
    return ""


def _first_commit_difference(
    source: Connection, source_no: int, target: Connection, target_no: int
) -> str:
    """Describe the first commit that differs."""
    for number, in_source, in_target in _row_pairs(
        source, source_no, target, target_no, _COMMITS_SQL
    ):
        if in_source is None or in_target is None or in_source[0] != in_target[0]:
            break
        _, source_chain, source_payload, source_time, source_status = in_source
        _, target_chain, target_payload, target_time, target_status = in_target
        if source_chain != target_chain:
            records = "the same records" if source_payload == target_payload else "other records"
            return (
                f"slot {number} has {records}: the source committed it at {source_time} "
                f"({source_status}), this ledger at {target_time} ({target_status})"
            )
    return "its commits differ"


def _row_pairs(
    source: Connection, source_no: int, target: Connection, target_no: int, sql: str
) -> Iterator[tuple[int, Any, Any]]:
    """Yield the rows of both runs in numbered pairs, with None for a run that has no more rows."""
    source_rows, target_rows = (
        iter(connection.execute(sql, (run_no,)))
        for connection, run_no in ((source, source_no), (target, target_no))
    )
    number = 0
    while True:
        pair = next(source_rows, None), next(target_rows, None)
        if pair == (None, None):
            return
        yield number, pair[0] and tuple(pair[0]), pair[1] and tuple(pair[1])
        number += 1


def _both_values(in_source: object, in_target: object) -> str:
    return f"{_shortened(in_source)} in the source and {_shortened(in_target)} in this ledger"


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
