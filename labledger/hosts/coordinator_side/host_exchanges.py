"""The exchanges of one coordinator with the hosts of its run, in the thread of the connection.

There are two coroutines a host, one that delivers orders and one that asks what has happened, and
none a trial, beyond those that transfer files. An exchange that fails is repeated, to whatever
process the host has by then.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from labledger import clock
from labledger.clock import Backoff
from labledger.errors import HostLost, LabLedgerError
from labledger.files.artifact_store import ArtifactStore
from labledger.hosts.coordinator_side.host_capacity import BlockedHosts, HostCapacity
from labledger.hosts.coordinator_side.host_link import HostLink
from labledger.hosts.coordinator_side.host_results import BadResult, ResultTransfer
from labledger.hosts.coordinator_side.input_supply import InputSupply
from labledger.hosts.coordinator_side.store_relay import StoreRelay
from labledger.hosts.host_messages import (
    AttemptKey,
    Exchange,
    ExchangeReply,
    Failure,
    HostRefused,
    ResultMessage,
    RunSetup,
    SupersededEpoch,
    WrongSession,
    input_digests,
    needed_images,
)
from labledger.hosts.host_transport import ClusterConnection, FoundHost, HostUnreachable
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.disk_space import OutputUnreadable
from labledger.trial.life.start_limiter import StartRefused

_MAX_WAIT_S = 8.0
"""How long an exchange waits at a host for something to report."""
_CALL_MARGIN_S = 30.0
"""How much longer than that its reply may take."""
_STATE_INTERVAL_S = 5.0
_DISCOVERY_INTERVAL_S = 1.0
_PACE_S = 0.002
"""For each host of the run, how long a coroutine waits between two exchanges with the same host.
What happens meanwhile goes together. A scheduler has about a millisecond of work for each exchange,
so this bounds what all hosts ask of it; with few hosts it is not noticed."""
_LOSS_CHECK_S = 0.05
_NOT_A_HOST_FOR_S = 10.0
"""For how long a worker that is no host is not asked again."""
_MAX_WARNING = 1_000
_MAX_WARNINGS = 100
"""How many warnings of one reply are passed on, and how long each is at most."""
_RETRY_S = 0.5
_MAX_RETRY_S = 5.0


@dataclass(slots=True)
class ClusterState:
    """What the coordinator's thread and the thread of the connection share."""

    setup: RunSetup
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while links change. No call to a host is made meanwhile."""
    links: dict[str, HostLink] = field(default_factory=dict)
    host_capacity: HostCapacity = field(default_factory=HostCapacity)
    """What the links have room for. Updated after each change of a link, under the lock."""
    lost: dict[str, str] = field(default_factory=dict)
    """Why each host was declared lost."""
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

    def tell(self, warning: str) -> None:
        """Warn once."""
        if warning not in self.told:
            self.told.add(warning)
            self.warnings.put(warning)


class HostExchanges:
    """Talks to the hosts of a run for as long as its executor is open."""

    def __init__(
        self,
        connection: ClusterConnection,
        store: ArtifactStore,
        state: ClusterState,
        relay: StoreRelay,
    ) -> None:
        self._connection = connection
        self._state = state
        self._inputs = InputSupply(connection, store, relay)
        self._results = ResultTransfer(connection, store, state.setup.run, relay)
        self._tasks: set[Future[Any]] = set()
        self._shared_inputs = frozenset(state.setup.digests)
        """Digests of the staged files, which every attempt needs."""

    @property
    def sent_bytes(self) -> dict[str, int]:
        """How many bytes of inputs each host was sent in pieces, by its name."""
        return dict(self._inputs.sent_bytes)

    def close(self) -> None:
        """End every exchange."""
        for task in list(self._tasks):
            task.cancel()
        self._inputs.close()
        self._results.close()

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], link: HostLink | None) -> None:
        """Run `work`, about one host (`link`) or all, until it returns or the executor is closed.

        An exception that `work` does not handle is reported as a warning, and `work` is called
        again after a backoff, so it must be safe to call repeatedly.
        """
        future = self._connection.run(self._supervised(work, link))
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    async def _supervised(
        self, work: Callable[[], Coroutine[Any, Any, None]], link: HostLink | None
    ) -> None:
        backoff = _backoff()
        while True:
            try:
                await work()
            except Exception as error:
                whom = "the cluster" if link is None else link.name
                problem = f"{type(error).__name__}: {error}"[:_MAX_WARNING]
                self._state.tell(f"an exchange with {whom} broke and is tried again: {problem}")
                await asyncio.sleep(backoff.next_s())
            else:
                return

    def link(self, name: str) -> HostLink:
        """Return the link to a host, which need not have been seen yet. The lock is held."""
        link = self._state.links.get(name)
        if link is None:
            link = self._state.links[name] = HostLink(name, lost_because=self._state.lost.get(name))
            self.spawn(partial(self._deliver, link), link)
            self.spawn(partial(self._poll, link), link)
        return link

    async def discover(self) -> None:
        """Watch which workers the cluster has, and ask new ones which hosts they are."""
        not_hosts: dict[str, float] = {}
        trouble = ""
        while True:
            try:
                workers = await self._connection.transport.addresses()
            except LabLedgerError as error:
                trouble = error.message
                self._state.tell(trouble)
            else:
                self._state.told.discard(trouble)
                with self._state.lock:
                    known = {link.address for link in self._state.links.values()}
                    for link in self._state.links.values():
                        if link.address is not None and link.address not in workers:
                            self._disconnect(link)
                recently = time.monotonic() - _NOT_A_HOST_FOR_S
                not_hosts = {a: t for a, t in not_hosts.items() if t > recently}
                new = {a: workers[a] for a in workers if a not in known and a not in not_hosts}
                for found in await self._describe(new, workers):
                    if found.described is None:
                        not_hosts[found.address] = time.monotonic()
                    self._add(found)
            await asyncio.sleep(_DISCOVERY_INTERVAL_S)

    async def _describe(
        self, new: Mapping[str, str], workers: Mapping[str, str]
    ) -> list[FoundHost]:
        """Ask new workers which hosts they are, with those that were these hosts until now."""
        found = await self._connection.describe(new)
        with self._state.lock:
            links = [self._state.links.get(host.name) for host in found if host.described]
            used = {link.address for link in links if link is not None} & workers.keys()
        rivals = {address: workers[address] for address in used if address is not None}
        if not rivals:
            return found
        asked = {host.address: workers[host.address] for host in found if host.described}
        others = [host for host in found if host.address not in asked]
        return others + await self._connection.describe(asked | rivals)

    def _add(self, found: FoundHost) -> None:
        described = found.described
        if found.is_duplicate:
            with self._state.lock:
                link = self.link(found.name)
                self._disconnect(link)
                link.duplicates = found.problem
                self._state.host_capacity.update(link)
            self._state.tell(found.problem or "")
            return
        if described is None:
            with self._state.lock:
                hosts = {link.last_address for link in self._state.links.values()}
            # Of a host that does not answer now, this has been said.
            if found.address not in hosts:
                whom = found.name or "a worker of the cluster"
                self._state.tell(f"{whom} is not used: {found.problem}")
            return
        with self._state.lock:
            link = self.link(described.state.name)
            if link.is_connected and link.session == described.session:
                return
            for key in link.connect(found.address, described):
                self.spawn(partial(self.prepare, link, key), link)
            self._state.host_capacity.update(link)

    def _disconnect(self, link: HostLink) -> None:
        """Record that a host does not answer. The lock is held."""
        was_connected = link.is_connected
        link.disconnect()
        self._state.host_capacity.update(link)
        for each in link.leaving.values():
            set_result(each.future, None)
        if not was_connected:
            return
        if self._state.stopping:
            for attempt in link.pending.values():
                set_exception(attempt.future, StartRefused())
            link.pending.clear()
        elif link.pending and link.lost_because is None:
            self._state.warnings.put(
                f"{link.name} does not answer since {clock.utc_now()}; its trials go on there, and "
                "are collected when it is back"
            )
        self._state.host_capacity.update(link)

    def wake(self, link: HostLink) -> None:
        """Have orders of a link delivered. For other threads than that of the connection."""
        if not link.wake.is_set():
            self._connection.call_soon(link.wake.set)

    def has_inputs(self, link: HostLink, spec: AttemptSpec) -> bool:
        """Return whether a host certainly has everything that an attempt needs. With the lock."""
        known = link.known_inputs
        return link.is_connected and known.issuperset(self._needed(spec))

    def _needed(self, spec: AttemptSpec) -> set[str]:
        needed = set(needed_images(spec).values())
        return needed.union(input_digests(spec), self._shared_inputs)

    async def prepare(self, link: HostLink, key: AttemptKey) -> None:
        """Bring to the host what an attempt needs, and then have the attempt delivered."""
        backoff = _backoff()
        while True:
            with self._state.lock:
                pending = link.pending.get(key)
                if pending is None or pending.is_ready:
                    return
                spec, session = pending.spec, link.session
            if session is not None:
                digests = input_digests(spec) | self._shared_inputs
                try:
                    await self._inputs.provide(link, digests, needed_images(spec))
                except (HostUnreachable, WrongSession):
                    pass
                except LabLedgerError as error:
                    self._record_supply_problem(link, error.message)
                else:
                    with self._state.lock:
                        if link.session == session:
                            link.supply_problem = None
                            pending.is_ready = True
                            self._state.host_capacity.update(link)
                    link.wake.set()
                    continue
            await asyncio.sleep(backoff.next_s())

    def _record_supply_problem(self, link: HostLink, problem: str) -> None:
        with self._state.lock:
            if link.problem is None:
                link.blocked_since = time.monotonic()
            link.supply_problem = problem
            self._state.host_capacity.update(link)
        self._state.tell(f"{link.name}: {problem}")

    async def _deliver(self, link: HostLink) -> None:
        """Send orders to a host as soon as there are any, and the pace allows it."""
        backoff = _backoff()
        while True:
            with self._state.lock:
                has_orders = link.is_connected and link.has_orders(stopping=self._state.stopping)
            if not has_orders:
                await link.wake.wait()
                link.wake.clear()
                continue
            if await self._exchange(link, wait_s=0.0, with_orders=True):
                backoff.reset()
                await self._keep_pace()
            else:
                await asyncio.sleep(backoff.next_s())

    async def _poll(self, link: HostLink) -> None:
        """Ask a host what has happened, for as long as the run lasts."""
        backoff, state_due = _backoff(), 0.0
        while True:
            if not link.is_connected:
                await asyncio.sleep(_RETRY_S / 2)
                continue
            wants_state = time.monotonic() >= state_due or not link.has_answered
            lease_s = self._state.allowed_until - time.monotonic()
            wait_s = 0.0 if wants_state else min(_MAX_WAIT_S, max(lease_s / 3, 0.2))
            if await self._exchange(link, wait_s=wait_s, wants_state=wants_state):
                backoff.reset()
                if wants_state:
                    state_due = time.monotonic() + _STATE_INTERVAL_S
                await self._keep_pace()
            else:
                await asyncio.sleep(backoff.next_s())

    async def _keep_pace(self) -> None:
        await asyncio.sleep(_PACE_S * len(self._state.links))

    async def _exchange(
        self,
        link: HostLink,
        *,
        wait_s: float,
        with_orders: bool = False,
        wants_state: bool = False,
    ) -> bool:
        """Exchange once with a host. Return whether it answered."""
        with self._state.lock:
            if not link.is_connected or link.address is None:
                return False
            address = link.address
            request = link.next_exchange(
                self._state.setup,
                self._state.allowed_until,
                stopping=self._state.stopping,
                with_orders=with_orders,
            )
        request = replace(request, wait_s=wait_s, wants_state=wants_state)
        try:
            reply = await self._connection.call(address, request, wait_s + _CALL_MARGIN_S)
        except SupersededEpoch:
            self._state.superseded = True
            await asyncio.sleep(_MAX_RETRY_S)
            return False
        except (HostUnreachable, WrongSession):
            with self._state.lock:
                if link.session == request.session:
                    self._disconnect(link)
            return False
        except HostRefused as error:
            self._record_bad_reply(link, request, error.message, to_orders=with_orders)
            return False
        if (fault := _fault_of(reply, request, link)) is not None:
            self._record_bad_reply(link, request, f"its reply {fault}", to_orders=with_orders)
            return False
        with self._state.lock:
            if link.session != request.session:
                return True
            self._record_reply(link, request, reply)
            link.bad_replies.pop(with_orders, None)
            if not link.has_orders(stopping=self._state.stopping):
                link.bad_replies.pop(True, None)
            self._state.host_capacity.update(link)
        return True

    def _record_bad_reply(
        self, link: HostLink, request: Exchange, problem: str, *, to_orders: bool
    ) -> None:
        """Place nothing on a host until it answers as a host does."""
        with self._state.lock:
            if link.session != request.session:
                return
            if link.problem is None:
                link.blocked_since = time.monotonic()
            link.bad_replies[to_orders] = problem
            self._state.host_capacity.update(link)
        self._state.tell(f"{link.name}: {problem}")

    def _record_bad_result(self, link: HostLink, key: AttemptKey, problem: str) -> None:
        """Leave an attempt open whose result cannot be used. The lock is held."""
        link.bad_results[key] = f"its result of slot {key[0]} {problem}"
        self._state.host_capacity.update(link)
        self._state.tell(f"{link.name}: {link.bad_results[key]}")

    def _record_reply(self, link: HostLink, request: Exchange, reply: ExchangeReply) -> None:
        """Handle a reply. The lock is held."""
        was_blocked = link.problem is not None
        link.record_contact(reply.monotonic)
        link.record_delivery(request)
        if reply.state is not None:
            link.state = replace(reply.state, last_seen=clock.utc_now())
            link.started = reply.started
        if link.problem is not None and not was_blocked:
            link.blocked_since = time.monotonic()
            self._state.tell(f"{link.name}: {link.problem}")
        if reply.last_start_age_s is not None:
            created = time.monotonic() - reply.last_start_age_s
            self._state.last_start_created = max(self._state.last_start_created, created)
        self._record_ends(link, reply)
        for key, reason in reply.restarts:
            if (restarted := link.pending.get(key)) is not None:
                self._state.restarts.put((restarted.spec, reason))
        for key in reply.paused:
            if (paused := link.pending.get(key)) is not None:
                self._state.paused.put(paused.spec)
        for warning in reply.warnings[:_MAX_WARNINGS]:
            self._state.warnings.put(f"{link.name}: {warning[:_MAX_WARNING]}")

    def _record_ends(self, link: HostLink, reply: ExchangeReply) -> None:
        """Handle the attempts and removals that have ended. The lock is held."""
        link.started |= {message.key for message in reply.results}
        # What a lost host delivers is not accepted; its attempts end by `end_lost`.
        is_lost = link.lost_because is not None
        for message in reply.results:
            if message.key not in link.received:
                link.received.add(message.key)
                if message.key in link.pending and not is_lost:
                    self.spawn(partial(self._receive, link, message), link)
        for failure in reply.failures:
            link.received.add(failure.key)
            if is_lost or failure.key not in link.pending:
                continue
            is_refusal = failure.kind == "refused"
            if is_refusal and not self._state.stopping:
                self._record_bad_result(link, failure.key, "is a refusal, of a run that goes on")
                continue
            error = StartRefused() if is_refusal else self._uncollected(link, failure)
            set_exception(link.pending.pop(failure.key).future, error)
        for key in reply.removed:
            if (leaving := link.leaving.pop(key, None)) is not None:
                set_result(leaving.future, None)
            link.received.discard(key)
            link.confirmed.add(key)

    def _uncollected(self, link: HostLink, failure: Failure) -> OutputUnreadable:
        """Return the error for an attempt with which its host cannot go on."""
        run_id = self._state.setup.run.run_id
        return OutputUnreadable(
            failure.message,
            hint=f"fix that on {link.name}, then `labledger resume {run_id}`: what ran there is "
            "not run again",
        )

    async def end_lost(self, link: HostLink) -> None:
        """End the attempts of a host that was declared lost, once it certainly starts none of them.

        An attempt that it had prepared is so never started there after it was started elsewhere.
        """
        while link.may_start:
            await asyncio.sleep(_LOSS_CHECK_S)
        with self._state.lock:
            pending, link.pending = list(link.pending.values()), {}
            self._state.host_capacity.update(link)
        for attempt in pending:
            set_exception(
                attempt.future, HostLost(f"{link.name} was declared lost: {link.lost_because}")
            )

    async def _receive(self, link: HostLink, message: ResultMessage) -> None:
        """Make what belongs to a result durable here, and end its future."""
        with self._state.lock:
            pending = link.pending.get(message.key)
        if pending is None:
            return
        try:
            result = await self._results.receive(link, message, pending.spec)
        except BadResult as error:
            with self._state.lock:
                self._record_bad_result(link, message.key, error.message)
            return
        except (LabLedgerError, OSError) as error:
            if not isinstance(error, (HostUnreachable, WrongSession)):
                self._state.tell(f"a result of {link.name} could not be fetched: {error}")
            await asyncio.sleep(_RETRY_S)
            with self._state.lock:
                link.received.discard(message.key)
            return
        with self._state.lock:
            if link.lost_because is not None:
                return
            attempt = link.pending.pop(message.key, None)
            self._state.host_capacity.update(link)
            self._state.blocked.record_activity()
        if attempt is not None:
            set_result(attempt.future, result)


def _backoff() -> Backoff:
    return Backoff(_RETRY_S, _MAX_RETRY_S)


def _fault_of(reply: ExchangeReply, request: Exchange, link: HostLink) -> str | None:
    """Return what a reply cannot truly say, as the rest of a sentence, None if there is nothing."""
    age_s = reply.last_start_age_s
    if reply.session != request.session:
        return "is that of another process"
    if not math.isfinite(reply.monotonic) or (age_s is not None and not 0 <= age_s < math.inf):
        return "has a time that cannot be"
    if reply.state is not None:
        if reply.state.name != link.name:
            return f"is that of another host, {reply.state.name[:80]!r}"
        if (fault := reply.state.find_fault()) is not None:
            return f"says {fault}"
    return None


def set_result(future: Future[Any], result: Any) -> None:
    """End a future, unless it has ended."""
    with suppress(InvalidStateError):
        future.set_result(result)


def set_exception(future: Future[Any], error: BaseException) -> None:
    """End a future with an error, unless it has ended."""
    with suppress(InvalidStateError):
        future.set_exception(error)
