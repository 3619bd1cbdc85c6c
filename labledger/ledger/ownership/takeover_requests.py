"""Takeover requests: durable notes that another coordinator wants a run (table `claim`).

A request expires after a few seconds unless its sender renews it, so that the request of a
coordinator that died does not delay others for long. `lease_writer` calls these functions inside
its transactions.
"""

from __future__ import annotations

from labledger import clock
from labledger.errors import LeaseHeld
from labledger.ledger.commit_rows import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import Owner, TakeoverRequest
from labledger.ledger.ownership.leases import IsDead


def read_live(
    connection: Connection, run_no: int, now: str, is_dead: IsDead
) -> TakeoverRequest | None:
    """Return the request for a run, unless it has expired or its sender is dead."""
    row = connection.exec_driver_sql(statements.SELECT_CLAIM, (run_no,)).first()
    if row is None:
        return None
    host, pid, token, *times = row
    request = TakeoverRequest(Owner(host, pid, token), *times)
    return request if request.expires_at > now and not is_dead(request.owner) else None


def refuse_other_requester(request: TakeoverRequest | None, owner: Owner, run_id: str) -> None:
    """Raise `LeaseHeld` if another process than `owner` has requested the run."""
    if request is not None and request.owner != owner:
        raise LeaseHeld(
            f"run {run_id} is wanted by process {request.owner.pid} on {request.owner.machine} "
            f"since {request.requested_at}, which takes it over next",
            hint=f"stop that process, or leave the run to it: `labledger status {run_id}`",
        )


def store(
    connection: Connection,
    run_no: int,
    request: TakeoverRequest | None,
    owner: Owner,
    now: str,
    ttl_s: float,
) -> None:
    """Store the owner's request for `ttl_s` seconds, or extend `request`, its earlier one.

    A request that lasts for more than half of `ttl_s` is left as it is.
    """
    if request is not None and request.expires_at > clock.later(now, ttl_s / 2):
        return
    since = now if request is None else request.requested_at
    expires_at = clock.later(now, ttl_s)
    connection.exec_driver_sql(
        statements.UPSERT_CLAIM,
        (run_no, owner.host, owner.pid, owner.process_token, since, expires_at),
    )


def delete(connection: Connection, run_no: int) -> None:
    """Delete any request for a run: the run has a new owner."""
    connection.exec_driver_sql("DELETE FROM claim WHERE run_no = ?", (run_no,))
