"""The heartbeat: renews the lease of a run while its owner works on it.

A lease that is not renewed in time expires, and another coordinator may then take over the run. So
no container is started near the end of a lease. Used by the commit queue, in the coordinator's
thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from labledger import clock
from labledger.executors.executor import TrialExecutor
from labledger.ledger.database.model import Lease, Renewal
from labledger.ledger.writer import LedgerWriter
from labledger.run_control.events import Listener, run_event
from labledger.run_control.process_identity import process_is_dead

RENEWALS_PER_LEASE = 6
"""How often a lease is renewed in its lifetime."""

_MARGIN = 0.1
"""The last part of a lease, as a fraction, in which its owner starts no container."""


@dataclass(slots=True)
class Heartbeat:
    """Renews a run's lease, and does what has to be done as often.

    Each renewal extends the time in which the executor may start containers, truncates a large
    write-ahead log, and reports a takeover request.
    """

    writer: LedgerWriter
    lease: Lease
    executor: TrialExecutor
    emit: Listener
    on_renewal: Callable[[], object] = lambda: None
    """Called after each renewal: the session reads then what others have written of the run."""
    _last_renewal: float | None = None
    _reported_requests: set[str] = field(default_factory=set)

    @property
    def is_due(self) -> bool:
        """Whether the lease is to be renewed now."""
        interval_s = self.lease.ttl_s / RENEWALS_PER_LEASE
        return self._last_renewal is None or time.monotonic() - self._last_renewal > interval_s

    def renew(self) -> None:
        """Renew the lease. Raises `LeaseLost`."""
        now = time.monotonic()
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
