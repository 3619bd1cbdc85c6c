"""Private networks of the Docker engine, and which networks a container is in.

A private network serves one container and its helpers. It shares no bridge, so even raw packets
reach no other container. An internal network has no way out, and its bridge has no address, so its
containers cannot reach the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from labledger.engine.engine import Engine
from labledger.engine.engine_errors import ContainerFailed
from labledger.engine.engine_facts import label_filter, seconds_of

_POOL = IPv4Network("198.18.0.0/15")
"""Reserved for network benchmarks (RFC 2544), so no machine that a trial needs has such an
address."""
_PREFIX = 29
_ATTEMPTS = 200
"""How many ranges of the pool to try. Networks of other runs may use the first ones."""

_INTERNAL_OPTIONS = {
    "com.docker.network.bridge.inhibit_ipv4": "true",
    "com.docker.network.bridge.enable_ip_masquerade": "false",
}

_MTU_OPTION = "com.docker.network.driver.mtu"

NONE, BRIDGE = "none", "bridge"
"""The engine's own networks: one without and one with a way out."""


@dataclass(frozen=True, slots=True)
class PrivateNetwork:
    """A network with a bridge of its own."""

    network_id: str
    name: str
    labels: Mapping[str, str]
    range: IPv4Network
    created_at: float = 0.0
    """Seconds since 1970, or 0 if unknown."""

    @property
    def first_address(self) -> IPv4Address:
        """The address of the container that serves the others."""
        return self.range[2]


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks of one engine."""

    engine: Engine

    def provide_outbound(self, name: str, labels: Mapping[str, str]) -> PrivateNetwork:
        """Return the private network with this name and these labels and a way out.

        Creates the network if it is missing. It reaches what the engine's own bridge reaches,
        except containers there. Raises `ContainerFailed` if another network has the name, or if the
        engine has no free address range.
        """
        return self._provide(name, labels, self._outbound_options(), internal=False)

    def _outbound_options(self) -> dict[str, str]:
        """Return the packet size of the engine's bridge, which the user may have set."""
        try:
            with self.engine.api(f"inspect network {BRIDGE}") as client:
                options = client.inspect_network(BRIDGE)["Options"] or {}
        except ContainerFailed:
            return {}
        return {_MTU_OPTION: options[_MTU_OPTION]} if _MTU_OPTION in options else {}

    def provide_internal(self, name: str, labels: Mapping[str, str]) -> PrivateNetwork:
        """Return the internal network with this name and these labels. Creates it if it is missing.

        Raises `ContainerFailed` if another network has the name, if the engine has no free address
        range, or if containers could reach the engine's machine.
        """
        network = self._provide(name, labels, _INTERNAL_OPTIONS, internal=True)
        with self.engine.api(f"inspect network {name}") as client:
            options = client.inspect_network(network.network_id)["Options"] or {}
        if not _INTERNAL_OPTIONS.items() <= options.items():
            self.remove(network.network_id)
            raise ContainerFailed(
                f"could not create network {name}: the engine ignores the options that keep "
                "containers from reaching its machine, as Podman does"
            )
        return network

    def _provide(
        self, name: str, labels: Mapping[str, str], options: Mapping[str, str], *, internal: bool
    ) -> PrivateNetwork:
        network = self._find(name, labels)
        if network is None:
            self._create(name, labels, options, internal=internal)
            network = self._find(name, labels)
            assert network is not None
        return network

    def _find(self, name: str, labels: Mapping[str, str]) -> PrivateNetwork | None:
        return next((network for network in self.with_labels(labels) if network.name == name), None)

    def _create(
        self, name: str, labels: Mapping[str, str], options: Mapping[str, str], *, internal: bool
    ) -> None:
        from docker.types import IPAMConfig, IPAMPool

        start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        count = 1 << (_PREFIX - _POOL.prefixlen)
        for step in range(_ATTEMPTS):
            offset = (start + step) % count << (32 - _PREFIX)
            candidate = IPv4Network((int(_POOL.network_address) + offset, _PREFIX))
            try:
                with self.engine.api(f"create network {name}") as client:
                    client.create_network(
                        name,
                        driver="bridge",
                        options=dict(options),
                        ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=str(candidate))]),
                        check_duplicate=True,
                        internal=internal,
                        labels=dict(labels),
                    )
                    return
            except ContainerFailed as error:
                if "overlaps" not in str(error):
                    raise
        raise ContainerFailed(
            f"could not create network {name}: {_ATTEMPTS} ranges of {_POOL} are taken by others"
        )

    def with_labels(self, labels: Mapping[str, str | None]) -> list[PrivateNetwork]:
        """Return the private networks with all of `labels`. None matches any value."""
        with self.engine.api("list networks") as client:
            entries = client.networks(filters={"label": label_filter(labels)})
        return [
            PrivateNetwork(
                entry["Id"],
                entry["Name"],
                entry["Labels"] or {},
                IPv4Network(entry["IPAM"]["Config"][0]["Subnet"]),
                seconds_of(entry.get("Created")),
            )
            for entry in entries
            if entry["IPAM"]["Config"]
        ]

    def remove(self, network_id: str) -> None:
        """Remove a network without running containers. Do nothing if it is gone."""
        try:
            with self.engine.api(f"remove network {network_id}") as client:
                client.remove_network(network_id)
        except ContainerFailed as error:
            if "not found" not in str(error).lower():
                raise

    def of_container(self, container: str) -> set[str]:
        """Return the names of a container's networks. Raises `NoSuchContainer`."""
        with self.engine.api(f"inspect container {container}") as client:
            return set(client.inspect_container(container)["NetworkSettings"]["Networks"])

    def connect(self, container: str, network: str) -> None:
        """Add a container to a network. It stays in its other networks."""
        with self.engine.api(f"connect container {container} to network {network}") as client:
            client.connect_container_to_network(container, network)

    def move(self, container: str, network: str) -> None:
        """Move a container into one network and out of all others.

        The container may be running. The call can be repeated after a failure at any point. Raises
        `NoSuchContainer` and `ContainerFailed`.
        """
        # A container without any network would get its first one again at the next start.
        current = self.of_container(container)
        for name in sorted(current - {network}):
            with self.engine.api(f"take container {container} out of network {name}") as client:
                client.disconnect_container_from_network(container, name, force=True)
        if network not in current:
            self.connect(container, network)
