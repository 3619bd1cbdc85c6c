"""A world with a cluster: hosts that run the product's own service, and a lossy network.

Coordinator and hosts exchange the product's messages, as bytes. The network delays, loses, repeats
and reorders them, and cuts hosts off; hosts are killed, lose their power, their disk's space, their
engine, or are declared lost and come back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labledger.errors import LabLedgerError
from labledger.files.artifact_store import ArtifactStore
from labledger.hosts import connect
from labledger.hosts.host_service import HostService, HostSettings
from labledger.hosts.host_transport import ClusterConnection, HostUnreachable
from labledger.ledger.writer import LedgerWriter
from labledger.records.outcomes import RequestKind
from labledger.upkeep.container_cleanup import clean_hosts
from simulation import disk, labs
from simulation.engine import SimulatedEngine
from simulation.invariants import Violation
from simulation.runs import UNIX_TIME, World
from simulation.scheduler import Machine, Process, world

ADDRESS = "tcp://127.0.0.1:8786"
_HOSTS = 3
_SLOTS = 2
_LATENESS_S = 5.0
"""How long after its host's grant a container may start whose start began within the grant."""


class Host:
    """A machine with an engine, on which a worker serves."""

    def __init__(self, number: int, folder: Path) -> None:
        self.machine = Machine(f"host{number}", UNIX_TIME)
        self.folder = folder / self.machine.name
        self.folder.mkdir()
        self.disk = disk.Disk(self.folder)
        self.engine = SimulatedEngine(self.machine)
        self.process: Process | None = None
        self.service: HostService | None = None
        self.deaf_until = self.mute_until = 0.0
        """Until when no message reaches it, and until when it sends none."""

    @property
    def address(self) -> str:
        assert self.process is not None
        return f"{self.machine.name}:{self.process.pid}"

    def serve(self) -> None:
        """Start the worker's process."""
        process = self.process = Process(world(), self.machine, self.machine.name)
        process.on_death.append(lambda: disk.disks().forget(process))
        process.at_most = _SLOTS
        self.service = None

        def main() -> None:
            try:
                with ExitStack() as stack:
                    self.service = HostSettings(_SLOTS, self.folder, min_free_bytes=1).open(stack)
                    world().wait(None, "serving")
            except LabLedgerError as error:
                world().note(f"{type(error).__name__}: {error.message[:150]}")
            finally:
                world().kill(process)

        world().note(f"{self.machine.name} serves")
        world().spawn(process, "main", main)


@dataclass(slots=True)
class Network:
    """How a network treats messages: the request of a call, and its reply."""

    delay_s: float = 0.005
    """The average delay of most messages."""
    late: float = 0.01
    """The share of messages that take up to `latest_s` more."""
    latest_s: float = 20.0
    repeated: float = 0.03
    """The share of requests that arrive twice."""
    lost: float = 0.005

    @classmethod
    def rough(cls, chance: random.Random) -> Network:
        """Return a network that is slow, unreliable or both, by chance."""
        return cls(
            chance.choice((0.005, 0.05, 0.5)),
            chance.choice((0.01, 0.1, 0.3)),
            chance.choice((20.0, 100.0)),
            chance.choice((0.03, 0.3)),
            chance.choice((0.005, 0.05, 0.2)),
        )

    def delay(self) -> float:
        chance = world().random
        is_late = chance.random() < self.late
        return chance.expovariate(1 / self.delay_s) + is_late * chance.uniform(0, self.latest_s)

    def loses(self) -> bool:
        return world().random.random() < self.lost

    def copies(self) -> int:
        return 2 if world().random.random() < self.repeated else 1


