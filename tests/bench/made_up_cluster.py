"""`labledger` on a cluster of made-up hosts; reports time and memory at its end.

    python -m bench.made_up_cluster BEGUN SOCKET HOSTS DISPATCHES -- COMMAND…

Executor and messages are real; the transport is a socket to `bench.made_up_hosts`. The process ends
like a killed one after DISPATCHES dispatches (0: at the run's end). BEGUN is its start
(`time.monotonic`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from concurrent.futures import Future

from bench.made_up_hosts import FRAME
from bench.peak import memory_mb
from labledger.cli import app
from labledger.hosts import connect
from labledger.hosts.coordinator_side.cluster_executor import ClusterExecutor
from labledger.hosts.host_transport import ClusterConnection, HostUnreachable
from labledger.records.attempt_result import AttemptResult
from labledger.trial.attempt_spec import AttemptSpec

_WARM_AFTER = 100
"""So many acknowledgements after the start, the hosts have all that they take: each round commits
a result and dispatches as much as there is capacity for."""


class MadeUpTransport:
    """Carries bytes to made-up hosts, all through one socket."""

    name = "made up"

    def __init__(self, path: str, hosts: int) -> None:
        self._path = path
        self._hosts = hosts
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._number = 0
        self.sent = 0
        self.received = 0

    async def open(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self._path)
        self._receiver = asyncio.create_task(self._receive(reader))

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while True:
            size, call, _ = FRAME.unpack(await reader.readexactly(FRAME.size))
            reply = await reader.readexactly(size)
            self.received += size
            if (waiting := self._calls.pop(call, None)) is not None and not waiting.done():
                waiting.set_result(reply)

    async def addresses(self) -> dict[str, str]:
        return dict.fromkeys(map(str, range(self._hosts)), "")

    async def call(self, address: str, request: bytes, timeout_s: float) -> bytes:
        self._number += 1
        future = self._calls[self._number] = asyncio.get_running_loop().create_future()
        self._writer.write(FRAME.pack(len(request), self._number, int(address)) + request)
        self.sent += len(request)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError as error:
            raise HostUnreachable(f"made-up host {address} did not answer") from error

    async def close(self) -> None:
        self._receiver.cancel()
        self._writer.close()

    @property
    def calls(self) -> int:
        return self._number


class Watch:
    """Measurements while the coordinator works."""

    def __init__(self, begun: float, dispatches: int, transport: MadeUpTransport) -> None:
        self._begun = begun
        self._stop_after = dispatches
        self._transport = transport
        self._first: float | None = None
        self._first_new: float | None = None
        self._first_cpu_s = 0.0
        self._dispatches = 0
        self._in_flight = 0
        self._most_in_flight = 0
        self._warm: list[float] | None = None
        """The `_counts` when the hosts had been filled."""
        self._acknowledged = 0
        self._threads: set[int] = set()

    def dispatched(self, spec: AttemptSpec) -> None:
        if self._first is None:
            self._first, self._first_cpu_s = time.monotonic(), time.process_time()
        if not spec.container_may_exist:
            self._first_new = self._first_new or time.monotonic()
            self._dispatches += 1
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        self._threads.add(threading.active_count())
        if self._dispatches == self._stop_after:
            self.report()
            os._exit(0)

    def acknowledged(self) -> None:
        self._acknowledged += 1
        self._in_flight -= 1
        if self._acknowledged == _WARM_AFTER:
            self._warm = self._counts()

    def _counts(self) -> list[float]:
        transport = self._transport
        moment = [time.monotonic(), time.process_time(), self._acknowledged]
        return [*moment, transport.calls, transport.sent, transport.received]

    def report(self) -> None:
        assert self._first is not None, "nothing was dispatched"
        report = {
            "first_dispatch_s": self._first - self._begun,
            "first_new_s": (self._first_new or time.monotonic()) - self._begun,
            "first_cpu_s": self._first_cpu_s,
            "in_flight": self._most_in_flight,
            "threads": max(self._threads),
            "peak_mb": memory_mb("VmHWM"),
        }
        if self._warm is not None:
            names = ("seconds", "cpu_s", "acknowledged", "calls", "sent", "received")
            since = (now - then for now, then in zip(self._counts(), self._warm, strict=True))
            report |= dict(zip(names, since, strict=True))
        print(json.dumps(report), flush=True)


def main() -> None:
    split = sys.argv.index("--")
    begun, path, hosts, dispatches = sys.argv[1:split]
    transport = MadeUpTransport(path, int(hosts))
    watch = Watch(float(begun), int(dispatches), transport)

    class Watched(ClusterExecutor):
        def submit(self, spec: AttemptSpec) -> Future[AttemptResult]:
            future = super().submit(spec)
            watch.dispatched(spec)
            return future

        def remove(self, spec: AttemptSpec, *, keep_folder: bool) -> Future[None]:
            watch.acknowledged()
            return super().remove(spec, keep_folder=keep_folder)

    connect.ClusterExecutor = Watched  # type: ignore[attr-defined]
    connect.connection_to = lambda cluster: ClusterConnection(transport)
    sys.argv = ["labledger", *sys.argv[split + 1 :]]
    try:
        app.main()
    except SystemExit as ended:
        if ended.code != 0:
            raise
    watch.report()


if __name__ == "__main__":
    main()
