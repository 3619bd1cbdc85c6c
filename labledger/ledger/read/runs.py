"""Read runs as `RunInfo`: experiment, progress, lease, takeover request and budget.

All queries run inside the caller's snapshot. `LedgerReader` and the writer use them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import (
    LeaseInfo,
    Owner,
    RunInfo,
    Stop,
    TakeoverRequest,
    Variant,
)
from labledger.records.outcomes import RunStatus

_RUN_SQL = """
SELECT run.run_no, run.run_id, run.experiment_id, run.name, run.created_at, run.resolved,
  run.authored, run.digest, run.source_path, run.images, run.labledger_version,
  schedule.total_slots, schedule.genesis_digest, progress.next_schedule_idx, progress.epoch,
  progress.status, progress.updated_at, progress.ended_at, lease.epoch, lease.host, lease.pid,
  lease.process_token, lease.acquired_at, lease.renewed_at, lease.expires_at,
  claim.host, claim.pid, claim.process_token, claim.claimed_at, claim.expires_at,
  (SELECT json_group_object(kind, amount) FROM budget WHERE budget.run_no = run.run_no),
  progress.stop_cause, progress.stop_message
FROM run
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress AS progress ON progress.run_no = run.run_no
LEFT JOIN lease ON lease.run_no = run.run_no
LEFT JOIN claim ON claim.run_no = run.run_no
"""


def all_runs(connection: Connection) -> list[RunInfo]:
    """Return every run, the newest first."""
    rows = connection.exec_driver_sql(f"{_RUN_SQL} ORDER BY run.run_no DESC").all()
    return [_run_info(connection, row) for row in rows]


def one_run(connection: Connection, run_no: int) -> RunInfo:
    """Return the run with a number."""
    result = connection.exec_driver_sql(f"{_RUN_SQL} WHERE run.run_no = ?", (run_no,))
    return _run_info(connection, result.one())


def variants(connection: Connection, run_no: int) -> tuple[Variant, ...]:
    """Return the variants of a run, in the order of the experiment."""
    rows = connection.exec_driver_sql(
        "SELECT variant_id, role, bindings FROM run_variant WHERE run_no = ? ORDER BY variant_idx",
        (run_no,),
    ).all()
    return tuple(Variant(name, role, json.loads(bindings)) for name, role, bindings in rows)


def _run_info(connection: Connection, row: Sequence[Any]) -> RunInfo:
    run_no, run_id, experiment_id, name, created_at, resolved, authored, digest = row[:8]
    source_path, images, version, total, genesis = row[8:13]
    next_idx, epoch, status, updated_at, ended_at = row[13:18]
    lease_epoch, host, pid, token, *times = row[18:25]
    lease = None
    if lease_epoch is not None:
        lease = LeaseInfo(run_id, lease_epoch, Owner(host, pid, token), *times)
    host, pid, token, *times = row[25:30]
    request = None if host is None else TakeoverRequest(Owner(host, pid, token), *times)
    return RunInfo(
        run_id=run_id,
        experiment_id=experiment_id,
        name=name,
        created_at=created_at,
        resolved_text=resolved,
        authored=authored,
        digest=digest,
        source_path=source_path,
        images=json.loads(images),
        labledger_version=version,
        total_slots=total,
        genesis_digest=genesis,
        variants=variants(connection, run_no),
        next_schedule_idx=next_idx,
        epoch=epoch,
        status=RunStatus(status),
        updated_at=updated_at,
        ended_at=ended_at,
        stop=Stop(row[31], row[32] or "") if row[31] is not None else None,
        lease=lease,
        takeover_request=request,
        budget=json.loads(row[30]),
        run_no=run_no,
    )
