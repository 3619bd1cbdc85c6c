"""Look up runs and gradings by name, deleted runs, the ledger's id, and contents of trials.

All queries run inside the caller's transaction. An unknown name raises `RunNotFound` with similar
names. Tombstones of deleted runs form a chain of digests, and no run number is used twice. So a run
that was removed in another way leaves a gap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from labledger.errors import LedgerError, RunNotFound
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import reading
from labledger.records import JsonObject, canonical_json
from labledger.records.canonical_json import sha256_hex
from labledger.text import near_names

_LEDGER_ID = re.compile(r"[0-9a-f]{32}")
_GENERATION = re.compile(r"(.+)\.g([1-9][0-9]{0,8})")


def ledger_id(connection: Connection) -> str:
    """Return the ledger's id (32 hex digits), which never changes.

    Raises `LedgerError` if the row that holds it is missing or holds something else.
    """
    value = connection.execute(LEDGER_ID_SQL).scalar()
    if not isinstance(value, str) or _LEDGER_ID.fullmatch(value) is None:
        raise LedgerError(
            f"the ledger is damaged: its table ledger_meta says {value!r} where it should say the "
            "ledger's id",
            hint="`labledger verify` lists what differs; restore a copy of the ledger",
        )
    return value


def read_backup_time(connection: Connection) -> str | None:
    """Return the time of the backup that a ledger was restored from; None for any other ledger."""
    value = connection.execute(_BACKED_UP_SQL).scalar()
    return None if value is None else str(value)


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


# -- deleted runs


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
ORIGINAL_ID = "original_id"
"""The key of a restored ledger's first id; absent in a ledger that never was restored.

The digests of its tombstones begin with that id."""
BACKED_UP_AT = "backed_up_at"
"""The key of the time of the backup from which a ledger was restored."""
LEDGER_ID_SQL = "SELECT value FROM ledger_meta WHERE key = 'ledger_id'"
_FIRST_ID_SQL = f"""
SELECT value FROM ledger_meta WHERE key IN ('{ORIGINAL_ID}', 'ledger_id')
ORDER BY key = 'ledger_id' LIMIT 1"""  # noqa: S608
_BACKED_UP_SQL = f"SELECT value FROM ledger_meta WHERE key = '{BACKED_UP_AT}'"  # noqa: S608
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


# -- contents of single trials

_TASK_SQL = statements.expand("""
SELECT task_payload.body FROM slot
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
{task_payload}
WHERE slot.run_no = ? AND slot.schedule_idx = ?""")
_METRICS_SQL = """
SELECT metric_id, value FROM metric WHERE run_no = ? AND schedule_idx = ? ORDER BY row_seq"""
_EVENTS_SQL = """
SELECT body FROM event WHERE run_no = ? AND schedule_idx = ? ORDER BY row_seq LIMIT ?"""
_EVENT_COUNT_SQL = "SELECT count(*) FROM event WHERE run_no = ? AND schedule_idx = ?"
_EVIDENCE_SQL = """
SELECT record FROM evidence_record WHERE run_no = ? AND schedule_idx = ?
ORDER BY attempt DESC, row_seq DESC LIMIT 1"""


@dataclass(frozen=True, slots=True)
class TrialContents:
    """The committed trials of a run, or of a regrading of it, in one snapshot of the ledger."""

    connection: Connection
    root_no: int
    """The run whose agents ran. It holds the tasks, metrics and events."""
    run_no: int
    """The run that holds the evidence."""
    store: ArtifactStore

    def task(self, schedule_idx: int) -> JsonObject:
        """Return the frozen row of a slot's task. Raises `LedgerError` if there is none."""
        body = self._scalar(_TASK_SQL, self.root_no, schedule_idx)
        if body is None:
            raise LedgerError(f"the ledger has no task of slot {schedule_idx}")
        row: JsonObject = json.loads(body)
        return row

    def metrics(self, schedule_idx: int) -> list[tuple[str, float | str]]:
        """Return id and value of each metric, in order."""
        rows = self.connection.execute(_METRICS_SQL, (self.root_no, schedule_idx))
        return [(metric_id, value) for metric_id, value in rows]

    def events(self, schedule_idx: int, limit: int) -> tuple[list[Any], int]:
        """Return the first `limit` events, and how many more there are."""
        key = (self.root_no, schedule_idx)
        rows = self.connection.execute(_EVENTS_SQL, (*key, limit))
        events = [json.loads(body) for body in rows.scalars()]
        if len(events) < limit:
            return events, 0
        return events, self._scalar(_EVENT_COUNT_SQL, *key) - len(events)

    def evidence(self, schedule_idx: int) -> JsonObject:
        """Return the evidence record of the last attempt, or an empty one."""
        record = self._scalar(_EVIDENCE_SQL, self.run_no, schedule_idx)
        evidence_record: JsonObject = {"evidence": {}} if record is None else json.loads(record)
        return evidence_record

    def artifact(self, sha256: str) -> bytes:
        """Return the content of an artifact, as `LedgerReader.artifact` does."""
        return read_artifact(self.connection, self.store, sha256)

    def open_artifact(self, sha256: str) -> BinaryIO:
        """Open an artifact, as `LedgerReader.open_artifact` does."""
        return open_artifact(self.connection, self.store, sha256)

    def _scalar(self, sql: str, *key: int) -> Any:
        return self.connection.execute(sql, key).scalar()


