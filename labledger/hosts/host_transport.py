"""`HostTransport`: how bytes reach hosts, and a process's connection to the hosts of a cluster.

A transport finds the addresses of workers and carries one request and its reply at a time; it keeps
nothing. Every call runs on the event loop of one thread, so that calls in flight need neither
threads nor sockets of their own. `DaskTransport` implements it; another one needs no more.
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
"""How long the thread of the loop may keep the interpreter while another one waits for it. The
ledger's writer gives the interpreter up at every statement; with Python's own 5 ms, a busy
connection would delay each of them by so much, and a commit has dozens."""
_T = TypeVar("_T")


class HostUnreachable(LabLedgerError):
    """A host, or what leads to it, does not answer."""


class NotAHost(HostRefused):
    """A worker of the cluster runs no trials of labledger."""


class HostTransport(Protocol):
    """Carries requests to workers. All methods are called on one event loop."""

    async def open(self) -> None:
        """Begin to connect. Raises `LabLedgerError` for what cannot work; else tries for ever."""

    async def addresses(self) -> Mapping[str, str]:
        """Return the workers that are known now: the name that each has given, by its address.

        Raises `HostUnreachable`.
        """

    async def call(self, address: str, request: bytes, timeout_s: float) -> bytes:
        """Have a worker answer a request. Raises `HostUnreachable`, and `NotAHost`.

        The worker may have carried it out although this raises: requests can be repeated.
        """

    async def close(self) -> None:
        """End every call and the connection."""


@dataclass(frozen=True, slots=True)
class FoundHost:
    """A worker, and which host it is or why it is none."""

    address: str
    described: Described | None
    problem: str | None = None
    clock_offset_s: float = 0.0
    """How many seconds its clock is ahead of this machine's, but for the time of the messages."""
    name: str = ""
    """The host that it says it is, or the name that its worker has given; empty if neither."""
    is_duplicate: bool = False
    """Whether another live process says that it is the same host: neither is used."""


class ClusterConnection:
    """A transport with the thread that its event loop runs in."""

    def __init__(self, transport: HostTransport) -> None:
        self.transport = transport
        self._loop = asyncio.new_event_loop()
        # Dask leaves failed futures behind when it is closed; ours are reported to who awaits them.
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

        Raises `HostUnreachable`, `HostRefused` for a refusal, and `BadMessage` for what is no reply
        to the request.
        """
        content = await self.transport.call(address, encode(request), timeout_s)
        try:
            reply = decode(content)
        except BadMessage as error:
            raise BadMessage(f"the worker at {address} {error.message}") from error
        if isinstance(reply, Refusal):
            raise reply.raised()
        if type(reply) is not REPLIES[type(request)]:
            found = type(reply).__name__
            raise BadMessage(f"the worker at {address} sent {found}, which answers nothing asked")
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
        """Ask workers, of which the names are given by address, which hosts they are.

        A host that two of them say that they are is neither, if both still say so when asked again:
        a machine and a copy of it, whose trials would run twice.
        """
        found = await self._describe_all(workers)
        names = Counter(host.name for host in found if host.described is not None)
        doubted = [host.address for host in found if host.described and names[host.name] > 1]
        if not doubted:
            return found
        # Both lived at the moment between the two: no process of a host outlives its next one.
        again = await self._describe_all({each: workers[each] for each in doubted})
        by_address = {host.address: host for host in found} | {host.address: host for host in again}
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
            problem = f"the worker at {address} says of itself {problem}"
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
        own = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not own]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def _without_duplicates(found: list[FoundHost]) -> list[FoundHost]:
    """Return what was found, with those marked that say that they are the same host."""
    processes: dict[str, dict[str, str]] = {}
    for host in found:
        if host.described is not None:
            processes.setdefault(host.name, {})[host.described.session] = host.address
    checked = []
    for host in found:
        others = processes.get(host.name, {})
        if host.described is None or len(others) < 2:
            checked.append(host)
            continue
        where = " and ".join(sorted(others.values()))
        problem = (
            f"{len(others)} machines say that they are {host.name}: {where}. One is a copy of the "
            "other, and neither is used: stop the copy, delete its host folder, and start it again "
            "as a new host"
        )
        checked.append(FoundHost(host.address, None, problem, name=host.name, is_duplicate=True))
    return checked
