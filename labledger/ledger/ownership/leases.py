"""Read who owns a run, and check that a lease is still current.

Each function runs inside the caller's transaction. `lease_writer` changes leases; imports, upgrades
and `unit_of_work` check them.
"""

from __future__ import annotations

from collections.abc import Callable

from labledger.errors import LeaseHeld, LeaseLost
from labledger.ledger.commit_rows import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import Lease, LeaseInfo, Owner

IsDead = Callable[[Owner], bool]
"""Returns whether an owner's process has certainly ended."""


def checked_next_slot(connection: Connection, lease: Lease) -> int:
    """Return the run's next slot. Raise `LeaseLost` unless the run is in the lease's epoch."""
    progress = connection.exec_driver_sql(statements.SELECT_PROGRESS, (lease.run_no,)).first()
    if progress is None:
        raise LeaseLost(f"run {lease.run_id} was deleted; nothing more was written")
    epoch, next_idx = progress
    if epoch != lease.epoch:
        raise lease_lost_error(connection, lease)
    return int(next_idx)


def read_lease(connection: Connection, run_no: int) -> LeaseInfo | None:
    """Return the lease of a run that has one, even if it has expired."""
    row = connection.exec_driver_sql(statements.SELECT_LEASE, (run_no,)).first()
    if row is None:
        return None
    run_id, epoch, host, pid, token, *times = row
    return LeaseInfo(run_id, epoch, Owner(host, pid, token), *times)


def live_lease(connection: Connection, run_no: int, now: str, is_dead: IsDead) -> LeaseInfo | None:
    """Return the lease of a run if it keeps others from acquiring the run now, else None."""
    lease = read_lease(connection, run_no)
    if lease is None or lease.expires_at <= now or is_dead(lease.owner):
        return None
    return lease


def refuse_live_lease(
    connection: Connection, run_no: int, run_id: str, now: str, is_dead: IsDead
) -> None:
    """Raise `LeaseHeld` while the lease of a live owner lasts."""
    lease = live_lease(connection, run_no, now, is_dead)
    if lease is not None:
        raise LeaseHeld(
            f"run {run_id} belongs to process {lease.owner.pid} on {lease.owner.machine} since "
            f"{lease.acquired_at}; its lease lasts until {lease.expires_at}",
            hint="leave the run to that process or stop it; "
            f"`labledger resume {run_id} --take-over` waits for the run and takes it",
        )


def lease_lost_error(connection: Connection, lease: Lease) -> LeaseLost:
    """Return the error for a process that lost its lease; it names the run's present owner."""
    present = read_lease(connection, lease.run_no)
    if present is None:
        cause = "another process has acquired and released its lease since"
    else:
        cause = (
            f"process {present.owner.pid} on {present.owner.machine} acquired it at "
            f"{present.acquired_at}"
        )
    return LeaseLost(
        f"run {lease.run_id} no longer belongs to this process: {cause}; nothing more was written",
        hint=f"`labledger status {lease.run_id}` shows how the run continues",
    )
