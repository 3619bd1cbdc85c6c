"""Find the hosts of a run, and track them while they come and go.

The coordinator's thread and the connection's thread share `ClusterState`. A host is known from its
first answer, or from the ledger if it has an open attempt. It has one link as long as the executor
is open, across its processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from labledger import clock
from labledger.clock import Backoff
from labledger.errors import LabLedgerError
from labledger.hosts.coordinator_side.host_capacity import BlockedHosts, HostCapacity
from labledger.hosts.coordinator_side.host_link import HostLink, set_result
from labledger.hosts.host_messages import AttemptKey, RunSetup
from labledger.hosts.host_transport import ClusterConnection, FoundHost
from labledger.trial.container_spec import ContainerSpec

_DISCOVERY_INTERVAL_S = 1.0
_NOT_A_HOST_FOR_S = 10.0
"""How many seconds a worker that is no host is not asked again."""
MAX_WARNING = 1_000
RETRY_S = 0.5
MAX_RETRY_S = 5.0

Work = Callable[[], Coroutine[Any, Any, None]]
"""A coroutine function that is called again after a failure, so calls may repeat."""


@dataclass(slots=True)
class ClusterState:
    """The state that the coordinator's thread and the connection's thread share."""

    setup: RunSetup
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while links change, but never during a call to a host."""
    links: dict[str, HostLink] = field(default_factory=dict)
    host_capacity: HostCapacity = field(default_factory=HostCapacity)
    """The room on hosts. Updated after each change of a link, under the lock."""
    restarts: SimpleQueue[tuple[ContainerSpec, str]] = field(default_factory=SimpleQueue)
    paused: SimpleQueue[ContainerSpec] = field(default_factory=SimpleQueue)
    warnings: SimpleQueue[str] = field(default_factory=SimpleQueue)
    reported: set[str] = field(default_factory=set)
    """Warnings that were reported, and are not repeated."""
    blocked: BlockedHosts = field(default_factory=BlockedHosts)
    allowed_until: float = float("-inf")
    """The time until which containers may start, by this machine's monotonic clock."""
    stopping: bool = False
    abandoned: bool = False
    superseded: bool = False
    """Whether a host reported that a later coordinator owns the run."""
    last_start_created: float = float("-inf")
    """When the newest container that started was created, by the monotonic clock."""

    @contextmanager
    def changing(self, link: HostLink) -> Iterator[None]:
        """Hold the lock during a change of a link, and update the totals after it."""
        with self.lock:
            was_blocked = link.problem is not None
            yield
            if link.problem is not None and not was_blocked:
                link.blocked_since = clock.monotonic()
            self.host_capacity.update(link)

    def warn_once(self, warning: str) -> None:
        """Queue a warning, unless it was reported before."""
        if warning not in self.reported:
            self.reported.add(warning)
            self.warnings.put(warning)


