"""Deleted runs: what the ledger keeps of them, and whether that is consistent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.rows.ledger_identity import ORIGINAL_ID
from labledger.records import canonical_json


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The record of a deleted run. The fields are the columns of `deleted_run` except the last."""

    deletion_no: int
    former_run_no: int
    run_id: str
    experiment_id: str
    created_at: str
    genesis_digest: str
    committed: int
    """How many slots were committed."""
    chain_head: str
    """The digest of its last commit, or of its creation if there was none."""
    deleted_at: str
    because: str
    """Why it was deleted, as a person wrote it."""

    def digest(self, previous: str) -> str:
        """Return the digest of this tombstone and of the one before it, or of the ledger's id."""
        return canonical_json.digest(["tombstone", previous, *astuple(self)])


_ALL_SQL = f"SELECT {statements.columns('deleted_run')} FROM deleted_run"  # noqa: S608


_FIRST_ID_SQL = f"""
SELECT value FROM ledger_meta WHERE key IN ('{ORIGINAL_ID}', 'ledger_id')
ORDER BY key = 'ledger_id' LIMIT 1"""  # noqa: S608


_LAST_DIGEST_SQL = "SELECT digest FROM deleted_run ORDER BY deletion_no DESC LIMIT 1"


_DELETED_SQL = """
SELECT DISTINCT run_id FROM deleted_run WHERE run_id NOT IN (SELECT run_id FROM run) ORDER BY 1"""


_NUMBERS_SQL = """
SELECT number FROM (
  SELECT run_no AS number FROM run UNION ALL SELECT former_run_no FROM deleted_run)
ORDER BY number"""


def newest_tombstone(connection: Connection, run_id: str) -> Tombstone | None:
    """Return the newest tombstone of a run, which may have been imported again since."""
    sql = f"{_ALL_SQL} WHERE run_id = ? ORDER BY deletion_no DESC LIMIT 1"
    row = connection.execute(sql, (run_id,)).first()
    return None if row is None else Tombstone(*row[:-1])


def read_deleted_ids(connection: Connection) -> list[str]:
    """Return the ids of the runs that were deleted and not imported again."""
    return list(connection.execute(_DELETED_SQL).scalars())


def last_digest(connection: Connection) -> str:
    """Return the digest of the newest tombstone, or the ledger's first id if there is none."""
    digest = connection.execute(_LAST_DIGEST_SQL).scalar()
    return str(digest or connection.execute(_FIRST_ID_SQL).scalar_one())


def find_tombstone_problems(connection: Connection) -> Iterator[str]:
    """Yield each tombstone that was changed or removed, and each run that is gone without one."""
    previous = str(connection.execute(_FIRST_ID_SQL).scalar())
    rows = connection.execute(f"{_ALL_SQL} ORDER BY deletion_no")
    for number, row in enumerate(rows, 1):
        tombstone = Tombstone(*row[:-1])
        if tombstone.deletion_no != number or tombstone.digest(previous) != row[-1]:
            yield f"the tombstone of run {tombstone.run_id} or the one before it was changed"
        previous = row[-1]
    expected = 1
    for (number,) in connection.execute(_NUMBERS_SQL):
        if number > expected:
            yield f"the run with the number {expected} was removed without a tombstone"
        elif number < expected:
            yield f"the run with the number {number} has a tombstone, and is there"
        expected = number + 1
