"""On which hosts of a cluster the attempts of an imported run ran, as their evidence says.

An import copies no journal of containers: those belong to the ledger that started them. The
evidence of an attempt on a host of a cluster names that host, and so the imported run gets a row of
the journal for it, from which the views take `host`. Used by the import of runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection
from labledger.storage.batches import batched

_ROWS_PER_BATCH = 500
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}/[0-9a-f]{8}")
"""The name of a host: an imported record may hold anything."""

_EVIDENCE_SQL = (
    "SELECT evidence_record.schedule_idx, evidence_record.attempt, slot_commit.epoch, "
    "attempt.container, evidence_record.record, attempt.started_at FROM evidence_record "
    "JOIN slot_commit ON slot_commit.run_no = evidence_record.run_no "
    "AND slot_commit.schedule_idx = evidence_record.schedule_idx "
    "JOIN attempt ON attempt.run_no = evidence_record.run_no "
    "AND attempt.schedule_idx = evidence_record.schedule_idx "
    "AND attempt.attempt = evidence_record.attempt "
    "WHERE evidence_record.run_no = ? AND evidence_record.schedule_idx >= ? "
    "AND instr(evidence_record.record, '\"host\":{') > 0"
)
_INSERT_DISPATCH = row_sql.insert("dispatch", unless_exists="run_no, schedule_idx, attempt, epoch")


def journal_hosts(connection: Connection, run_no: int, run_id: str, start: int) -> None:
    """Journal the hosts that the evidence of imported slots names, from slot `start` on."""
    for batch in batched(_dispatches(connection, run_no, run_id, start), _ROWS_PER_BATCH):
        connection.exec_driver_sql(_INSERT_DISPATCH, list(batch))


def _dispatches(
    connection: Connection, run_no: int, run_id: str, start: int
) -> Iterator[tuple[int, int, int, int, str, str, str]]:
    rows = connection.exec_driver_sql(_EVIDENCE_SQL, (run_no, start))
    for idx, attempt, epoch, container, record, started_at in rows:
        host = _host(record)
        if host is not None and container.endswith(f"-{run_id}-{idx}-{attempt}"):
            yield run_no, idx, attempt, epoch, container, host, started_at


def _host(record: str) -> str | None:
    """Return the host that an evidence record names, None if it names none."""
    extension = json.loads(record).get("ext")
    host = extension.get("host") if isinstance(extension, dict) else None
    if not isinstance(host, dict):
        return None
    name = f"{host.get('name')}/{host.get('id')}"
    return name if _HOST.fullmatch(name) else None
