"""Egress proxies: the containers through which trials with the network `allowlist` reach hosts.

Each container of a trial has a proxy and an internal network of its own, so that no trial reaches
or disturbs another. Their names derive from the attempt and they carry its labels: a later
coordinator finds them, and they go when the trial's container goes. The engine restarts a proxy
that dies, so that trials finish with nobody watching.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labledger.engine import allowed_hosts
from labledger.engine.engine import Engine
from labledger.engine.engine_errors import ContainerFailed, ContainerNameTaken
from labledger.engine.networks import BRIDGE, InternalNetwork, Networks
from labledger.errors import EngineUnavailable
from labledger.records import JsonObject
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.contract import Labels

HOST = "labledger-egress"
"""The name of the proxy in the network of its trial."""
URL = f"http://{HOST}:{allowed_hosts.PORT}"

_HELPER = {Labels.HELPER: "egress"}
_START_TIMEOUT_S = 180.0
_POLL_S = 0.05
_MEMORY = 128 << 20
_PIDS = 64
_LOG_BYTES = 1 << 20
_NOBODY = "65534:65534"
MAX_CONNECTIONS_REPORTED = 200
"""How many destinations the evidence of a trial names."""


@dataclass(frozen=True, slots=True)
class EgressProxy:
    """The proxy of one container, and the internal network of both."""

    name: str
    """Of the proxy's container, and of the network."""
    labels: Mapping[str, str]
    """Those of the attempt."""
    allowed_hosts: tuple[str, ...]

    def provide(self, engine: Engine, image: str | None) -> None:
        """Make sure that the network exists and the proxy listens in it. Can be repeated.

        `image` is the id of its image. Raises `ContainerFailed` if the engine cannot have it, and
        `EngineUnavailable` if the image is gone.
        """
        if image is None:
            raise EngineUnavailable(
                "the engine has no image for the egress proxy",
                hint="get it again, or name another with --egress-image",
            )
        network = Networks(engine).provide_internal(self.name, self.labels)
        state = engine.inspect(self.name)
        if state is not None and not (dict(self.labels) | _HELPER).items() <= state.labels.items():
            raise ContainerNameTaken(
                f"a container of something else is called {self.name}: rename or remove it"
            )
        if state is not None and state.status != "running":
            # Its coordinator died before it was complete.
            engine.remove(state.container_id)
            state = None
        if state is None:
            self._start(engine, image, network)
        self._await_listening(engine)

    def _start(self, engine: Engine, image: str, network: InternalNetwork) -> None:
        container = engine.create(self.name, self._config(image, network))
        Networks(engine).connect(container, BRIDGE)
        engine.start(container)

    def _await_listening(self, engine: Engine) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not any(row.get("what") == "listening" for row in self._log(engine)):
            if time.monotonic() > deadline:
                with engine.api(f"read the output of {self.name}") as client:
                    output = client.logs(self.name, tail=5).decode("utf-8", "replace")
                raise ContainerFailed(
                    f"the egress proxy {self.name} did not start in {_START_TIMEOUT_S:g} s: "
                    f"{output.strip()[-300:]}"
                )
            time.sleep(_POLL_S)

    def _config(self, image: str, network: InternalNetwork) -> JsonObject:
        address = str(network.first_address)
        program = ["python3", "-IBc", _program(), address, json.dumps(list(self.allowed_hosts))]
        extra = [f"{allowed_hosts.HOST_NAME}:host-gateway"]
        return {
            "Image": image,
            "Hostname": "egress",
            "User": _NOBODY,
            "Entrypoint": program,
            "Cmd": [],
            "WorkingDir": "/",
            "Labels": dict(self.labels) | _HELPER,
            "Healthcheck": {"Test": ["NONE"]},
            "NetworkingConfig": {
                "EndpointsConfig": {
                    self.name: {"IPAMConfig": {"IPv4Address": address}, "Aliases": [HOST]}
                }
            },
            "HostConfig": {
                "NetworkMode": self.name,
                "RestartPolicy": {"Name": "always"},
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
                **({"ExtraHosts": extra} if allowed_hosts.HOST_NAME in self.allowed_hosts else {}),
            },
        }

    def report(self, engine: Engine) -> JsonObject:
        """Return what the proxy did, for the evidence: refused destinations first."""
        report: JsonObject = {"allowed_hosts": list(self.allowed_hosts)}
        try:
            log = self._log(engine)
        except ContainerFailed as error:
            return report | {"problem": error.message}
        listening = sum(row.get("what") == "listening" for row in log)
        rows = _merged(log)
        left_out = max((row["count"] for row in log if row.get("what") == "left_out"), default=0)
        return report | {
            "connections": rows[:MAX_CONNECTIONS_REPORTED],
            "left_out": max(0, len(rows) - MAX_CONNECTIONS_REPORTED) + left_out,
            "restarts": max(0, listening - 1),
        }

    def _log(self, engine: Engine) -> list[JsonObject]:
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


def _merged(log: list[JsonObject]) -> list[JsonObject]:
    """Return one row for each kind of event at a destination, with its largest count."""
    merged: dict[tuple[object, ...], JsonObject] = {}
    for row in log:
        if "host" in row:
            merged[row["what"], row["host"], row["port"], row.get("why", "")] = row
    order = {"refused": 0, "failed": 1, "allowed": 2}
    return [merged[key] for key in sorted(merged, key=lambda key: (order[str(key[0])], *key[1:]))]


@cache
def _program() -> str:
    """Return the proxy as one text for `python3 -c`, with the module that it imports."""
    rules = Path(allowed_hosts.__file__)
    program = rules.with_name("proxy_program.py").read_text("utf-8")
    return (
        "import sys, types\n"
        f"rules = sys.modules[{allowed_hosts.__name__!r}] = types.ModuleType('allowed_hosts')\n"
        f"exec({rules.read_text('utf-8')!r}, rules.__dict__)\n"
        f"exec({program!r})\n"
    )


def restart_stopped_proxies(engine: Engine, spec: AttemptSpec) -> None:
    """Start the proxies of a running trial that somebody has stopped."""
    for container in engine.containers_with_labels(spec.labels() | _HELPER):
        state = engine.inspect(container.container_id)
        if state is not None and state.has_ended:
            try:
                engine.start(container.container_id)
            except ContainerFailed:
                continue  # The trial goes on without it; its evidence has the proxy's log.


def remove_proxies(engine: Engine, labels: Mapping[str, str]) -> None:
    """Remove the proxies and networks of an attempt, whose own containers are gone."""
    for container in engine.containers_with_labels(dict(labels) | _HELPER):
        engine.remove(container.container_id)
    networks = Networks(engine)
    for network in networks.with_labels(labels):
        networks.remove(network.network_id)
