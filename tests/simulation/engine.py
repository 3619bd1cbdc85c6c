"""The simulated Docker engine, with made-up containers that run for a time and end.

It keeps containers across restarts. It can be away, fail after it executed a call, forget
containers, and lose running ones in a power cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labledger import clock
from labledger.engine.engine import ListedContainer
from labledger.engine.engine_errors import (
    ContainerFailed,
    ContainerNameTaken,
    EngineServerError,
    NoSuchContainer,
)
from labledger.engine.engine_facts import ContainerState
from labledger.errors import EngineUnavailable
from labledger.trial.contract import ExitStatus, Labels
from simulation.scheduler import Machine, Task, world

_NEVER = "0001-01-01T00:00:00Z"
IMAGE_ID = "sha256:" + "1" * 64
INFO = {
    "ServerVersion": "28.0.0",
    "Driver": "overlay2",
    "CgroupVersion": "2",
    "DefaultRuntime": "runc",
    "Runtimes": {"runc": {}},
    "MemoryLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "NCPU": 8,
    "MemTotal": 32 << 30,
    "DockerRootDir": "",
    "ID": "simulated",
}


@dataclass(slots=True)
class Container:
    """A made-up container."""

    container_id: str
    name: str
    labels: dict[str, str]
    folder: Path | None = None
    """The folder of its trial, which it writes to."""
    parts: int = 1
    """How often it is started: twice if its grader arrives after the agent has ended."""
    starts: int = 0
    status: str = "created"
    exit_status: int = 0
    started_at: str = _NEVER
    finished_at: str = _NEVER
    ends_at: float = 0.0
    waiting: list[Task] = field(default_factory=list)

    @property
    def attempt(self) -> tuple[str, int, int] | None:
        if Labels.SLOT not in self.labels or Labels.HELPER in self.labels:
            return None
        labels = self.labels
        return labels[Labels.RUN], int(labels[Labels.SLOT]), int(labels[Labels.ATTEMPT])


class SimulatedEngine:
    """The engine of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.containers: dict[str, Container] = {}
        self.away_until = 0.0
        self.fails_after: list[str] = []
        """Kinds of call whose next one is executed and then answered with an error."""
        self.refuses = False
        """Whether it creates no container for now."""
        self.on_start: Callable[[Container], tuple[float, int]] = lambda _: (1.0, 0)
        """Called with a container that starts: how long it runs, and its exit status."""
        self.on_end: Callable[[Container], None] = lambda _: None
        self.on_kill: Callable[[Container], None] = lambda _: None
        """Called with a running container that the product ends."""
        self._numbers = count(1)

    def iso(self) -> str:
        unix = self.machine.unix_time + world().now
        return clock.iso(clock.of_timestamp(unix))

    def call(self, kind: str, detail: str = "") -> None:
        """One call of a client. Raises `EngineUnavailable` while the engine is away."""
        world().point(f"engine_{kind}", detail)
        world().sleep(world().random.uniform(0.001, 0.02))
        if world().now < self.away_until:
            raise EngineUnavailable("the simulated engine is away")

    def answer(self, kind: str) -> None:
        """Answer an executed call, perhaps with an error."""
        if kind in self.fails_after:
            self.fails_after.remove(kind)
            world().note(f"the engine fails after {kind}")
            raise EngineServerError(f"the simulated engine failed after {kind}")
        world().point(f"engine_{kind}_answered")

    def find(self, name_or_id: str) -> Container | None:
        if name_or_id in self.containers:
            return self.containers[name_or_id]
        return next((c for c in self.containers.values() if c.name == name_or_id), None)

    def create(self, name: str, config: dict[str, Any]) -> str:
        if self.refuses:
            raise ContainerFailed("the simulated engine creates no container for now")
        if self.find(name) is not None:
            raise ContainerNameTaken(f"the name {name} is taken")
        number = next(self._numbers)
        labels = dict(config.get("Labels") or {})
        container = Container(f"{number:064x}", name, labels, config.get("Folder"))
        container.parts = config.get("Parts", 1)
        self.containers[container.container_id] = container
        return container.container_id

    def start(self, name_or_id: str) -> None:
        container = self._existing(name_or_id)
        if container.status == "running":
            return
        container.starts += 1
        lasts, status = self.on_start(container)
        container.status, container.started_at = "running", self.iso()
        container.ends_at = world().now + lasts
        container.exit_status = status

        def end() -> None:
            if container.status == "running" and container.container_id in self.containers:
                self.end(container, status)

        world().at(container.ends_at, end)

    def end(self, container: Container, status: int) -> None:
        container.status, container.exit_status = "exited", status
        container.finished_at = self.iso()
        state = None if container.folder is None else container.folder / "state"
        if status == ExitStatus.AGENT_ENDED and state is not None and state.is_dir():
            (state / "phases").write_text("agent 0 100 200 0\n", "ascii")
        self.on_end(container)
        self._wake(container)

    def _wake(self, container: Container) -> None:
        waiting, container.waiting = container.waiting, []
        for task in waiting:
            world().wake(task)

    def _existing(self, name_or_id: str) -> Container:
        container = self.find(name_or_id)
        if container is None:
            raise NoSuchContainer(f"there is no container {name_or_id[:12]}")
        return container

    def wait(self, name_or_id: str, timeout_s: float) -> int | None:
        container = self._existing(name_or_id)
        deadline = world().now + timeout_s
        while container.status != "exited":
            if self.find(name_or_id) is not container:
                raise NoSuchContainer(f"there is no container {name_or_id[:12]}")
            if world().now >= deadline:
                return None
            container.waiting.append(world().current)
            world().wait(deadline, f"container {container.name}")
            if world().now < self.away_until:
                raise EngineUnavailable("the simulated engine went away")
        return container.exit_status

    def remove(self, name_or_id: str) -> None:
        container = self.find(name_or_id)
        if container is not None:
            del self.containers[container.container_id]
            self._wake(container)

    def go_away(self, seconds: float) -> None:
        """Do not answer for a while. Running containers continue."""
        self.away_until = max(self.away_until, world().now + seconds)
        for container in self.containers.values():
            self._wake(container)

    def lose_power(self) -> None:
        """End all running containers, with the status that an engine gives them after a restart."""
        for container in self.containers.values():
            if container.status == "running":
                self.end(container, 255)


