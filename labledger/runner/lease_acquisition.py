"""Acquire a run's lease, wait for a takeover if requested, and release the lease after an error.

Only the owner may write a run: every write checks the lease's epoch. While the owner's lease lasts,
another coordinator can only request a takeover and wait. `heartbeat` renews the lease. Used by the
session.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from labledger import clock
from labledger.errors import LabLedgerError, LedgerError, TakeoverStopped
from labledger.ledger.database.model import Lease, LeaseInfo, Owner, Stop
from labledger.ledger.writer import LedgerWriter
from labledger.records.outcomes import RunStatus, StopCause
from labledger.run_control.events import run_event
from labledger.run_control.process_identity import process_is_dead, this_process
from labledger.run_control.stop_requests import on_signals
from labledger.runner.options import RunOptions

_REQUEST_LIFETIMES_PER_LEASE = 3
"""How many lifetimes of a takeover request a lease lasts. A request that is not renewed expires, so
that a coordinator that died while it waited does not delay others for long."""

_POLLS_PER_LEASE = 60
"""How often a waiting coordinator polls in the lifetime of a lease."""

_MAX_POLL_INTERVAL_S = 0.5


@contextmanager
def owning_run(writer: LedgerWriter, run_id: str, options: RunOptions) -> Iterator[Lease]:
    """Acquire a run's lease. If the body raises, release it and mark the run as interrupted.

    The body itself releases the lease of a run that ended normally. Raises `LeaseHeld`, and
    `TakeoverStopped` if a stop request ended the wait for a takeover.
    """
    lease = _acquire(writer, run_id, options)
    try:
        yield lease
    except BaseException as error:
        # If the release fails too, the lease expires, or is free once this process is dead.
        with suppress(LedgerError):
            writer.leases.release(lease, RunStatus.INTERRUPTED, _stop_of_failure(error))
        raise


def _stop_of_failure(error: BaseException) -> Stop:
    """Return the stop cause for a failed coordinator.

    Messages of exceptions of other libraries are not stored: they may contain secrets or paths.
    """
    message = error.message if isinstance(error, LabLedgerError) else type(error).__name__
    return Stop(StopCause.ERROR, f"the coordinator failed: {message}")


def _acquire(writer: LedgerWriter, run_id: str, options: RunOptions) -> Lease:
    owner = this_process()
    if not options.take_over:
        return writer.leases.acquire(run_id, owner, options.lease_ttl_s, is_dead=process_is_dead)
    try:
        with on_signals(options.stop_request):
            return _wait_for_takeover(writer, run_id, owner, options)
    except BaseException:
        with suppress(LedgerError):
            writer.leases.withdraw_request(run_id, owner)
        raise


def _wait_for_takeover(
    writer: LedgerWriter, run_id: str, owner: Owner, options: RunOptions
) -> Lease:
    """Repeat the takeover request until the lease is acquired.

    Raises `LeaseHeld`, and `TakeoverStopped` after a stop request.
    """
    ttl_s = options.lease_ttl_s
    announced_lease = None
    while True:
        request_ttl_s = ttl_s / _REQUEST_LIFETIMES_PER_LEASE
        lease = writer.leases.acquire_or_request(
            run_id, owner, ttl_s, request_ttl_s, is_dead=process_is_dead
        )
        if isinstance(lease, Lease):
            return lease
        if announced_lease != (lease.epoch, lease.expires_at):
            announced_lease = (lease.epoch, lease.expires_at)
            options.on_event(_waiting_event(lease))
        if options.stop_request.level > 0:
            raise TakeoverStopped(
                f"stopped waiting for run {run_id}; it stays with process {lease.owner.pid} on "
                f"{lease.owner.machine}",
                hint=f"`labledger status {run_id}` shows its progress",
            )
        time.sleep(min(ttl_s / _POLLS_PER_LEASE, _MAX_POLL_INTERVAL_S))


def _waiting_event(lease: LeaseInfo) -> dict[str, object]:
    left = (clock.parse(lease.expires_at) - clock.parse(clock.utc_now())).total_seconds()
    return run_event(
        "waiting_for_lease",
        run_id=lease.run_id,
        host=lease.owner.machine,
        pid=lease.owner.pid,
        since=lease.acquired_at,
        expires_at=lease.expires_at,
        seconds=round(max(left, 0.0), 1),
    )
