"""Find the hosts of a run, and keep what is known of them while they come and go.

`ClusterState` is shared by the coordinator's thread and that of the connection. A host is known
from its first answer, or from the ledger, which names it with an open attempt; it has one link for
as long as the executor is open, whichever processes it has meanwhile.
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
from labledger.trial.attempt_spec import AttemptSpec

_DISCOVERY_INTERVAL_S = 1.0
_NOT_A_HOST_FOR_S = 10.0
"""For how long a worker that is no host is not asked again."""
MAX_WARNING = 1_000
RETRY_S = 0.5
MAX_RETRY_S = 5.0

Work = Callable[[], Coroutine[Any, Any, None]]
"""Called again after a failure, so it must be safe to call repeatedly."""


@dataclass(slots=True)
class ClusterState:
    """What the coordinator's thread and the thread of the connection share."""

    setup: RunSetup
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while links change. No call to a host is made meanwhile."""
    links: dict[str, HostLink] = field(default_factory=dict)
    host_capacity: HostCapacity = field(default_factory=HostCapacity)
    """What the links have room for. Updated after each change of a link, under the lock."""
    restarts: SimpleQueue[tuple[AttemptSpec, str]] = field(default_factory=SimpleQueue)
    paused: SimpleQueue[AttemptSpec] = field(default_factory=SimpleQueue)
    warnings: SimpleQueue[str] = field(default_factory=SimpleQueue)
    told: set[str] = field(default_factory=set)
    """Warnings that are not repeated."""
    blocked: BlockedHosts = field(default_factory=BlockedHosts)
    allowed_until: float = float("-inf")
    """Until when containers may be started, by this machine's monotonic clock."""
    stopping: bool = False
    abandoned: bool = False
    superseded: bool = False
    """Whether a host has said that a later coordinator owns the run."""
    last_start_created: float = float("-inf")
    """When the newest container that could be started was created, by the monotonic clock."""

    @contextmanager
    def changing(self, link: HostLink) -> Iterator[None]:
        """Hold the lock while a link is changed, and take note of what it has become."""
        with self.lock:
            was_blocked = link.problem is not None
            yield
            if link.problem is not None and not was_blocked:
                link.blocked_since = clock.monotonic()
            self.host_capacity.update(link)

    def tell(self, warning: str) -> None:
        """Warn once."""
        if warning not in self.told:
            self.told.add(warning)
            self.warnings.put(warning)


@dataclass(slots=True)
class HostDiscovery:
    """Watches which hosts a cluster has, and runs what is to be done about each."""

    connection: ClusterConnection
    state: ClusterState
    serve: Callable[[HostLink], Iterable[Work]]
    """Returns what runs for each host from when it is known."""
    prepare: Callable[[HostLink, AttemptKey], Coroutine[Any, Any, None]]
    """Called for each attempt whose inputs a host may lack because it has another process now."""
    _tasks: set[Future[Any]] = field(default_factory=set)

    def close(self) -> None:
        """End everything that was spawned."""
        for task in list(self._tasks):
            task.cancel()

    def spawn(self, work: Work, link: HostLink | None) -> None:
        """Run `work`, about one host (`link`) or all, until it returns or the executor is closed.

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
                self.state.tell(f"an exchange with {whom} broke and is tried again: {problem}")
                await asyncio.sleep(backoff.next_s())
            else:
                return

    def link(self, name: str) -> HostLink:
        """Return the link to a host, which need not have been seen yet. The lock is held."""
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
                self.state.tell(trouble)
            else:
                self.state.told.discard(trouble)
                with self.state.lock:
                    known = {link.address for link in self.state.links.values()}
                    for link in self.state.links.values():
                        if link.address is not None and link.address not in workers:
                            self.disconnect(link)
                recently = clock.monotonic() - _NOT_A_HOST_FOR_S
                not_hosts = {a: t for a, t in not_hosts.items() if t > recently}
                new = {a: workers[a] for a in workers if a not in known and a not in not_hosts}
                for found in await self._describe(new, workers):
                    if found.described is None:
                        not_hosts[found.address] = clock.monotonic()
                    self._add(found)
            await asyncio.sleep(_DISCOVERY_INTERVAL_S)

    async def _describe(
        self, new: Mapping[str, str], workers: Mapping[str, str]
    ) -> list[FoundHost]:
        """Ask new workers which hosts they are, with those that were these hosts until now."""
        found = await self.connection.describe(new)
        with self.state.lock:
            links = [self.state.links.get(host.name) for host in found if host.described]
            used = {link.address for link in links if link is not None} & workers.keys()
        rivals = {address: workers[address] for address in used if address is not None}
        if not rivals:
            return found
        asked = {host.address: workers[host.address] for host in found if host.described}
        others = [host for host in found if host.address not in asked]
        return others + await self.connection.describe(asked | rivals)

    def _add(self, found: FoundHost) -> None:
        described = found.described
        if found.is_duplicate:
            with self.state.lock:
                link = self.link(found.name)
                self.disconnect(link)
                with self.state.changing(link):
                    link.duplicates = found.problem
            self.state.tell(found.problem or "")
            return
        if described is None:
            with self.state.lock:
                hosts = {link.last_address for link in self.state.links.values()}
            # Of a host that does not answer now, this has been said.
            if found.address not in hosts:
                whom = found.name or "a worker of the cluster"
                self.state.tell(f"{whom} is not used: {found.problem}")
            return
        with self.state.lock:
            link = self.link(described.state.name)
            if link.is_connected and link.session == described.session:
                return
            with self.state.changing(link):
                for key in link.connect(found.address, described):
                    self.spawn(partial(self.prepare, link, key), link)

    def disconnect(self, link: HostLink) -> None:
        """Record that a host does not answer."""
        with self.state.changing(link):
            was_connected = link.is_connected
            link.disconnect()
            for each in link.leaving.values():
                set_result(each.future, None)
            if was_connected and self.state.stopping:
                for attempt in link.pending.values():
                    attempt.refuse()
                link.pending.clear()
            elif was_connected and link.pending and link.lost_because is None:
                self.state.warnings.put(
                    f"{link.name} does not answer since {clock.utc_now()}; its trials go on there, "
                    "and are collected when it is back"
                )


def exchange_backoff() -> Backoff:
    return Backoff(RETRY_S, MAX_RETRY_S)
