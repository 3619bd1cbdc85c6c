"""Owning a run: taking it, waiting for it where another coordinator has it, and keeping it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from labledger import clock
from labledger.errors import LabLedgerError, LedgerError, WaitStopped
from labledger.ledger.model import Lease, LeaseInfo, Owner, Renewal, Stop
from labledger.ledger.writer import LedgerWriter
from labledger.records import RunStatus, StopCause
from labledger.runner.events import Listener, event
from labledger.runner.executors import LocalTrials
from labledger.runner.lease import is_dead, this_process
from labledger.runner.options import RunOptions
from labledger.runner.stopping import on_signals

HEARTBEATS = 6
"""How often a lease is renewed in the time that it lasts."""

_CLAIMS = 3
"""A claim lasts this part of a lease: an asker that is gone holds nobody up for long."""

_LOOKS = 60
"""How often an asker looks in the time that a lease lasts."""

_LONGEST_PAUSE_S = 0.5

_MARGIN = 0.1
"""The part of its lease in which an owner starts nothing any more, because it ends so soon."""


@contextmanager
def owned(writer: LedgerWriter, run_id: str, options: RunOptions) -> Iterator[Lease]:
    """The run's lease. Where what follows fails, the run is given back as interrupted."""
    lease = _take(writer, run_id, options)
    try:
        yield lease
    except BaseException as error:
        # Where that fails too, the lease ends with its time or with this process.
        with suppress(LedgerError):
            writer.release_lease(lease, RunStatus.INTERRUPTED, _failure(error))
        raise


def _failure(error: BaseException) -> Stop:
    """Why a coordinator stopped that failed. What others than labledger say is not kept."""
    message = error.message if isinstance(error, LabLedgerError) else type(error).__name__
    return Stop(StopCause.ERROR, f"the coordinator failed: {message}")


def _take(writer: LedgerWriter, run_id: str, options: RunOptions) -> Lease:
    owner = this_process()
    if not options.take_over:
        return writer.acquire_lease(run_id, owner, options.lease_ttl_s, is_dead=is_dead)
    try:
        with on_signals(options.stop):
            return _wait(writer, run_id, owner, options)
    except BaseException:
        with suppress(LedgerError):
            writer.withdraw_claim(run_id, owner)
        raise


def _wait(writer: LedgerWriter, run_id: str, owner: Owner, options: RunOptions) -> Lease:
    """Claim the run until it can be taken. Raises `LeaseHeld` and `WaitStopped`."""
    ttl_s = options.lease_ttl_s
    told = None
    while True:
        found = writer.claim_lease(run_id, owner, ttl_s, ttl_s / _CLAIMS, is_dead=is_dead)
        if isinstance(found, Lease):
            return found
        if told != (found.epoch, found.expires_at):
            told = (found.epoch, found.expires_at)
            options.tell(_waiting(found))
        if options.stop.level > 0:
            raise WaitStopped(
                f"stopped waiting for run {run_id}; it stays with process {found.owner.pid} on "
                f"{found.owner.machine}",
                hint=f"`labledger status {run_id}` shows how it goes on",
            )
        time.sleep(min(ttl_s / _LOOKS, _LONGEST_PAUSE_S))


def _waiting(held: LeaseInfo) -> dict[str, object]:
    left = (clock.parse(held.expires_at) - clock.parse(clock.utc_now())).total_seconds()
    return event(
        "waiting_for_lease",
        run_id=held.run_id,
        host=held.owner.machine,
        pid=held.owner.pid,
        since=held.acquired_at,
        expires_at=held.expires_at,
        seconds=round(max(left, 0.0), 1),
    )


@dataclass(slots=True)
class Heartbeat:
    """Renews a lease, lets trials be started only as long as it lasts, and tidies the ledger."""

    writer: LedgerWriter
    lease: Lease
    trials: LocalTrials
    tell: Listener
    _last: float | None = None
    _told_of: set[str] = field(default_factory=set)

    def beat(self) -> None:
        """Renew the lease if it is time. Raises `LeaseLost`."""
        now = time.monotonic()
        if self._last is not None and now - self._last <= self.lease.ttl_s / HEARTBEATS:
            return
        renewal = self.writer.renew_lease(self.lease, is_dead=is_dead)
        self._last = now
        until = clock.parse(renewal.expires_at).timestamp()
        self.trials.start_until(until - _MARGIN * self.lease.ttl_s)
        self.writer.shrink_log()
        self._tell_if_wanted(renewal)

    def _tell_if_wanted(self, renewal: Renewal) -> None:
        claim = renewal.claim
        if claim is not None and claim.claimed_at not in self._told_of:
            self._told_of.add(claim.claimed_at)
            self.tell(
                event(
                    "run_wanted",
                    run_id=self.lease.run_id,
                    host=claim.owner.machine,
                    pid=claim.owner.pid,
                    since=claim.claimed_at,
                    expires_at=renewal.expires_at,
                )
            )
