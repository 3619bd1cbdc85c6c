"""`HostTransport`: how bytes reach hosts, and a process's connection to the hosts of a cluster.

A transport finds the addresses of workers and carries requests and replies. It keeps no state.
Every call runs on the event loop of one thread, so that calls in flight need no threads or sockets.
`DaskTransport` implements it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from labledger import clock
from labledger.errors import LabLedgerError
from labledger.hosts.host_messages import REPLIES, Describe, Described, HostRefused, Refusal
from labledger.hosts.message_bytes import BadMessage, decode, encode

DESCRIBE_TIMEOUT_S = 10.0
_SWITCH_INTERVAL_S = 0.0001
"""How many seconds the thread of the loop may keep the interpreter while another thread waits. The
ledger's writer releases the interpreter at every statement, and a commit has dozens. With Python's
default of 5 ms, a busy connection would delay each statement by this time."""
_T = TypeVar("_T")


class HostUnreachable(LabLedgerError):
    """A host, or a scheduler or network on the way to it, does not answer."""


class NotAHost(HostRefused):
    """A worker of the cluster runs no trials of labledger."""


class HostTransport(Protocol):
    """Carries requests to workers. All methods are called on one event loop."""

    async def open(self) -> None:
        """Begin to connect, and retry for ever. Raises `LabLedgerError` if that cannot work."""

    async def addresses(self) -> Mapping[str, str]:
        """Return the names of the present workers by their addresses.

        Raises `HostUnreachable`.
        """

    async def call(self, address: str, request: bytes, timeout_s: float) -> bytes:
        """Have a worker answer a request. Raises `HostUnreachable`, and `NotAHost`.

        The worker may have carried out the request although this raises, so callers may repeat
        requests.
        """

    async def close(self) -> None:
        """End every call and the connection."""


@dataclass(frozen=True, slots=True)
class FoundHost:
    """A worker, with the host that it is, or why it is none."""

    address: str
    described: Described | None
    problem: str | None = None
    clock_offset_s: float = 0.0
    """How many seconds its clock is ahead of this machine's, up to the time of the messages."""
    name: str = ""
    """The host that it says it is, or the name of its worker; empty if neither is known."""
    is_duplicate: bool = False
    """Whether another live process claims to be the same host. Then neither is used."""


class ClusterConnection:
    """A transport with the thread that its event loop runs in."""

    def __init__(self, transport: HostTransport) -> None:
        self.transport = transport
        self._loop = asyncio.new_event_loop()
        # Dask leaves failed futures behind when it is closed. Our callers await our own futures.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._thread = threading.Thread(target=self._run_loop, name="cluster", daemon=True)

    def open(self) -> ClusterConnection:
        """Start the thread and begin to connect. Raises `LabLedgerError`."""
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL_S))
        self._thread.start()
        try:
            self.run(self.transport.open()).result()
        except BaseException:
            self.close()
            raise
        return self

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine in the thread of the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, function: Any, *arguments: Any) -> None:
        """Call a function in the thread of the loop."""
        self._loop.call_soon_threadsafe(function, *arguments)

    async def call(self, address: str, request: object, timeout_s: float) -> Any:
        """Return a worker's reply.

        Raises `HostUnreachable`, `HostRefused` for a refusal, and `BadMessage` if the content is
        no reply to the request.
        """
        content = await self.transport.call(address, encode(request), timeout_s)
        try:
            reply = decode(content)
        except BadMessage as error:
            raise BadMessage(f"the worker at {address} {error.message}") from error
        if isinstance(reply, Refusal):
            raise reply.raised()
        if type(reply) is not REPLIES[type(request)]:
            kind = type(reply).__name__
            raise BadMessage(f"the worker at {address} sent {kind}, which answers no request")
        return reply

    async def call_all(self, requests: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        """Return the reply of each worker to its request, or the error instead, by address."""

        async def call(address: str, request: object) -> Any:
            try:
                return await self.call(address, request, timeout_s)
            except LabLedgerError as error:
                return error

        replies = await asyncio.gather(*map(call, requests, requests.values()))
        return dict(zip(requests, replies, strict=True))

    async def describe(self, workers: Mapping[str, str]) -> list[FoundHost]:
        """Ask workers which hosts they are. `workers` has their names by address.

        If two workers claim to be the same host when asked twice, one is a copy of the other, and
        neither is used. Their trials would run twice.
        """
        hosts = await self._describe_all(workers)
        names = Counter(host.name for host in hosts if host.described is not None)
        doubted = [host.address for host in hosts if host.described and names[host.name] > 1]
        if not doubted:
            return hosts
        # Both lived between the two questions: no process of a host outlives its next one.
        again = await self._describe_all({address: workers[address] for address in doubted})
        by_address = {host.address: host for host in [*hosts, *again]}
        return _without_duplicates(list(by_address.values()))

    async def _describe_all(self, workers: Mapping[str, str]) -> list[FoundHost]:
        return list(await asyncio.gather(*map(self._describe_one, workers, workers.values())))

    async def _describe_one(self, address: str, worker_name: str) -> FoundHost:
        asked = clock.unix_time()
        try:
            described: Described = await self.call(address, Describe(), DESCRIBE_TIMEOUT_S)
        except LabLedgerError as error:
            return FoundHost(address, None, error.message, name=worker_name)
        state = described.state
        if (problem := state.find_fault()) is not None:
            problem = f"the worker at {address} reports about itself {problem}"
            return FoundHost(address, None, problem, name=worker_name)
        offset_s = described.unix_time - (asked + clock.unix_time()) / 2
        return FoundHost(address, described, clock_offset_s=offset_s, name=state.name)

    def close(self) -> None:
        """Close the transport and end the thread."""
        if self._thread.is_alive():
            self.run(self._close()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()

    async def _close(self) -> None:
        await self.transport.close()
        this_task = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not this_task]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def _without_duplicates(hosts: list[FoundHost]) -> list[FoundHost]:
    """Return the hosts, and mark hosts that claim to be the same one as duplicates."""
    processes: dict[str, dict[str, str]] = {}
    for host in hosts:
        if host.described is not None:
            processes.setdefault(host.name, {})[host.described.session] = host.address
    checked = []
    for host in hosts:
        others = processes.get(host.name, {})
        if host.described is None or len(others) < 2:
            checked.append(host)
            continue
        where = " and ".join(sorted(others.values()))
        problem = (
            f"{len(others)} machines claim to be {host.name}: {where}. One is a copy of the other, "
            "and neither is used: stop the copy, delete its host folder, and start it again as a "
            "new host"
        )
        checked.append(FoundHost(host.address, None, problem, name=host.name, is_duplicate=True))
    return checked
