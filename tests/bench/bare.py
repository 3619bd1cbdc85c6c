"""The baseline of the ledger's writer: the bare SQLite driver writes the rows of a commit.

File format, tables, triggers, settings and rows are the same. The rows are prepared, so this writer
needs no checks, digests, records or reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from labledger.ledger.database import statements
from labledger.ledger.database.run_info import Lease
from labledger.ledger.database.sqlite import writable_engine
from labledger.ledger.rows import leases, slot_commits, slot_rows
from labledger.records import canonical_json
from labledger.records.attempt_result import AttemptResult

Rows = list[tuple[str, Sequence[tuple[Any, ...]]]]
"""Statements with the rows that they write."""

_NOW = "2026-01-31T12:00:02.000Z"
_DIGEST = "d" * 64


class BareWriter:
    """A connection of the driver's own, set up as the ledger's writer sets up its connection."""

    def __init__(self, path: Path) -> None:
        self._engine = writable_engine(path)
        self._connection = self._engine.connect()
        self._driver: Any = self._connection.driver

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._engine.dispose()

    def value(self, sql: str) -> Any:
        """Return the single value of a query."""
        return self._driver.execute(sql).fetchone()[0]

    def commit(self, rows: Rows) -> None:
        """Write all rows in one transaction."""
        execute, executemany = self._driver.execute, self._driver.executemany
        execute("BEGIN IMMEDIATE")
        for statement, values in rows:
            executemany(statement, values)
        execute("COMMIT")


def commit_rows(lease: Lease, result: AttemptResult) -> Rows:
    """Return everything that a commit of `result` writes."""
    return [*_progress(lease, result), *_artifacts(result), *_published(lease, result)]


def stage_rows(lease: Lease, result: AttemptResult) -> Rows:
    """Return everything that staging `result` writes."""
    payload = canonical_json.dumps(result.as_json())
    staged = (lease.run_no, result.schedule_idx, result.attempt, 1, payload, _NOW)
    return [*_artifacts(result), (statements.insert("staged_result"), [staged])]


def commit_staged_rows(lease: Lease, result: AttemptResult) -> Rows:
    """Return everything that the commit of a staged `result` writes."""
    key = (lease.run_no, result.schedule_idx)
    published = _published(lease, result)
    return [*_progress(lease, result), *published, (slot_commits._DELETE_STAGED, [key])]


def _progress(lease: Lease, result: AttemptResult) -> Rows:
    idx = result.schedule_idx
    return [(leases._ADVANCE, [(idx + 1, _NOW, lease.run_no, idx, lease.epoch)])]


def _artifacts(result: AttemptResult) -> Rows:
    values = [(bytes.fromhex(a.sha256), a.size, a.content) for a in result.artifacts]
    return [(statements.insert("artifact", unless_exists="sha256"), values)]


def _published(lease: Lease, result: AttemptResult) -> Rows:
    rows = slot_rows.slot_rows(lease.run_no, [result])
    commit = (
        lease.run_no,
        result.schedule_idx,
        result.slot_commit_id,
        result.status.value,
        result.reason,
        lease.epoch,
        _NOW,
        _DIGEST,
        _DIGEST,
    )
    return [
        (statements.insert("slot_commit"), [commit]),
        (statements.insert("trial"), [rows.trial]),
        (statements.insert("attempt"), rows.attempts),
        (statements.insert("metric"), rows.metrics),
        (statements.insert("event"), tuple(rows.events)),
        (statements.insert("prediction"), rows.predictions),
        (statements.insert("score"), rows.scores),
        (statements.insert("evidence_record"), rows.evidence),
    ]
