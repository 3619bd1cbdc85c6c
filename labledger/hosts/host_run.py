"""One run on a host, as its coordinators see it: epochs, marks, grants of time, and exchanges.

It refuses coordinators of an earlier epoch, and coordinators that have worked with another machine.
`HostAttempts` handles the attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labledger.errors import LedgerError
from labledger.hosts.host_attempts import HostAttempts
from labledger.hosts.host_messages import (
    AnotherHost,
    Exchange,
    ExchangeReply,
    RunSetup,
    SupersededEpoch,
    input_digests,
)
from labledger.trial.attempt_spec import AttemptSpec


@dataclass(slots=True)
class HostRun:
    """One run on a host."""

    host: str
    """The name of this host."""
    attempts: HostAttempts
    """The attempts. Their lock guards everything below."""
    _granted_until: float = 0.0
    _newest: int = 0
    """The highest number of this epoch's exchanges."""
    _mark: str | None = None
    """The mark that is certainly on the disk."""

    def enter_epoch(self, setup: RunSetup) -> None:
        """Serve the coordinator of an epoch from now on.

        Raises `SupersededEpoch` if a later one has been seen.
        """
        with self.attempts.changed:
            if setup.epoch < self.attempts.epoch:
                raise SupersededEpoch(
                    f"{setup.run.run_id} belongs to the coordinator of epoch "
                    f"{self.attempts.epoch}; the coordinator of epoch {setup.epoch} has lost it"
                )
            if setup.epoch > self.attempts.epoch or self.attempts.folder.read_epoch() is None:
                self.attempts.folder.write_epoch(setup.epoch)
                self._granted_until = 0.0
                self._newest = 0
                self.attempts.begin_epoch(setup.epoch)

    def exchange(self, request: Exchange) -> ExchangeReply:
        """Carry out the orders, wait for news, and return it."""
        self._keep_mark(request)
        request = self._without_late_orders(request)
        attempts, limiter = self.attempts, self.attempts.limiter
        new = self._with_shared_files(request.setup, request.attempts)
        # Kill before the grant is extended, within which they might start.
        for kill in request.kills:
            attempts.kill(kill)
        with attempts.changed:
            attempts.is_lost = attempts.is_lost or request.is_lost
            if attempts.is_lost:
                # The grant ends, also for prepared attempts. A delayed request cannot renew it.
                limiter.allow_until(0.0)
                limiter.close()
            elif request.grant_until is not None:
                # A delayed request must not shorten the grant of a later one.
                self._granted_until = max(self._granted_until, request.grant_until)
                limiter.allow_until(self._granted_until)
            if request.stopping:
                limiter.close()
        for removal in request.removals:
            attempts.remove(removal)
        for cancellation in request.cancellations:
            attempts.cancel(cancellation)
        recalled = {kill.spec.key for kill in request.kills if kill.spares_started}
        for spec in new:
            attempts.accept(spec, is_recalled=spec.key in recalled)
        with attempts.changed:
            attempts.unconfirmed -= request.confirmed
            attempts.changed.wait_for(lambda: attempts.has_news(request), request.wait_s)
        return attempts.report(request)

    def _without_late_orders(self, request: Exchange) -> Exchange:
        """Return a request without its attempts and kills if a later request was seen.

        Its attempts may have been recalled since, and attempts that it recalls may have been
        submitted again. The later request repeated its orders that still apply.
        """
        with self.attempts.changed:
            is_late = 0 < request.number < self._newest
            self._newest = max(self._newest, request.number)
        return replace(request, attempts=(), kills=()) if is_late else request

    def _keep_mark(self, request: Exchange) -> None:
        """Keep the coordinator's mark. Raises `AnotherHost` if it has worked with another machine.

        This machine may be a copy of that machine, or the same machine with a lost or restored
        folder. Attempts that began there would begin here again.
        """
        with self.attempts.changed:
            is_strange = not all(map(self.attempts.was_accepted, request.delivered_before))
            if self._mark != request.mark:
                stored_mark = self.attempts.folder.read_mark()
                is_known = stored_mark is None and self.host in request.setup.known_hosts
                is_strange |= stored_mark != request.mark and (request.is_marked or is_known)
            if is_strange:
                raise AnotherHost(
                    f"the machine that answers as {self.host} lacks data that this host has of run "
                    f"{request.setup.run.run_id}: it is a copy of the host, or its folder was "
                    "deleted or restored. Start the machine that began the trials, or declare the "
                    "host lost"
                )
            if self._mark != request.mark:
                self.attempts.folder.write_mark(request.mark)
                self._mark = request.mark

    def _with_shared_files(
        self, setup: RunSetup, attempts: Sequence[AttemptSpec]
    ) -> Sequence[AttemptSpec]:
        """Return the attempts whose programs are unchanged since the start of the run; fail others.

        The run's files are staged once. Files that an earlier process staged are compared.
        """
        accepted = []
        for spec in attempts:
            with self.attempts.changed:
                is_known = self.attempts.is_begun(spec.key)
            try:
                if not is_known:
                    self.attempts.shared_files.stage(setup, input_digests(spec.container))
                accepted.append(spec)
            except LedgerError as error:
                self.attempts.fail(spec.key, "uncollected", f"{spec.host}: {error.message}")
        return accepted
