"""Look up runs and gradings by name, the ledger's id, and what single trials left behind.

All queries run inside the caller's transaction; `TrialContents` reads thousands of trials of one
run in one snapshot. An unknown name raises `RunNotFound` with similar names as a hint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labledger.errors import LedgerError, RunNotFound
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import reading
from labledger.ledger.tombstones import LEDGER_ID_SQL, newest_tombstone
from labledger.records import JsonObject
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


def current_grading_run_no(connection: Connection, name: str) -> int:
    """Return the `run_no` of the grading that `name` stands for.

    A run's id stands for its current grading; its id with `.g` and a number for that generation,
    complete or not. Raises `RunNotFound`, with a hint of the existing generations.
    """
    run_no = find_run_no(connection, name)
    if run_no is not None:
        counted = connection.execute(
            "SELECT run_no FROM counted WHERE root_no = ?", (run_no,)
        ).scalar()
        return run_no if counted is None else int(counted)
    match = _GENERATION.fullmatch(name)
    root_no = None if match is None else find_run_no(connection, match[1])
    if match is None or root_no is None:
        return run_number(connection, name)
    known = connection.execute(
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
            f"committed slots, its last digest was {stone.chain_head}",
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
    known = list(connection.execute(sql).scalars())
    close = near_names(run_id, known, 3)
    names = close or known[:3]
    listed = " or ".join(names)
    raise RunNotFound(
        f"the ledger holds no run {run_id!r}",
        hint=f"did you mean {listed}?"
        if close
        else f"its {'newest runs are' if len(known) > 1 else 'only run is'} {', '.join(names)}"
        if names
        else "`labledger run` creates the first one",
    )


def find_run_no(connection: Connection, run_id: str) -> int | None:
    """Return the `run_no` of a run; None if the ledger does not hold it."""
    run_no = connection.execute("SELECT run_no FROM run WHERE run_id = ?", (run_id,)).scalar()
    return None if run_no is None else int(run_no)


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
    """The run whose agents ran: their tasks, metrics and events are its own."""
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

    def evidence(self, schedule_idx: int) -> Mapping[str, str]:
        """Return the references of the last attempt's evidence, by name."""
        record = self._scalar(_EVIDENCE_SQL, self.run_no, schedule_idx)
        return {} if record is None else json.loads(record)["evidence"]

    def artifact(self, sha256: str) -> bytes:
        """Return the content of an artifact, as `LedgerReader.artifact` does."""
        return read_artifact(self.connection, self.store, sha256)

    def _scalar(self, sql: str, *key: int) -> Any:
        return self.connection.execute(sql, key).scalar()


def read_artifact(connection: Connection, store: ArtifactStore, sha256: str) -> bytes:
    """Return the content of an artifact (64 hex digits), checked against its digest.

    Raises `LedgerError`.
    """
    row = connection.execute(
        "SELECT content FROM artifact WHERE sha256 = ?", (digest_bytes(sha256),)
    ).first()
    if row is None:
        raise LedgerError(f"the ledger has no artifact {sha256}")
    try:
        content: bytes = row[0] if row[0] is not None else store.path(sha256).read_bytes()
    except OSError as error:
        raise LedgerError(
            f"could not read artifact {sha256}: {error.strerror} ({store.path(sha256)})"
        ) from error
    return unchanged(content, sha256)


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
