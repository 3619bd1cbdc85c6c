"""The records and artifacts of a single trial: its rows, and the contents of its artifacts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO

from labledger.errors import LedgerError
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.records import JsonObject
from labledger.records.canonical_json import sha256_hex

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
