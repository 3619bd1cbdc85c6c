"""Helper containers, which serve the containers of an attempt, such as its egress proxies.

A helper's name derives from the attempt and it carries its labels, with one more that says its
kind. So a later coordinator finds it, and it goes when the containers of the attempt have gone. It
runs a program of labledger's in an image with Python, as nobody, without capabilities.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from labledger.engine.engine import Engine
from labledger.engine.engine_errors import ContainerFailed, ContainerNameTaken
from labledger.engine.engine_facts import ContainerState
from labledger.engine.networks import Networks
from labledger.errors import EngineUnavailable
from labledger.records import JsonObject
from labledger.trial.contract import Labels

_START_TIMEOUT_S = 180.0
_POLL_S = 0.05
_MEMORY = 128 << 20
_PIDS = 64
_LOG_BYTES = 1 << 20
_NOBODY = "65534:65534"


class HelperKind(StrEnum):
    """What a helper is for: the value of its label `Labels.HELPER`."""

    EGRESS = "egress"
    MODELS = "models"

    @property
    def noun(self) -> str:
        """What messages call such a helper."""
        return "egress proxy" if self is HelperKind.EGRESS else "models helper"


@dataclass(frozen=True, slots=True)
class Helper:
    """A helper container of an attempt."""

    name: str
    kind: HelperKind
    attempt_labels: Mapping[str, str]

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.attempt_labels) | {Labels.HELPER: self.kind.value}

    def config(self, image: str | None) -> JsonObject:
        """Return what the configuration of each helper has; callers add program and network.

        `image` is the id of an image with Python. Raises `EngineUnavailable` if it is gone.
        """
        if image is None:
            raise EngineUnavailable(
                f"the engine has no image for the {self.kind.noun}",
                hint="get it again, or name another with --egress-image",
            )
        return {
            "Image": image,
            "User": _NOBODY,
            "Cmd": [],
            "WorkingDir": "/",
            "Labels": self.labels,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "ReadonlyRootfs": True,
                "Memory": _MEMORY,
                "MemorySwap": _MEMORY,
                "PidsLimit": _PIDS,
                "LogConfig": {
                    "Type": "json-file",
                    "Config": {"max-size": str(_LOG_BYTES), "max-file": "2"},
                },
            },
        }

    def find(self, engine: Engine) -> ContainerState | None:
        """Return the state of its container; None if there is none.

        Raises `ContainerNameTaken` if something else has its name.
        """
        state = engine.inspect(self.name)
        if state is not None and not self.labels.items() <= state.labels.items():
            raise ContainerNameTaken(
                f"a container of something else is called {self.name}: rename or remove it"
            )
        return state

    def provide(self, engine: Engine, config: JsonObject, networks: Sequence[str] = ()) -> str:
        """Make sure that it runs and listens, and return its container's id. Can be repeated.

        It is put into `networks` in addition to that of its configuration. Raises
        `ContainerFailed`.
        """
        state = self.find(engine)
        if state is not None and state.status == "running":
            container = state.container_id
        else:
            if state is not None:
                # Its coordinator died before it was complete.
                engine.remove(state.container_id)
            container = engine.create(self.name, config)
            for network in networks:
                Networks(engine).connect(container, network)
            engine.start(container)
        self._await_listening(engine)
        return container

    def _await_listening(self, engine: Engine) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not any(row.get("what") == "listening" for row in self.log(engine)):
            if time.monotonic() > deadline:
                with engine.api(f"read the output of {self.name}") as client:
                    output = client.logs(self.name, tail=5).decode("utf-8", "replace")
                raise ContainerFailed(
                    f"the {self.kind.noun} {self.name} did not start in {_START_TIMEOUT_S:g} s: "
                    f"{output.strip()[-300:]}"
                )
            time.sleep(_POLL_S)

    def log(self, engine: Engine) -> list[JsonObject]:
        """Return what its program logged, one object a line. Raises `ContainerFailed`."""
        with engine.api(f"read the log of {self.name}") as client:
            content: bytes = client.logs(self.name, stdout=True, stderr=False)
        rows = []
        for line in content.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # The engine cut it off.
            if isinstance(row, dict):
                rows.append(row)
        return rows


def program_words(program: ModuleType, *imported: ModuleType) -> list[str]:
    """Return the command of a program in a helper: its text, and those of what it imports."""
    lines = ["import sys, types"]
    for module in imported:
        name = module.__name__
        lines.append(f"module = sys.modules[{name!r}] = types.ModuleType({name!r})")
        lines.append(f"exec({_text(module)!r}, module.__dict__)")
    lines.append(f"exec({_text(program)!r})")
    return ["python3", "-IBc", "\n".join(lines)]


def _text(module: ModuleType) -> str:
    assert module.__file__ is not None
    return Path(module.__file__).read_text("utf-8")


def restart_stopped_helpers(engine: Engine, labels: Mapping[str, str], kind: HelperKind) -> None:
    """Start the helpers of an attempt that somebody has stopped.

    An attempt goes on without one that cannot be started: its evidence has the helper's log.
    """
    for container in engine.containers_with_labels(dict(labels) | {Labels.HELPER: kind.value}):
        state = engine.inspect(container.container_id)
        if state is not None and state.has_ended:
            try:
                engine.start(container.container_id)
            except ContainerFailed:
                continue


def remove_helpers(engine: Engine, labels: Mapping[str, str]) -> None:
    """Remove the helpers and networks of an attempt, whose own containers are gone."""
    for kind in HelperKind:
        for container in engine.containers_with_labels(dict(labels) | {Labels.HELPER: kind.value}):
            engine.remove(container.container_id)
    networks = Networks(engine)
    for network in networks.with_labels(labels):
        networks.remove(network.network_id)
