"""The writer's methods about who owns a run, and who wants it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import Lease, LeaseInfo, Owner, Renewal, Stop
from labledger.ledger.ownership import leases, takeover_requests
from labledger.ledger.read.lookup import run_number
from labledger.records.outcomes import RunStatus


class OwnerWriter(ABC):
    """Takes runs, keeps them and gives them back: each method is one transaction."""

    _now: Callable[[], str]

    @abstractmethod
    def _transaction(self, what: str) -> AbstractContextManager[Connection]:
        """A transaction in which to do `what`."""

    def acquire_lease(
        self,
        run_id: str,
        owner: Owner,
        ttl_s: float,
        *,
        is_dead: Callable[[Owner], bool] = lambda _: False,
    ) -> Lease:
        """Own a run, in a new epoch that fences off every earlier owner.

        A lease that lasts is taken over only where `is_dead` says so of its owner. Raises
        `LeaseHeld` and `RunNotFound`.
        """
        with self._transaction(f"take the lease of run {run_id}") as connection:
            run_no = run_number(connection, run_id)
            return leases.take(connection, run_no, run_id, owner, ttl_s, self._now(), is_dead)

    def claim_lease(
        self,
        run_id: str,
        owner: Owner,
        ttl_s: float,
        claim_s: float,
        *,
        is_dead: Callable[[Owner], bool] = lambda _: False,
    ) -> Lease | LeaseInfo:
        """Own a run as `acquire_lease` does; where it is held, claim it and return its holder.

        From then on the holder's lease is not made longer, as long as this is called again before
        `claim_s` seconds are over. Raises `LeaseHeld` where another process has claimed the run.
        """
        with self._transaction(f"claim run {run_id}") as connection:
            run_no = run_number(connection, run_id)
            return leases.take_or_claim(
                connection, run_no, run_id, owner, ttl_s, claim_s, self._now(), is_dead
            )

    def withdraw_claim(self, run_id: str, owner: Owner) -> None:
        """Want a run no longer."""
        with self._transaction(f"withdraw the claim on run {run_id}") as connection:
            takeover_requests.withdraw(connection, run_number(connection, run_id), owner)

    def renew_lease(
        self, lease: Lease, *, is_dead: Callable[[Owner], bool] = lambda _: False
    ) -> Renewal:
        """Make the lease last `ttl_s` from now, unless a live process claims the run.

        Raises `LeaseLost`.
        """
        with self._transaction(f"renew the lease of run {lease.run_id}") as connection:
            return leases.renew(connection, lease, self._now(), is_dead)

    @contextmanager
    def while_owned(self, lease: Lease) -> Iterator[None]:
        """A moment in which nobody can take the run, for what no transaction can hold.

        Keep it short: nobody else writes to the ledger meanwhile. Raises `LeaseLost`.
        """
        with self._transaction(f"check the lease of run {lease.run_id}") as connection:
            leases.check(connection, lease)
            yield

    def release_lease(self, lease: Lease, status: RunStatus, stop: Stop | None = None) -> None:
        """Give the run back as `status`, with why it stopped early, where it did.

        Raises `LeaseLost`; `completed` needs every slot.
        """
        with self._transaction(f"release the lease of run {lease.run_id}") as connection:
            leases.give_back(connection, lease, status, self._now(), stop)