class Transport:
    """The product's transport, in place of Dask's."""

    name = "the simulated cluster"

    def __init__(self, hosts: list[Host], network: Callable[[], Network]) -> None:
        self._hosts = hosts
        self._network = network

    async def open(self) -> None:
        return None

    async def addresses(self) -> Mapping[str, str]:
        await asyncio.sleep(self._network().delay())
        now = world().now
        return {
            host.address: f"{host.machine.name}@1"
            for host in self._hosts
            if host.service is not None
            and host.process is not None
            and host.process.is_alive
            and host.mute_until < now
        }

    async def call(self, address: str, request: bytes, timeout_s: float) -> bytes:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        caller, network = world().current.process, self._network()
        host = next((candidate for candidate in self._hosts if candidate.address == address), None)
        if host is None or world().random.random() < 0.01:
            await asyncio.sleep(network.delay())
            raise HostUnreachable(f"nothing answers at {address}")

        def arrive(reply: bytes) -> None:
            if caller.is_alive and not future.done():
                loop.call_soon_threadsafe(lambda: future.done() or future.set_result(reply))

        for _ in range(network.copies()):
            deliver = partial(self._deliver, host, address, request, arrive)
            world().after(network.delay(), deliver)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise HostUnreachable(f"{address} did not answer in time") from None

    def _deliver(
        self, host: Host, address: str, request: bytes, arrive: Callable[[bytes], None]
    ) -> None:
        """Let a host answer a request, unless request or reply is lost."""
        process, service = host.process, host.service
        is_there = process is not None and process.is_alive and service is not None
        is_heard = host.deaf_until < world().now and not self._network().loses()
        if not (is_there and is_heard and host.address == address):
            return

        def answer() -> None:
            reply = service.answer(request)
            network = self._network()
            if host.mute_until < world().now and not network.loses():
                world().after(network.delay(), lambda: arrive(reply))

        world().spawn(process, "answer", answer)

    async def close(self) -> None:
        return None


