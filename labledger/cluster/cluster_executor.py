"""The executor of runs on a cluster: places attempts on hosts and collects their results.

The coordinator's thread never waits for a network: its calls change what is in memory, and the
thread of the connection exchanges it with the hosts. Each host decides what happens to the attempts
that belong to it; see `host_run`. An exchange that fails is repeated, to whatever process the host
has by then. There are two coroutines a host, and none a trial, beyond those that transfer files.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from labledger import clock
from labledger.cluster.blocked_hosts import BlockedHosts
from labledger.cluster.host_cleanup import clean_up_hosts
from labledger.cluster.host_inputs import input_digests, needed_images
from labledger.cluster.host_link import HostLink, Leaving, Pending, attempt_key
from labledger.cluster.host_messages import (
    AttemptKey,
    Cancellation,
    Exchange,
    ExchangeReply,
    HostRefused,
    Removal,
    ResultMessage,
    RunKey,
    RunSetup,
    SupersededEpoch,
    WrongSession,
)
from labledger.cluster.host_transport import ClusterConnection, FoundHost, HostUnreachable
from labledger.cluster.input_supply import InputSupply
from labledger.cluster.result_transfer import ResultTransfer
from labledger.errors import HostLost, LabLedgerError
from labledger.executors.executor import HostState, RunRecords
from labledger.executors.local_executor import drain
from labledger.executors.placement import choose_host
from labledger.experiment.inputs.staged_files import StagedFile
from labledger.records.attempt_result import AttemptResult
from labledger.storage.artifact_store import ArtifactStore
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.life.start_limiter import StartRefused
from labledger.trial.life.uncollected import OutputUnreadable

_MAX_WAIT_S = 8.0
"""How long an exchange waits at a host for something to report."""
_CALL_MARGIN_S = 30.0
"""How much longer than that its reply may take."""
_STATE_INTERVAL_S = 5.0
_DISCOVERY_INTERVAL_S = 1.0
_RETRY_S = 0.5
_MAX_RETRY_S = 5.0
_FIRST_CONTACT_S = 10.0
"""How long opening waits for the hosts that are known to answer."""
_SHUTDOWN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """What the executor of a cluster needs to know of its run."""

    ledger_id: str
    run_id: str
    epoch: int
    """Of the coordinator's lease."""
    files: Mapping[str, tuple[StagedFile, ...]]
    """Staged files by phase."""
    is_sealed: bool
    store_root: Path
    """The coordinator's artifact store."""
    max_concurrency: int | None = None
    """How many attempts may be submitted at once; None for as many as the hosts take."""

    @property
    def setup(self) -> RunSetup:
        key = RunKey(self.ledger_id, self.run_id)
        return RunSetup(key, self.epoch, self.files, self.is_sealed)


