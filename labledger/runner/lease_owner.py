"""Ownership of a run: acquiring its lease, waiting for another owner's, and renewing it.

Only the owner may write a run: every write checks the lease's epoch. While the owner's lease lasts,
another coordinator can only request a takeover and wait. Used by the session and, for renewals, by
the commit queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from labledger import clock
from labledger.errors import LabLedgerError, LedgerError, TakeoverStopped
from labledger.ledger.database.model import Lease, LeaseInfo, Owner, Renewal, Stop
from labledger.ledger.writer import LedgerWriter
from labledger.records.outcomes import RunStatus, StopCause
from labledger.run_control.events import Listener, run_event
from labledger.run_control.process_identity import process_is_dead, this_process
from labledger.run_control.stop_requests import on_signals
from labledger.runner.options import RunOptions
from labledger.runner.trial_executor import LocalExecutor

HEARTBEATS = 6
"""How many renewals are due in the lifetime of a lease."""

_REQUEST_LIFETIMES_PER_LEASE = 3
"""A takeover request expires after this fraction of a lease, unless it is renewed: a coordinator
that died while it waited delays nobody for long."""

_POLLS_PER_LEASE = 60
"""How often a waiting coordinator polls in the lifetime of a lease."""

_LONGEST_POLL_S = 0.5

_MARGIN = 0.1
"""The last part of its lease, as a fraction, in which an owner starts nothing any more."""


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
        # If that fails too, the lease expires, or is free once this process is dead.
        with suppress(LedgerError):
            writer.leases.release(lease, RunStatus.INTERRUPTED, _failure(error))
        raise


def _failure(error: BaseException) -> Stop:
    """Return the stop cause for a failed coordinator.

    Messages of foreign exceptions are not stored: they may contain secrets or paths.
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
    """Request the run until its lease is acquired. Raises `LeaseHeld`, `TakeoverStopped`."""
    ttl_s = options.lease_ttl_s
    announced = None
    while True:
        request_ttl_s = ttl_s / _REQUEST_LIFETIMES_PER_LEASE
        lease = writer.leases.acquire_or_request(
            run_id, owner, ttl_s, request_ttl_s, is_dead=process_is_dead
        )
        if isinstance(lease, Lease):
            return lease
        if announced != (lease.epoch, lease.expires_at):
            announced = (lease.epoch, lease.expires_at)
            options.on_event(_waiting_event(lease))
        if options.stop_request.level > 0:
            raise TakeoverStopped(
                f"stopped waiting for run {run_id}; it stays with process {lease.owner.pid} on "
                f"{lease.owner.machine}",
                hint=f"`labledger status {run_id}` shows its progress",
            )
        time.sleep(min(ttl_s / _POLLS_PER_LEASE, _LONGEST_POLL_S))


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


@dataclass(slots=True)
class Heartbeat:
    """Renews a run's lease, and does what depends on it.

    Each renewal extends the time in which the executor may start containers, truncates a large
    write-ahead log, and reports a takeover request.
    """

    writer: LedgerWriter
    lease: Lease
    executor: LocalExecutor
    emit: Listener
    _last_renewal: float | None = None
    _announced: set[str] = field(default_factory=set)

    def renew_if_due(self) -> None:
        """Renew the lease if a renewal is due. Raises `LeaseLost`."""
        now = time.monotonic()
        if (
            self._last_renewal is not None
            and now - self._last_renewal <= self.lease.ttl_s / HEARTBEATS
        ):
            return
        renewal = self.writer.leases.renew(self.lease, is_dead=process_is_dead)
        self._last_renewal = now
        expires = clock.parse(renewal.expires_at).timestamp()
        self.executor.allow_starts_until(expires - _MARGIN * self.lease.ttl_s)
        self.writer.shrink_log()
        self._report_takeover_request(renewal)

    def _report_takeover_request(self, renewal: Renewal) -> None:
        request = renewal.takeover_request
        if request is not None and request.requested_at not in self._announced:
            self._announced.add(request.requested_at)
            self.emit(
                run_event(
                    "run_wanted",
                    run_id=self.lease.run_id,
                    host=request.owner.machine,
                    pid=request.owner.pid,
                    since=request.requested_at,
                    expires_at=renewal.expires_at,
                )
            )
