"""Acquire, renew and release the lease of a run, and request a takeover: `LedgerWriter.leases`.

A run has at most one lease. Each new owner has a new, larger epoch, which fences off every earlier
one. While another process requests a takeover, renewals do not extend the lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from labledger import clock
from labledger.errors import LedgerError
from labledger.ledger.commit_rows import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import Lease, LeaseInfo, Owner, Renewal, Stop
from labledger.ledger.ownership import leases, takeover_requests
from labledger.ledger.ownership.leases import IsDead
from labledger.ledger.ownership.unit_of_work import UnitOfWork
from labledger.ledger.read.lookup import run_number
from labledger.records.outcomes import RunStatus
from labledger.text.phrases import counted_of


class LeaseWriter:
    """Changes who owns a run. Each method is one transaction."""

    def __init__(self, work: UnitOfWork) -> None:
        self._work = work

    def acquire(
        self, run_id: str, owner: Owner, ttl_s: float, *, is_dead: IsDead = lambda _: False
    ) -> Lease:
        """Acquire a run in a new epoch, for `ttl_s` seconds.

        A lease that has not expired is taken over only if `is_dead` returns True for its owner.
        Raises `LeaseHeld` if a live owner has the run or another process has requested it, and
        `RunNotFound`.
        """
        with self._work.transaction(f"acquire the lease of run {run_id}") as connection:
            run_no, now = run_number(connection, run_id), self._work.now()
            return _acquire(connection, run_no, run_id, owner, ttl_s, now, is_dead)

    def acquire_or_request(
        self,
        run_id: str,
        owner: Owner,
        ttl_s: float,
        request_ttl_s: float,
        *,
        is_dead: IsDead = lambda _: False,
    ) -> Lease | LeaseInfo:
        """Acquire a run, or store a takeover request and return the lease of its owner.

        From then on the owner's lease is not extended, as long as this is called again before
        `request_ttl_s` seconds have passed. Raises `LeaseHeld` if another process has requested
        the run.
        """
        with self._work.transaction(f"request the takeover of run {run_id}") as connection:
            run_no, now = run_number(connection, run_id), self._work.now()
            request = takeover_requests.read_live(connection, run_no, now, is_dead)
            takeover_requests.refuse_other_requester(request, owner, run_id)
            current = leases.live_lease(connection, run_no, now, is_dead)
            if current is None:
                return _acquire(connection, run_no, run_id, owner, ttl_s, now, is_dead)
            takeover_requests.store(connection, run_no, request, owner, now, request_ttl_s)
            return current

    def withdraw_request(self, run_id: str, owner: Owner) -> None:
        """Delete the owner's takeover request for a run."""
        with self._work.transaction(
            f"withdraw the takeover request for run {run_id}"
        ) as connection:
            connection.exec_driver_sql(
                statements.DELETE_CLAIM,
                (run_number(connection, run_id), owner.host, owner.pid, owner.process_token),
            )

    def renew(self, lease: Lease, *, is_dead: IsDead = lambda _: False) -> Renewal:
        """Extend the lease to `ttl_s` from now, unless a live process has requested the run.

        Raises `LeaseLost`.
        """
        with self._work.transaction(f"renew the lease of run {lease.run_id}") as connection:
            stored, now = leases.read_lease(connection, lease.run_no), self._work.now()
            if stored is None or stored.epoch != lease.epoch:
                raise leases.lease_lost_error(connection, lease)
            request = takeover_requests.read_live(connection, lease.run_no, now, is_dead)
            expires_at = clock.later(now, lease.ttl_s) if request is None else stored.expires_at
            connection.exec_driver_sql(
                statements.RENEW_LEASE, (now, expires_at, lease.run_no, lease.epoch)
            )
            return Renewal(expires_at, request)

    @contextmanager
    def while_owned(self, lease: Lease) -> Iterator[None]:
        """Keep others from acquiring the run during a block that writes files.

        Raises `LeaseLost`. Keep the block short: meanwhile, nobody else can write to the ledger.
        """
        with self._work.owned(lease, f"check the lease of run {lease.run_id}"):
            yield

    def release(self, lease: Lease, status: RunStatus, stop: Stop | None = None) -> None:
        """Delete the lease; store the run's status, and why it stopped if it stopped early.

        Raises `LeaseLost`, and `LedgerError` for `completed` unless every slot is committed.
        """
        key = (lease.run_no, lease.epoch)
        with self._work.transaction(f"release the lease of run {lease.run_id}") as connection:
            if connection.exec_driver_sql(statements.DELETE_LEASE, key).rowcount != 1:
                raise leases.lease_lost_error(connection, lease)
            now = self._work.now()
            ended_at = now
            if status is RunStatus.COMPLETED:
                _require_all_committed(connection, lease)
                ended_at = _last_commit_time(connection, lease)
            cause, message = (stop.cause, stop.message) if stop else (None, None)
            connection.exec_driver_sql(
                statements.END_EPOCH, (status.value, now, ended_at, cause, message, lease.run_no)
            )


def _acquire(
    connection: Connection,
    run_no: int,
    run_id: str,
    owner: Owner,
    ttl_s: float,
    now: str,
    is_dead: IsDead,
) -> Lease:
    leases.refuse_live_lease(connection, run_no, run_id, now, is_dead)
    request = takeover_requests.read_live(connection, run_no, now, is_dead)
    takeover_requests.refuse_other_requester(request, owner, run_id)
    takeover_requests.delete(connection, run_no)
    epoch = connection.exec_driver_sql(statements.SELECT_PROGRESS, (run_no,)).one()[0] + 1
    process = (owner.host, owner.pid, owner.process_token)
    connection.exec_driver_sql(
        statements.UPSERT_LEASE, (run_no, epoch, *process, now, now, clock.later(now, ttl_s))
    )
    connection.exec_driver_sql(statements.BEGIN_EPOCH, (epoch, now, run_no))
    return Lease(run_no, run_id, epoch, ttl_s)


def _last_commit_time(connection: Connection, lease: Lease) -> str:
    """Return when the run became complete. Resuming a complete run does not change that time."""
    result = connection.exec_driver_sql(
        "SELECT committed_at FROM slot_commit WHERE run_no = ? ORDER BY schedule_idx DESC LIMIT 1",
        (lease.run_no,),
    )
    return str(result.scalar_one())


def _require_all_committed(connection: Connection, lease: Lease) -> None:
    total = connection.exec_driver_sql(
        "SELECT total_slots FROM schedule WHERE run_no = ?", (lease.run_no,)
    ).scalar_one()
    next_idx = leases.checked_next_slot(connection, lease)
    if next_idx != total:
        committed = counted_of(next_idx, total, "slot")
        raise LedgerError(f"run {lease.run_id} is not complete: {committed} are committed")