class ClusterExecutor:
    """Runs the attempts of one run on the hosts of a cluster. See `TrialExecutor`."""

    def __init__(self, connection: ClusterConnection, run: ClusterRun) -> None:
        """`connection` is open; `close` closes it."""
        self._connection = connection
        self._setup = run.setup
        self._max_concurrency = run.max_concurrency
        self._lock = threading.RLock()
        """Held while links change. No call to a host is made meanwhile."""
        self._links: dict[str, HostLink] = {}
        self._lost: dict[str, str] = {}
        """Why each host was declared lost."""
        store = ArtifactStore(run.store_root)
        self._inputs = InputSupply(connection, store)
        self._results = ResultTransfer(connection, store, self._setup.run)
        self._restarts: SimpleQueue[tuple[AttemptSpec, str]] = SimpleQueue()
        self._paused: SimpleQueue[AttemptSpec] = SimpleQueue()
        self._warnings: SimpleQueue[str] = SimpleQueue()
        self._told: set[str] = set()
        self._blocked = BlockedHosts()
        self._allowed_until = float("-inf")
        self._stopping = False
        self._abandoned = False
        self._superseded = False
        self.last_start_created = float("-inf")
        self._tasks: set[Future[Any]] = set()

    def open(self) -> ClusterExecutor:
        """Find the hosts, and return when those that answer have told what they have."""
        self._spawn(self._discover())
        deadline = time.monotonic() + _FIRST_CONTACT_S
        while time.monotonic() < deadline:
            with self._lock:
                links = list(self._links.values())
                if links and all(link.has_answered or not link.is_connected for link in links):
                    break
            time.sleep(0.02)
        return self

    # -- what the coordinator asks

    @property
    def width(self) -> int:
        with self._lock:
            return self._limited(sum(link.slots for link in self._links.values()))

    @property
    def capacity(self) -> int:
        with self._lock:
            # Attempts of hosts that do not answer take nothing from the others.
            blocked = sum(link.taken for link in self._links.values() if link.problem is not None)
            free = sum(link.capacity for link in self._links.values())
            return self._limited(free) + blocked

    def _limited(self, count: int) -> int:
        return count if self._max_concurrency is None else min(count, self._max_concurrency)

    @property
    def may_start(self) -> bool:
        return not (self._abandoned or self._superseded) and time.monotonic() < self._allowed_until

    def place(self, spec: AttemptSpec) -> AttemptSpec | None:
        key = attempt_key(spec)
        with self._lock:
            if spec.host:
                self._link(spec.host)
                return spec
            with_room = [
                link.state
                for link in self._links.values()
                if link.state is not None and link.taken < link.capacity
            ]
            taken = {name: link.taken for name, link in self._links.items()}
            chosen = choose_host(spec, with_room, taken, input_digests(spec))
            healthy = any(host.problem is None for host in with_room)
            self._blocked.record_placement(spec if chosen is None and healthy else None)
            if chosen is None:
                return None
            self._links[chosen].reserved.add(key)
            return spec.on_host(chosen)

    def submit(self, spec: AttemptSpec) -> Future[AttemptResult]:
        key, future = attempt_key(spec), Future[AttemptResult]()
        future.set_running_or_notify_cancel()
        with self._lock:
            link = self._link(spec.host)
            link.reserved.discard(key)
            if link.lost_because is not None:
                future.set_exception(_host_lost(link))
                return future
            link.received.discard(key)
            link.pending[key] = Pending(spec, future)
            self._blocked.record_activity()
        self._spawn(self._prepare(link, key))
        return future

    def remove(self, spec: AttemptSpec, *, keep_folder: bool) -> Future[None]:
        return self._leave(spec, Removal(spec, keep_folder))

    def cancel(self, spec: AttemptSpec, reason: str) -> Future[None]:
        return self._leave(spec, Cancellation(spec, reason))

    def _leave(self, spec: AttemptSpec, order: Removal | Cancellation) -> Future[None]:
        future = Future[None]()
        future.set_running_or_notify_cancel()
        with self._lock:
            link = self._link(spec.host)
            if link.lost_because is not None:
                future.set_result(None)
                return future
            link.leaving[attempt_key(spec)] = Leaving(order, future)
            if not link.is_connected:
                # It is certain: the host gets the order when it is back, or the next cleanup.
                future.set_result(None)
        self._connection.call_soon(link.wake.set)
        return future

    def kill(self, spec: AttemptSpec) -> None:
        with self._lock:
            link = self._link(spec.host)
            if spec not in link.kills:
                link.kills.append(spec)
        self._connection.call_soon(link.wake.set)

    def has_started(self, spec: AttemptSpec) -> bool:
        with self._lock:
            link = self._links.get(spec.host)
            return link is not None and attempt_key(spec) in link.started

    def restart_notices(self) -> list[tuple[AttemptSpec, str]]:
        return list(drain(self._restarts))

    def paused_attempts(self) -> list[AttemptSpec]:
        return list(drain(self._paused))

    def warnings(self) -> list[str]:
        return list(drain(self._warnings))

    def hosts(self) -> list[HostState]:
        with self._lock:
            return [
                replace(link.state, problem=link.problem)
                if link.state is not None
                else HostState(link.name, "", 0, 0, problem=link.problem)
                for _, link in sorted(self._links.items())
            ]

    @property
    def sent_bytes(self) -> dict[str, int]:
        """How many bytes of inputs each host was sent, by its name."""
        return dict(self._inputs.sent_bytes)

    def lose_host(self, host: str, because: str) -> None:
        with self._lock:
            link = self._link(host)
            link.lost_because = because
            self._lost[host] = because
            pending, link.pending = list(link.pending.values()), {}
            leaving, link.leaving = list(link.leaving.values()), {}
            link.reserved.clear()
        for attempt in pending:
            _set_exception(attempt.future, _host_lost(link))
        for each in leaving:
            _set_result(each.future, None)

    def stop_cause(self, patience_s: float) -> str | None:
        with self._lock:
            return self._blocked.stop_cause(list(self._links.values()), patience_s)

    def stop_starting(self) -> None:
        with self._lock:
            self._stopping = True
            refused = [
                link.pending.pop(key)
                for link in self._links.values()
                for key, attempt in list(link.pending.items())
                if self._is_left_alone(link, attempt)
            ]
            links = list(self._links.values())
        for attempt in refused:
            _set_exception(attempt.future, StartRefused())
        for link in links:
            self._connection.call_soon(link.wake.set)

    @staticmethod
    def _is_left_alone(link: HostLink, attempt: Pending) -> bool:
        """Return whether a stopping run leaves an attempt to the next session.

        It does if the host does not answer, and if nothing can have been started.
        """
        is_new = not (attempt.is_delivered or attempt.spec.container_may_exist)
        return not link.is_connected or is_new

    def allow_starts_until(self, unix_time: float) -> None:
        self._allowed_until = time.monotonic() + (unix_time - time.time())

    def abandon(self) -> None:
        self._abandoned = True
        with self._lock:
            for link in self._links.values():
                link.pending.clear()
                for each in link.leaving.values():
                    _set_result(each.future, None)
                link.leaving.clear()

    def shutdown(self) -> None:
        self.stop_starting()
        deadline = time.monotonic() + _SHUTDOWN_TIMEOUT_S
        while time.monotonic() < deadline:
            with self._lock:
                waiting = [
                    each.future
                    for link in self._links.values()
                    if link.is_connected
                    for each in link.leaving.values()
                    if not each.future.done()
                ]
            if not waiting:
                return
            with suppress(FutureTimeout):
                waiting[0].result(timeout=0.5)

    def close(self) -> None:
        """End the connection. What runs on hosts goes on."""
        for task in list(self._tasks):
            task.cancel()
        self._inputs.close()
        self._results.close()
        self._connection.close()

    def clean_up(self, run: RunRecords) -> list[str]:
        with self._lock:
            links = [link for link in self._links.values() if link.is_connected]
        return clean_up_hosts(self._connection, links, self._setup, run)

    # -- the connection's thread

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or the executor is closed. A bug in it is a warning."""
        future = self._connection.run(self._guarded(coroutine))
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    async def _guarded(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._tell(f"the exchange with a host broke: {type(error).__name__}: {error}")

    def _link(self, name: str) -> HostLink:
        """Return the link to a host, which need not have been seen yet. The lock is held."""
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = HostLink(name, lost_because=self._lost.get(name))
            self._spawn(self._deliver(link))
            self._spawn(self._poll(link))
        return link

    async def _discover(self) -> None:
        """Watch which workers the cluster has, and ask new ones which hosts they are."""
        not_hosts: dict[str, float] = {}
        trouble = ""
        while True:
            try:
                addresses = await self._connection.transport.addresses()
            except LabLedgerError as error:
                trouble = error.message
                self._tell(trouble)
            else:
                self._told.discard(trouble)
                with self._lock:
                    known = {link.address for link in self._links.values()}
                    for link in self._links.values():
                        if link.address is not None and link.address not in addresses:
                            self._disconnect(link)
                recently = time.monotonic() - 10.0
                not_hosts = {a: t for a, t in not_hosts.items() if t > recently}
                new = [a for a in addresses if a not in known and a not in not_hosts]
                for found in await self._connection.describe(new):
                    if found.described is None:
                        not_hosts[found.address] = time.monotonic()
                    self._add(found)
            await asyncio.sleep(_DISCOVERY_INTERVAL_S)

    def _add(self, found: FoundHost) -> None:
        described = found.described
        if described is None:
            self._tell(f"a worker of the cluster is not used: {found.problem}")
            return
        with self._lock:
            link = self._link(described.state.name)
            for key in link.connect(found.address, described):
                self._spawn(self._prepare(link, key))

    def _disconnect(self, link: HostLink) -> None:
        """Record that a host does not answer. The lock is held."""
        was_connected = link.is_connected
        link.disconnect()
        for each in link.leaving.values():
            _set_result(each.future, None)
        if not was_connected:
            return
        if self._stopping:
            for attempt in link.pending.values():
                _set_exception(attempt.future, StartRefused())
            link.pending.clear()
        elif link.pending and link.lost_because is None:
            self._warnings.put(
                f"{link.name} does not answer since {clock.utc_now()}; its trials go on there, and "
                "are collected when it is back"
            )

    async def _prepare(self, link: HostLink, key: AttemptKey) -> None:
        """Bring to the host what an attempt needs, and then have the attempt delivered."""
        retry_s = _RETRY_S
        while True:
            with self._lock:
                pending = link.pending.get(key)
                if pending is None or pending.is_ready:
                    return
                spec, session = pending.spec, link.session
            if session is not None:
                digests = input_digests(spec) | self._setup.digests.keys()
                try:
                    await self._inputs.provide(link, frozenset(digests), needed_images(spec))
                except (HostUnreachable, WrongSession):
                    pass
                except LabLedgerError as error:
                    self._record_supply_problem(link, error.message)
                else:
                    with self._lock:
                        if link.session == session:
                            link.supply_problem = None
                            pending.is_ready = True
                    link.wake.set()
                    continue
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _MAX_RETRY_S)

    def _record_supply_problem(self, link: HostLink, problem: str) -> None:
        with self._lock:
            if link.problem is None:
                link.blocked_since = time.monotonic()
            link.supply_problem = problem
        self._tell(f"{link.name}: {problem}")

    async def _deliver(self, link: HostLink) -> None:
        """Send orders to a host as soon as there are any."""
        retry_s = _RETRY_S
        while True:
            with self._lock:
                has_orders = link.is_connected and link.has_orders(stopping=self._stopping)
            if not has_orders:
                await link.wake.wait()
                link.wake.clear()
                continue
            if await self._exchange(link, wait_s=0.0, with_orders=True):
                retry_s = _RETRY_S
            else:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)

    async def _poll(self, link: HostLink) -> None:
        """Ask a host what has happened, for as long as the run lasts."""
        retry_s, state_due = _RETRY_S, 0.0
        while True:
            if not link.is_connected:
                await asyncio.sleep(_RETRY_S / 2)
                continue
            wants_state = time.monotonic() >= state_due or not link.has_answered
            lease_s = self._allowed_until - time.monotonic()
            wait_s = 0.0 if wants_state else min(_MAX_WAIT_S, max(lease_s / 3, 0.2))
            if await self._exchange(link, wait_s=wait_s, wants_state=wants_state):
                retry_s = _RETRY_S
                if wants_state:
                    state_due = time.monotonic() + _STATE_INTERVAL_S
            else:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)

    async def _exchange(
        self,
        link: HostLink,
        *,
        wait_s: float,
        with_orders: bool = False,
        wants_state: bool = False,
    ) -> bool:
        """Exchange once with a host. Return whether it answered."""
        with self._lock:
            if not link.is_connected or link.address is None:
                return False
            address = link.address
            request = link.next_exchange(
                self._setup, self._allowed_until, stopping=self._stopping, with_orders=with_orders
            )
        request = replace(request, wait_s=wait_s, wants_state=wants_state)
        try:
            reply = await self._connection.call(address, request, wait_s + _CALL_MARGIN_S)
        except SupersededEpoch:
            self._superseded = True
            await asyncio.sleep(_MAX_RETRY_S)
            return False
        except (HostUnreachable, WrongSession):
            with self._lock:
                if link.session == request.session:
                    self._disconnect(link)
            return False
        except HostRefused as error:
            self._tell(f"{link.name}: {error.message}")
            return False
        with self._lock:
            if link.session != request.session:
                return True
            self._record_reply(link, request, reply)
        return True

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
            self._tell(f"{link.name}: {link.problem}")
        if reply.last_start_age_s is not None:
            created = time.monotonic() - reply.last_start_age_s
            self.last_start_created = max(self.last_start_created, created)
        self._record_ends(link, reply)
        for key, reason in reply.restarts:
            if (restarted := link.pending.get(key)) is not None:
                self._restarts.put((restarted.spec, reason))
        for key in reply.paused:
            if (paused := link.pending.get(key)) is not None:
                self._paused.put(paused.spec)
        for warning in reply.warnings:
            self._warnings.put(f"{link.name}: {warning}")

    def _record_ends(self, link: HostLink, reply: ExchangeReply) -> None:
        """Handle the attempts and removals that have ended. The lock is held."""
        for message in reply.results:
            if message.key not in link.received:
                link.received.add(message.key)
                if message.key in link.pending:
                    self._spawn(self._receive(link, message))
        for failure in reply.failures:
            link.received.add(failure.key)
            if (attempt := link.pending.pop(failure.key, None)) is not None:
                is_refusal = failure.kind == "refused"
                error = StartRefused() if is_refusal else OutputUnreadable(failure.message)
                _set_exception(attempt.future, error)
        for key in reply.removed:
            if (leaving := link.leaving.pop(key, None)) is not None:
                _set_result(leaving.future, None)
            link.received.discard(key)
            link.confirmed.add(key)

    async def _receive(self, link: HostLink, message: ResultMessage) -> None:
        """Make what belongs to a result durable here, and end its future."""
        try:
            result = await self._results.receive(link, message)
        except (LabLedgerError, OSError) as error:
            if not isinstance(error, (HostUnreachable, WrongSession)):
                self._tell(f"a result of {link.name} could not be fetched: {error}")
            await asyncio.sleep(_RETRY_S)
            with self._lock:
                link.received.discard(message.key)
            return
        with self._lock:
            attempt = link.pending.pop(message.key, None)
            self._blocked.record_activity()
        if attempt is not None:
            _set_result(attempt.future, result)

    def _tell(self, warning: str) -> None:
        """Warn once."""
        if warning not in self._told:
            self._told.add(warning)
            self._warnings.put(warning)


def _host_lost(link: HostLink) -> HostLost:
    return HostLost(f"{link.name} was declared lost: {link.lost_because}")


def _set_result(future: Future[Any], result: Any) -> None:
    with suppress(InvalidStateError):
        future.set_result(result)


def _set_exception(future: Future[Any], error: BaseException) -> None:
    with suppress(InvalidStateError):
        future.set_exception(error)
