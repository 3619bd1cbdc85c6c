"""Own a run: acquire its lease, renew it, and notice that the ledger's file was replaced.

Only the owner may write a run. While its lease lasts, another coordinator can only request a
takeover and wait. If the ledger's file was removed or replaced, the owner copies the ledger that it
has open into the lab folder, and removes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from labledger import clock
from labledger.errors import LabLedgerError, LedgerError, TakeoverStopped
from labledger.execution.executor import TrialExecutor
from labledger.execution.process_identity import process_is_dead, this_process
from labledger.execution.run_events import Listener, on_signals, run_event
from labledger.export import mirrors
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.ledger.database.run_info import Lease, LeaseInfo, Owner, Renewal, Stop
from labledger.ledger.reader import LedgerReader
from labledger.ledger.rows.lookup import ledger_holds_run
from labledger.ledger.writer import LedgerWriter
from labledger.records.outcomes import RunStatus, StopCause
from labledger.runner.run_options import RunOptions

RENEWALS_PER_LEASE = 6
"""How often a lease is renewed in its lifetime."""

_MARGIN = 0.1
"""The last part of a lease, as a fraction, in which its owner starts no container."""


@dataclass(slots=True)
class Heartbeat:
    """Renews a run's lease, and does other regular work with each renewal.

    Each renewal extends the time in which the executor may start containers, truncates a large
    write-ahead log, and reports a takeover request.
    """

    writer: LedgerWriter
    lease: Lease
    executor: TrialExecutor
    emit: Listener
    on_renewal: Callable[[], object] = lambda: None
    """Called after each renewal, to read what other processes wrote about the run."""
    _last_renewal: float | None = None
    _reported_requests: set[str] = field(default_factory=set)

    @property
    def is_due(self) -> bool:
        """Whether the lease is to be renewed now."""
        interval_s = self.lease.ttl_s / RENEWALS_PER_LEASE
        return self._last_renewal is None or clock.monotonic() - self._last_renewal > interval_s

    def renew(self) -> None:
        """Renew the lease. Raises `LeaseLost`."""
        now = clock.monotonic()
        renewal = self.writer.leases.renew(self.lease, is_dead=process_is_dead)
        self._last_renewal = now
        expires = clock.parse(renewal.expires_at).timestamp()
        self.executor.allow_starts_until(expires - _MARGIN * self.lease.ttl_s)
        self.writer.shrink_log()
        self._report_takeover_request(renewal)
        self.on_renewal()

    def _report_takeover_request(self, renewal: Renewal) -> None:
        request = renewal.takeover_request
        if request is not None and request.requested_at not in self._reported_requests:
            self._reported_requests.add(request.requested_at)
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


_REQUEST_LIFETIMES_PER_LEASE = 3
"""How many lifetimes of a takeover request a lease lasts. Unrenewed requests expire, so that a
coordinator that died while it waited does not delay others for long."""

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
    if not options.placement.take_over:
        ttl_s = options.placement.lease_ttl_s
        return writer.leases.acquire(run_id, owner, ttl_s, is_dead=process_is_dead)
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
    ttl_s = options.placement.lease_ttl_s
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
        clock.sleep(min(ttl_s / _POLLS_PER_LEASE, _MAX_POLL_INTERVAL_S))


def _waiting_event(lease: LeaseInfo) -> dict[str, object]:
    remaining_s = (clock.parse(lease.expires_at) - clock.parse(clock.utc_now())).total_seconds()
    return run_event(
        "waiting_for_lease",
        run_id=lease.run_id,
        host=lease.owner.machine,
        pid=lease.owner.pid,
        since=lease.acquired_at,
        expires_at=lease.expires_at,
        seconds=round(max(remaining_s, 0.0), 1),
    )


def rescue_run(lab: LabFolder, writer: LedgerWriter, run_id: str) -> str:
    """Save the ledger that the writer has open, and return a hint how to restore the run."""
    timestamp = clock.utc_now().replace(":", "").replace("-", "").replace(".", "")
    saved = lab.root / f"ledger.sqlite.replaced-{timestamp}"
    try:
        lab.create()
        writer.save_replaced(saved)
    except (LabLedgerError, OSError) as error:
        return (
            f"it could not be saved: {error}; `labledger import {lab.run_folder(run_id)}` adds "
            "the trials in its mirrors, if the run folder is still there"
        )
    with suppress(LabLedgerError, OSError):
        _complete_mirrors(lab, saved, run_id)
    return (
        f"the open ledger is saved in {saved}, and every container and trial folder of the run "
        f"was left alone. If the present ledger holds nothing new, replace {lab.ledger} by "
        f"{saved.name} and delete {lab.ledger.name}-wal and {lab.ledger.name}-shm: "
        f"`labledger resume {run_id}` then continues where the run stopped. Otherwise "
        f"`labledger import {saved} --run {run_id}` adds the saved trials"
    )


def _complete_mirrors(lab: LabFolder, saved: Path, run_id: str) -> None:
    """Write the chain file that an import of the run folder needs, if the ledger lacks the run."""
    folder = lab.run_folder(run_id)
    if folder.is_dir() and not ledger_holds_run(lab.ledger, run_id):
        with LedgerReader.open(saved, ArtifactStore(lab.artifacts)) as reader:
            mirrors.write_chain(reader, run_id, folder / mirrors.CHAIN_PATH)