engines: dict[str, SimulatedEngine] = {}
"""The engine of each machine of the world, by the machine's name."""


class EngineClient:
    """A connection to this machine's engine, in the place of `labledger.engine.engine.Engine`."""

    def __init__(self) -> None:
        self._engine = engines[world().current.process.machine.name]

    def connect(self) -> EngineClient:
        self._engine.call("connect")
        return self

    def close(self) -> None:
        return None

    @contextmanager
    def api(self, action: str) -> Iterator[Any]:
        """Provide the calls that the product makes to the Docker library: there are no networks."""
        self._engine.call(action)
        yield SimpleNamespace(networks=lambda **_: [])

    def info(self) -> dict[str, Any]:
        self._engine.call("info")
        return {**INFO, "ID": f"engine of {self._engine.machine.name}"}

    def image_id(self, ref: str) -> str | None:
        self._engine.call("image")
        return IMAGE_ID

    def image_config(self, image_id: str) -> dict[str, Any] | None:
        return {}

    def image_user(self, image_id: str) -> str | None:
        return ""

    def create(self, name: str, config: dict[str, Any]) -> str:
        self._engine.call("create", name)
        created = self._engine.create(name, config)
        self._engine.answer("create")
        return created

    def start(self, container: str) -> None:
        self._engine.call("start", container[-6:])
        self._engine.start(container)
        self._engine.answer("start")

    def wait(self, container: str, timeout_s: float) -> int | None:
        self._engine.call("wait")
        return self._engine.wait(container, timeout_s)

    def inspect(self, container: str) -> ContainerState | None:
        self._engine.call("inspect")
        simulated = self._engine.find(container)
        if simulated is None:
            return None
        return ContainerState(
            container_id=simulated.container_id,
            status=simulated.status,
            exit_status=simulated.exit_status,
            out_of_memory=False,
            started_at=simulated.started_at,
            finished_at=simulated.finished_at,
            labels=simulated.labels,
        )

    def inspect_ended(self, container: str) -> ContainerState:
        return self.inspect_existing(container)

    def inspect_existing(self, container: str) -> ContainerState:
        state = self.inspect(container)
        if state is None:
            raise NoSuchContainer(f"container {container} was removed while its trial ran")
        return state

    def processes(self, container: str) -> frozenset[str]:
        return frozenset()

    def was_paused(self, container: str) -> bool:
        return False

    def kill(self, container: str) -> None:
        self._engine.call("kill")
        simulated = self._engine.find(container)
        if simulated is not None and simulated.status == "running":
            self._engine.on_kill(simulated)
            self._engine.end(simulated, 137)

    def remove(self, container: str) -> None:
        self._engine.call("remove")
        self._engine.remove(container)
        self._engine.answer("remove")

    def containers_with_labels(self, labels: dict[str, str]) -> list[ListedContainer]:
        self._engine.call("list")
        return [
            ListedContainer(simulated.container_id, simulated.name, dict(simulated.labels))
            for simulated in self._engine.containers.values()
            if labels.items() <= simulated.labels.items()
        ]
