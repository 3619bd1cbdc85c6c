"""What a run was started with, and needs to go on: its staged files and its tasks' workspaces."""

from __future__ import annotations

import json
from collections.abc import Iterator

from labledger.ledger.database.connection import Connection
from labledger.storage.artifact_store import ArtifactStore

_RESOLVED_SQL = "SELECT resolved FROM run WHERE run_no = ?"
_WORKSPACES_SQL = """
SELECT tar, size, task_id, count(*), min(task_idx) FROM (
  SELECT task_idx, task_id,
    CASE WHEN json_valid(body) THEN json_extract(body, '$.workspace.tar') END AS tar,
    CASE WHEN json_valid(body) THEN json_extract(body, '$.workspace.size') END AS size
  FROM run_task JOIN task_payload ON task_payload.payload_digest = run_task.payload_digest
  WHERE run_no = ?)
WHERE tar IS NOT NULL GROUP BY tar ORDER BY min(task_idx)"""
"""Each workspace's tar with the first task that has it, and how many have."""


def problems(connection: Connection, store: ArtifactStore, run_no: int) -> Iterator[str]:
    """What of it is not in the store as it was frozen, as sentences."""
    try:
        frozen = [*_files(connection, run_no), *_workspaces(connection, run_no)]
        for _, sha256, _ in frozen:
            bytes.fromhex(sha256)  # Or it names no file of the store.
    except (ValueError, LookupError, TypeError, AttributeError):
        yield "the files that it was started with cannot be told from its resolved experiment"
        return
    for what, sha256, size in frozen:
        problem = store.find_damage(sha256, size)
        if problem is not None:
            yield f"{what}: artifact {sha256} {problem}"


def _files(connection: Connection, run_no: int) -> Iterator[tuple[str, str, int]]:
    document = json.loads(connection.exec_driver_sql(_RESOLVED_SQL, (run_no,)).scalar_one())
    for phase, entries in document.get("files", {}).items():
        for entry in entries:
            yield f"{phase} file {entry['name']}", entry["sha256"], entry["size"]


def _workspaces(connection: Connection, run_no: int) -> Iterator[tuple[str, str, int]]:
    for sha256, size, task_id, count, _ in connection.exec_driver_sql(_WORKSPACES_SQL, (run_no,)):
        others = f" and {count - 1} more" if count > 1 else ""
        yield f"workspace of task {task_id}{others}", sha256, size
