"""Who owns a run: taking, renewing and giving back its lease, inside the writer's transactions."""

from __future__ import annotations

from collections.abc import Callable

from labledger import clock
from labledger.errors import LeaseHeld, LeaseLost, LedgerError
from labledger.ledger.commit import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import Lease, LeaseInfo, Owner, Renewal, Stop
from labledger.ledger.ownership import takeover_requests
from labledger.records.outcomes import RunStatus


def take(
    connection: Connection,
    run_no: int,
    run_id: str,
    owner: Owner,
    ttl_s: float,
    now: str,
    is_dead: Callable[[Owner], bool],
) -> Lease:
    """Own a run in a new epoch.

    Raises `LeaseHeld` while a live owner's lease lasts, or somebody else wants the run.
    """
    refuse_held(connection, run_no, run_id, now, is_dead)
    takeover_requests.refuse_other(
        takeover_requests.live(connection, run_no, now, is_dead), owner, run_id
    )
    takeover_requests.end(connection, run_no)
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
            clock.later(now, ttl_s),
        ),
    )
    connection.exec_driver_sql(statements.BEGIN_EPOCH, (epoch, now, run_no))
    return Lease(run_no, run_id, epoch, ttl_s)


def take_or_claim(
    connection: Connection,
    run_no: int,
    run_id: str,
    owner: Owner,
    ttl_s: float,
    claim_s: float,
    now: str,
    is_dead: Callable[[Owner], bool],
) -> Lease | LeaseInfo:
    """Own a run, or leave the mark that it is wanted and say who holds it.

    Raises `LeaseHeld` where somebody else wants it already.
    """
    claim = takeover_requests.live(connection, run_no, now, is_dead)
    takeover_requests.refuse_other(claim, owner, run_id)
    held = live_holder(connection, run_no, now, is_dead)
    if held is None:
        return take(connection, run_no, run_id, owner, ttl_s, now, is_dead)
    takeover_requests.keep(connection, run_no, claim, owner, now, claim_s)
    return held


def renew(
    connection: Connection, lease: Lease, now: str, is_dead: Callable[[Owner], bool]
) -> Renewal:
    """Make the lease last another `ttl_s` from now, unless the run is wanted. Raises `LeaseLost`.

    The holder of a wanted run keeps it for as long as it was promised, and no longer.
    """
    held = holder(connection, lease.run_no)
    if held is None or held.epoch != lease.epoch:
        raise lost(connection, lease)
    claim = takeover_requests.live(connection, lease.run_no, now, is_dead)
    until = clock.later(now, lease.ttl_s) if claim is None else held.expires_at
    connection.exec_driver_sql(statements.RENEW_LEASE, (now, until, lease.run_no, lease.epoch))
    return Renewal(until, claim)


def give_back(
    connection: Connection, lease: Lease, status: RunStatus, now: str, stop: Stop | None
) -> None:
    """End the lease and say how the run stands, and why it stopped. Raises `LeaseLost`."""
    if (
        connection.exec_driver_sql(statements.DELETE_LEASE, (lease.run_no, lease.epoch)).rowcount
        != 1
    ):
        raise lost(connection, lease)
    if status is RunStatus.COMPLETED:
        _require_all_committed(connection, lease)
    ended_at = _last_commit(connection, lease) if status is RunStatus.COMPLETED else now
    cause, message = (stop.cause, stop.message) if stop else (None, None)
    connection.exec_driver_sql(
        statements.END_EPOCH, (status.value, now, ended_at, cause, message, lease.run_no)
    )


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


def live_holder(
    connection: Connection, run_no: int, now: str, is_dead: Callable[[Owner], bool]
) -> LeaseInfo | None:
    """Who owns the run and may go on owning it; None where the run can be taken."""
    held = holder(connection, run_no)
    if held is None or held.expires_at <= now or is_dead(held.owner):
        return None
    return held


def refuse_held(
    connection: Connection,
    run_no: int,
    run_id: str,
    now: str,
    is_dead: Callable[[Owner], bool],
) -> None:
    """Raise `LeaseHeld` while a live owner's lease lasts."""
    held = live_holder(connection, run_no, now, is_dead)
    if held is not None:
        raise LeaseHeld(
            f"run {run_id} belongs to process {held.owner.pid} on {held.owner.machine} since "
            f"{held.acquired_at}; its lease lasts until {held.expires_at}",
            hint="leave the run to that process or stop it; "
            f"`labledger resume {run_id} --take-over` waits for the run and takes it",
        )


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


def _last_commit(connection: Connection, lease: Lease) -> str:
    """When the run became complete, however often it is resumed since."""
    found = connection.exec_driver_sql(
        "SELECT committed_at FROM slot_commit WHERE run_no = ? ORDER BY schedule_idx DESC LIMIT 1",
        (lease.run_no,),
    )
    return str(found.scalar_one())


def _require_all_committed(connection: Connection, lease: Lease) -> None:
    total = connection.exec_driver_sql(
        "SELECT total_slots FROM schedule WHERE run_no = ?", (lease.run_no,)
    ).scalar_one()
    next_idx = check(connection, lease)
    if next_idx != total:
        raise LedgerError(
            f"run {lease.run_id} is not complete: {next_idx} of {total} slots are committed"
        )