class ClusterWorld(World):
    """A lab whose run is on a cluster."""

    def __init__(self, seed: int, template: Path, folder: Path, *more: Any) -> None:
        super().__init__(seed, template, folder, *more)
        self.hosts = [Host(number, folder) for number in range(_HOSTS)]
        for host in self.hosts:
            self.engines[host.machine.name] = host.engine
            self.disks.append(host.disk)
        self._held_up_until: dict[str, float] = {}
        """Until when a host was suspended or its engine away. Starts may be late there."""
        self._given_up: set[str] = set()
        """Hosts that a person declares lost."""
        self._is_over = False
        self._network = Network()
        if self.random.random() < 0.5 and self.happens("rough-network"):
            self._network = Network.rough(self.random)

    def begin(self) -> None:
        connect.connection_to = lambda _: ClusterConnection(Transport(self.hosts, self.network))
        for host in self.hosts:
            self._serve(host)

    def network(self) -> Network:
        """Return the present network, which loses nothing once the faults are over."""
        return self._network if self.has_faults else Network(lost=0.0)

    def _serve(self, host: Host) -> None:
        """Keep a worker running on a host."""
        if self._is_over:
            return
        if host.process is None or not host.process.is_alive:
            host.serve()
            if self.has_faults and self.random.random() < 0.3 and self.happens("death-of-a-host"):
                host.process.dies_at = round(self.random.lognormvariate(6.0, 1.3)) + 1
        self.time.after(self.random.uniform(0.5, 8.0), lambda: self._serve(host))

    def fault_kinds(self) -> list[Any]:
        of_hosts = [
            self._kill_host,
            self._host_loses_power,
            self._pause_host,
            self._cut_host,
            self._cut_host,
            self._lose_host,
            self._host_engine_away,
            self._host_engine_forgets,
            self._host_engine_fails,
            self._fill_host,
            self._fail_host_disk,
            self._set_host_clock,
        ]
        return [*super().fault_kinds(), *of_hosts, *of_hosts]

    def _kill_host(self) -> None:
        host = self.random.choice(self.hosts)
        self.count(f"{host.machine.name} killed")
        for process in host.machine.living():
            process.dies_at = process.steps + self.random.randrange(200)

    def _host_loses_power(self) -> None:
        host = self.random.choice(self.hosts)
        self.count(f"{host.machine.name} loses power")
        self.lose_power_of(host.machine, host.disk, host.engine)

    def _pause_host(self) -> None:
        host = self.random.choice(self.hosts)
        self.count(f"{host.machine.name} pauses")
        seconds = self.random.choice((1.0, 10.0, 45.0, 120.0))
        self._hold_up(host, seconds)
        for process in host.machine.living():
            process.paused_until = self.time.now + seconds

    def _cut_host(self) -> None:
        host = self.random.choice(self.hosts)
        until = self.time.now + self.random.choice((1.0, 10.0, 40.0, 150.0))
        is_deaf, is_mute = self.random.choice(((True, True), (True, False), (False, True)))
        self.count(f"{host.machine.name} is cut off: {is_deaf=}, {is_mute=}")
        host.deaf_until = until if is_deaf else host.deaf_until
        host.mute_until = until if is_mute else host.mute_until

    def _lose_host(self) -> None:
        """Let a person declare a host lost. Without any host, no run would end."""
        host = self.random.choice(self.hosts)
        if len(self._given_up | {host.machine.name}) == _HOSTS:
            return
        self._given_up.add(host.machine.name)
        lost = host.machine.name

        def declare() -> None:
            names = [name for (name,) in self._host_names(host)]
            with LedgerWriter.open(self.lab.ledger, ArtifactStore(self.lab.artifacts)) as writer:
                for name in names:
                    self.count(f"{lost} is declared lost")
                    writer.declare_host_lost(labs.RUN, name, "a simulated person said so")
                    self.lost.add(lost)
                    self.observed.kills_are_asked_for = True

        self.in_process("declare-lost", declare)

    def _host_names(self, host: Host) -> list[tuple[str]]:
        return self.fresh_rows(
            "SELECT DISTINCT host FROM dispatch WHERE host LIKE ?", f"{host.machine.name}/%"
        )

    def _host_engine_away(self) -> None:
        host = self.random.choice(self.hosts)
        self.count(f"engine of {host.machine.name} away")
        seconds = self.random.choice((0.01, 0.5, 5.0, 30.0, 90.0))
        self._hold_up(host, seconds)
        host.engine.go_away(seconds)

    def _hold_up(self, host: Host, seconds: float) -> None:
        name, until = host.machine.name, self.time.now + seconds
        self._held_up_until[name] = max(until, self._held_up_until.get(name, 0.0))

    def possible_requests(self) -> list[tuple[RequestKind, dict[str, Any]]]:
        pauses = [
            (RequestKind.PAUSE, {"host": [self.random.choice(self.hosts).machine.name]})
            for _ in range(2)
        ]
        return [*super().possible_requests(), *pauses]

    def check_first_start(self, key: tuple[str, int, int], host: str) -> None:
        """Check that a paused host starts nothing once its grants are over.

        The coordinator that applied the pause had granted no more than the rest of its lease.
        """
        since = self.observed.paused_hosts.get(host)
        if since is None:
            return
        until = max(since + self.lease_s, self._held_up_until.get(host, 0.0)) + _LATENESS_S
        if self.time.now > until:
            problem = f"{key} starts on {host}, paused for {self.time.now - since:.1f} s"
            self.time.fail(Violation(f"nothing that is paused is dispatched: {problem}"))

    def _host_engine_fails(self) -> None:
        host = self.random.choice(self.hosts)
        self.count(f"engine error of {host.machine.name}")
        host.engine.fails_after += self.random.choices(("create", "start", "remove"), k=2)

    def _host_engine_forgets(self) -> None:
        self.remove_container_of(self.random.choice(self.hosts).engine)

    def _fill_host(self) -> None:
        host = self.random.choice(self.hosts)
        self.count(f"disk of {host.machine.name} full")
        host.disk.is_full = True

        def empty() -> None:
            host.disk.is_full = False

        self.time.after(self.random.choice((1.0, 20.0, 90.0)), empty)

    def _fail_host_disk(self) -> None:
        host = self.random.choice(self.hosts)
        self.count(f"EIO of {host.machine.name}")
        host.disk.fails_at["fsync"] = self.random.randrange(5)

    def _set_host_clock(self) -> None:
        host = self.random.choice(self.hosts)
        self.count(f"clock of {host.machine.name} set")
        host.machine.unix_time += self.random.choice((-3600.0, -20.0, 20.0, 3600.0))

    def end(self) -> None:
        """Let a person clean up the hosts that were away when the run ended."""
        for host in self.hosts:
            host.deaf_until = host.mute_until = 0.0
            if host.process is None or not host.process.is_alive:
                host.serve()
        # A power cut after the cleanup would bring back what it deleted.
        self.time.sleep(max(5.0, self.last_fault - self.time.now))
        while not self._clean():
            self.time.sleep(5.0)
        self._is_over = True
        # A removal may go on after the answer.
        self.time.sleep(30.0)

    def _clean(self) -> bool:
        """Run `labledger clean --on`. Return whether every host was reached."""

        def clean() -> list[str]:
            last_line = clean_hosts(self.lab, ADDRESS, labs.RUN)
            self.time.note("; ".join(last_line))
            return last_line

        process = self.in_process("clean", clean)
        while process.is_alive:
            self.time.sleep(0.5)
        # Its last sentence names the hosts that were cleaned up.
        lines = (process.result or [""])[-1]
        return all(host.machine.name in lines for host in self.hosts)

    def left(self) -> list[str]:
        """Return the leftovers of attempts on hosts."""
        leftovers = []
        for host in self.hosts:
            for path in host.folder.glob("runs/*/*/*/*"):
                if path.parent.name in {"trials", "traces", "accepted", "outbox", "stores"}:
                    leftovers.append(f"{host.machine.name}: {path.parent.name}/{path.name}")
        return leftovers
