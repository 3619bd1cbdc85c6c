"""Who owns a run: taking, renewing and giving back its lease, inside the writer's transactions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection

from labledger import clock
from labledger.errors import LeaseHeld, LeaseLost, LedgerError
from labledger.ledger import statements
from labledger.ledger.model import Lease, LeaseInfo, Owner
from labledger.records import RunStatus


def take(
    connection: Connection,
    run_no: int,
    run_id: str,
    owner: Owner,
    ttl_s: float,
    now: str,
    holder_is_dead: Callable[[LeaseInfo], bool],
) -> Lease:
    """Own a run in a new epoch. Raises `LeaseHeld` while a live owner's lease lasts."""
    held = holder(connection, run_no)
    if held is not None and held.expires_at > now and not holder_is_dead(held):
        raise LeaseHeld(
            f"run {run_id} belongs to process {held.owner.pid} on {held.owner.machine} since "
            f"{held.acquired_at}; its lease lasts until {held.expires_at}",
            hint="stop that process, or wait until its lease has expired",
        )
    epoch = connection.exec_driver_sql(statements.SELECT_PROGRESS, (run_no,)).one()[0] + 1
    connection.exec_driver_sql(
        statements.UPSERT_LEASE,
        (
            run_no,
            epoch,
            owner.host,
            owner.pid,
            owner.process_token,
            now,
            now,
            expiry(now, ttl_s),
        ),
    )
    connection.exec_driver_sql(statements.BEGIN_EPOCH, (epoch, now, run_no))
    return Lease(run_no, run_id, epoch, ttl_s)


def renew(connection: Connection, lease: Lease, now: str) -> None:
    """Make the lease last another `ttl_s` from now. Raises `LeaseLost`."""
    until = expiry(now, lease.ttl_s)
    renewed = connection.exec_driver_sql(
        statements.RENEW_LEASE, (now, until, lease.run_no, lease.epoch)
    )
    if renewed.rowcount != 1:
        raise lost(connection, lease)


def give_back(connection: Connection, lease: Lease, status: RunStatus, now: str) -> None:
    """End the lease and say how the run stands. Raises `LeaseLost`."""
    if (
        connection.exec_driver_sql(statements.DELETE_LEASE, (lease.run_no, lease.epoch)).rowcount
        != 1
    ):
        raise lost(connection, lease)
    if status is RunStatus.COMPLETED:
        _require_all_committed(connection, lease)
    ended_at = None if status is RunStatus.RUNNING else now
    connection.exec_driver_sql(statements.END_EPOCH, (status.value, now, ended_at, lease.run_no))


def check(connection: Connection, lease: Lease) -> int:
    """Raise `LeaseLost` unless the run is still in the lease's epoch; return its next slot."""
    epoch, next_idx = connection.exec_driver_sql(statements.SELECT_PROGRESS, (lease.run_no,)).one()
    if epoch != lease.epoch:
        raise lost(connection, lease)
    return int(next_idx)


def holder(connection: Connection, run_no: int) -> LeaseInfo | None:
    """Who owns the run, by the ledger's word; the lease may have expired."""
    row = connection.exec_driver_sql(statements.SELECT_LEASE, (run_no,)).first()
    if row is None:
        return None
    run_id, epoch, host, pid, token, *times = row
    return LeaseInfo(run_id, epoch, Owner(host, pid, token), *times)


def lost(connection: Connection, lease: Lease) -> LeaseLost:
    """The error that says who has the run now."""
    now_held = holder(connection, lease.run_no)
    if now_held is None:
        who = "its lease was taken and given back since"
    else:
        who = (
            f"process {now_held.owner.pid} on {now_held.owner.machine} took it at "
            f"{now_held.acquired_at}"
        )
    return LeaseLost(
        f"run {lease.run_id} no longer belongs to this process: {who}; nothing more was written",
        hint=f"`labledger status {lease.run_id}` shows how it goes on",
    )


def expiry(now: str, ttl_s: float) -> str:
    return clock.iso(clock.parse(now) + timedelta(seconds=ttl_s))


def _require_all_committed(connection: Connection, lease: Lease) -> None:
    total = connection.exec_driver_sql(
        "SELECT total_slots FROM schedule WHERE run_no = ?", (lease.run_no,)
    ).scalar_one()
    next_idx = check(connection, lease)
    if next_idx != total:
        raise LedgerError(
            f"run {lease.run_id} is not complete: {next_idx} of {total} slots are committed"
        )