@dataclass(slots=True)
class HostDiscovery:
    """Watches the hosts of a cluster, and runs the work for each."""

    connection: ClusterConnection
    state: ClusterState
    serve: Callable[[HostLink], Iterable[Work]]
    """Returns the work to run for a host as long as it is known."""
    prepare: Callable[[HostLink, AttemptKey], Coroutine[Any, Any, None]]
    """Called for each attempt whose inputs a new process of a host may lack."""
    _tasks: set[Future[Any]] = field(default_factory=set)

    def close(self) -> None:
        """Cancel all spawned work."""
        for task in list(self._tasks):
            task.cancel()

    def spawn(self, work: Work, link: HostLink | None) -> None:
        """Run `work` for one host (`link`) or for all, until it returns or the executor is closed.

        An exception that `work` does not handle is reported as a warning, and `work` is called
        again after a backoff, so it must be safe to call repeatedly.
        """
        future = self.connection.run(self._supervised(work, link))
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    async def _supervised(self, work: Work, link: HostLink | None) -> None:
        backoff = exchange_backoff()
        while True:
            try:
                await work()
            except Exception as error:
                whom = "the cluster" if link is None else link.name
                problem = f"{type(error).__name__}: {error}"[:MAX_WARNING]
                self.state.warn_once(
                    f"an exchange with {whom} failed and will be retried: {problem}"
                )
                await asyncio.sleep(backoff.next_s())
            else:
                return

    def link(self, name: str) -> HostLink:
        """Return the link to a host, even before its first answer. The lock is held."""
        link = self.state.links.get(name)
        if link is None:
            needs_preparation = self.state.setup.needs_preparation
            link = self.state.links[name] = HostLink(name, needs_preparation=needs_preparation)
            for work in self.serve(link):
                self.spawn(work, link)
        return link

    async def discover(self) -> None:
        """Watch which workers the cluster has, and ask new ones which hosts they are."""
        not_hosts: dict[str, float] = {}
        trouble = ""
        while True:
            try:
                workers = await self.connection.transport.addresses()
            except LabLedgerError as error:
                trouble = error.message
                self.state.warn_once(trouble)
            else:
                self.state.reported.discard(trouble)
                with self.state.lock:
                    known = {link.address for link in self.state.links.values()}
                    for link in self.state.links.values():
                        if link.address is not None and link.address not in workers:
                            self.disconnect(link)
                recently = clock.monotonic() - _NOT_A_HOST_FOR_S
                not_hosts = {a: t for a, t in not_hosts.items() if t > recently}
                new = {a: workers[a] for a in workers if a not in known and a not in not_hosts}
                for host in await self._describe(new, workers):
                    if host.described is None:
                        not_hosts[host.address] = clock.monotonic()
                    self._add(host)
            await asyncio.sleep(_DISCOVERY_INTERVAL_S)

    async def _describe(
        self, new: Mapping[str, str], workers: Mapping[str, str]
    ) -> list[FoundHost]:
        """Ask new workers which hosts they are, and the present workers of these hosts too."""
        hosts = await self.connection.describe(new)
        with self.state.lock:
            links = [self.state.links.get(host.name) for host in hosts if host.described]
            used = {link.address for link in links if link is not None} & workers.keys()
        rivals = {address: workers[address] for address in used if address is not None}
        if not rivals:
            return hosts
        claimants = {host.address: workers[host.address] for host in hosts if host.described}
        others = [host for host in hosts if host.address not in claimants]
        return others + await self.connection.describe(claimants | rivals)

    def _add(self, host: FoundHost) -> None:
        described = host.described
        if host.is_duplicate:
            with self.state.lock:
                link = self.link(host.name)
                self.disconnect(link)
                with self.state.changing(link):
                    link.duplicates = host.problem
            self.state.warn_once(host.problem or "")
            return
        if described is None:
            with self.state.lock:
                addresses = {link.last_address for link in self.state.links.values()}
            # `disconnect` has already warned of a known host that does not answer.
            if host.address not in addresses:
                whom = host.name or "a worker of the cluster"
                self.state.warn_once(f"{whom} is not used: {host.problem}")
            return
        with self.state.lock:
            link = self.link(described.state.name)
            if link.is_connected and link.session == described.session:
                return
            with self.state.changing(link):
                for key in link.connect(host.address, described):
                    self.spawn(partial(self.prepare, link, key), link)

    def disconnect(self, link: HostLink) -> None:
        """Record that a host does not answer."""
        with self.state.changing(link):
            was_connected = link.is_connected
            link.disconnect()
            for removal in link.leaving.values():
                set_result(removal.future, None)
            if was_connected and self.state.stopping:
                for attempt in link.pending.values():
                    attempt.refuse()
                link.pending.clear()
            elif was_connected and link.pending and link.lost_because is None:
                self.state.warnings.put(
                    f"{link.name} has not answered since {clock.utc_now()}; its trials continue "
                    "there, and are collected when it is back"
                )


def exchange_backoff() -> Backoff:
    return Backoff(RETRY_S, MAX_RETRY_S)
