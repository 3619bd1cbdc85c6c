"""Check that a run's commits follow from each other, without reading what they committed.

This takes seconds when `verify`, which also recomputes the digest of every record, takes minutes.
It detects commits that were changed, removed, inserted or reordered, but not records that were
changed while their commit was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from labledger.ledger.commit_rows import digest_chain
from labledger.ledger.database.connection import Connection
from labledger.records.identity import slot_commit_id

_HEAD_SQL = """
SELECT schedule.genesis_digest, schedule_progress.next_schedule_idx
FROM schedule JOIN schedule_progress ON schedule_progress.run_no = schedule.run_no
WHERE schedule.run_no = ?"""
_COMMITS_SQL = """
SELECT schedule_idx, slot_commit_id, epoch, committed_at, payload_digest, chain_digest
FROM slot_commit WHERE run_no = ? ORDER BY schedule_idx"""

PARTS_SQL = "SELECT first_idx, digest FROM run_part WHERE run_no = ?"
"""The digest of each part that was appended to a run, by the number of its first slot."""


def find_problems(
    connection: Connection, run_no: int, run_id: str
) -> Iterator[tuple[int | None, str]]:
    """Yield the problems of a run's chain, each with its slot, or None for the run as a whole.

    Each link is compared with the one before it as stored, so that one change is one problem.
    """
    part_digests = dict(map(tuple, connection.exec_driver_sql(PARTS_SQL, (run_no,))))
    head, committed = connection.exec_driver_sql(_HEAD_SQL, (run_no,)).one()
    next_idx = 0
    for row in connection.exec_driver_sql(_COMMITS_SQL, (run_no,)):
        idx, *commit, digest = row
        if idx != next_idx:
            yield next_idx, f"the commits of slots {next_idx} to {idx - 1} are missing"
        elif commit[0] != slot_commit_id(run_id, idx):
            yield idx, "the commit's id was changed"
        elif _expected_digest(head, part_digests.get(idx), commit) != digest:
            yield idx, "the commit does not follow from the one before it"
        head, next_idx = digest, idx + 1
    if next_idx != committed:
        yield None, f"the progress says {committed} slots are committed; {next_idx} are"


def _expected_digest(head: str, part_digest: str | None, commit: Sequence[Any]) -> str:
    """Return the chain's digest after a commit, of which `commit` has the columns it covers."""
    return digest_chain.chain_digest(digest_chain.with_part(head, part_digest), *commit)