def read_artifact(connection: Connection, store: ArtifactStore, sha256: str) -> bytes:
    """Return the content of an artifact (64 hex digits), checked against its digest.

    Raises `LedgerError`.
    """
    content = _kept_content(connection, sha256)
    if content is None:
        with _translated(store, sha256):
            content = store.path(sha256).read_bytes()
    return unchanged(content, sha256)


def open_artifact(connection: Connection, store: ArtifactStore, sha256: str) -> BinaryIO:
    """Return an open file of an artifact (64 hex digits) of any size, checked against its digest.

    Raises `LedgerError`.
    """
    content = _kept_content(connection, sha256)
    if content is not None:
        return BytesIO(unchanged(content, sha256))
    with _translated(store, sha256):
        return store.checked(sha256).open("rb")


def _kept_content(connection: Connection, sha256: str) -> bytes | None:
    """Return the content of an artifact that the ledger itself has; None if the store has it."""
    row = connection.execute(
        "SELECT content FROM artifact WHERE sha256 = ?", (digest_bytes(sha256),)
    ).first()
    if row is None:
        raise LedgerError(f"the ledger has no artifact {sha256}")
    content: bytes | None = row[0]
    return content


@contextmanager
def _translated(store: ArtifactStore, sha256: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"could not read artifact {sha256}: {error.strerror} ({store.path(sha256)})"
        ) from error


def unchanged(content: bytes, sha256: str) -> bytes:
    """Return an artifact's content. Raises `LedgerError` if it has another digest."""
    if sha256_hex(content) != sha256:
        raise LedgerError(f"artifact {sha256} was changed: its content has another digest")
    return content


def digest_bytes(sha256: str) -> bytes:
    """Return a digest in hex as bytes. Raises `LedgerError` if it is not one."""
    try:
        return bytes.fromhex(sha256)
    except ValueError:
        raise LedgerError(f"{sha256!r} is not the SHA-256 of an artifact in hex") from None


_AGENT_DIGESTS_SQL = """
SELECT DISTINCT record ->> '$.ext.agent.name', record ->> '$.ext.agent.version',
  record ->> '$.ext.agent.tree_sha256'
FROM evidence_record
WHERE run_no = ? AND json_type(record, '$.ext.agent.tree_sha256') = 'text'"""


def read_agent_digests(connection: Connection, run_no: int) -> set[tuple[str, str, str]]:
    """Return name, version and digest of the installed agents that ran in a run's trials."""
    rows = connection.execute(_AGENT_DIGESTS_SQL, (run_no,))
    return {(str(name), str(version), str(digest)) for name, version, digest in rows}
