"""Egress proxies: the helpers through which trials with the network `allowlist` reach hosts.

Each container of a trial has a proxy and an internal network of its own, so that no trial reaches
or disturbs another. The engine restarts a proxy that dies, so that trials finish with nobody
watching.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from labledger.engine import allowed_hosts, proxy_program, relay
from labledger.engine.engine import Engine
from labledger.engine.engine_errors import ContainerFailed
from labledger.engine.networks import BRIDGE, Networks
from labledger.records import JsonObject
from labledger.trial.life.helper_containers import Helper, HelperKind, program_words

HOST = "labledger-egress"
"""The name of the proxy in the network of its trial."""
URL = f"http://{HOST}:{allowed_hosts.PORT}"

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

    @property
    def _helper(self) -> Helper:
        return Helper(self.name, HelperKind.EGRESS, self.labels)

    def provide(self, engine: Engine, image: str | None) -> None:
        """Make sure that the network exists and the proxy listens in it. Can be repeated.

        `image` is the id of its image. Raises `ContainerFailed` if the engine cannot have it, and
        `EngineUnavailable` if the image is gone.
        """
        config = self._helper.config(image)
        network = Networks(engine).provide_internal(self.name, self.labels)
        address = str(network.first_address)
        program = program_words(proxy_program, allowed_hosts, relay)
        extra = [f"{allowed_hosts.HOST_NAME}:host-gateway"]
        config["Entrypoint"] = [*program, address, json.dumps(list(self.allowed_hosts))]
        config["Hostname"] = "egress"
        config["NetworkingConfig"] = {
            "EndpointsConfig": {
                network.name: {"IPAMConfig": {"IPv4Address": address}, "Aliases": [HOST]}
            }
        }
        config["HostConfig"] |= {
            "NetworkMode": network.name,
            "RestartPolicy": {"Name": "always"},
            **({"ExtraHosts": extra} if allowed_hosts.HOST_NAME in self.allowed_hosts else {}),
        }
        self._helper.provide(engine, config, [BRIDGE])

    def report(self, engine: Engine) -> JsonObject:
        """Return what the proxy did, for the evidence: refused destinations first."""
        report: JsonObject = {"allowed_hosts": list(self.allowed_hosts)}
        try:
            log = self._helper.log(engine)
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


def _merged(log: list[JsonObject]) -> list[JsonObject]:
    """Return one row for each kind of event at a destination, with its largest count."""
    merged: dict[tuple[object, ...], JsonObject] = {}
    for row in log:
        if "host" in row:
            merged[row["what"], row["host"], row["port"], row.get("why", "")] = row
    order = {"refused": 0, "failed": 1, "allowed": 2}
    return [merged[key] for key in sorted(merged, key=lambda key: (order[str(key[0])], *key[1:]))]
