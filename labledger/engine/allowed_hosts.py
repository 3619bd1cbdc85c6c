"""Decide which destinations an egress proxy allows: names, suffixes, addresses and ranges.

Experiments check their lists with this module, and the proxy decides with it. Its text is part of
the program in the proxy's container, so it uses only a little of the standard library.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PORT = 3128
"""Where the proxy listens."""

HOST_NAME = "host.docker.internal"
"""The name of the engine's machine in the proxy's container. Its address may be private if the name
is listed."""

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class BadEntry(ValueError):
    """An entry of a list of allowed hosts cannot be used. The text says why."""


class AllowedHosts(NamedTuple):
    """The destinations that can be reached, by name and by address."""

    names: tuple[str, ...]
    """In lower case. A name that begins with a dot allows every name that ends with it."""
    networks: tuple[Network, ...]
    """A single address is a network of one address."""

    @classmethod
    def parse(cls, entries: Iterable[str]) -> AllowedHosts:
        """Parse authored entries: names, `*.name`, IP addresses and ranges. Raises `BadEntry`."""
        names, networks = [], []
        for entry in entries:
            network = _network(entry)
            if network is None:
                names.append(_name_entry(entry))
            else:
                networks.append(network)
        return cls(tuple(names), tuple(networks))

    def has_name(self, name: str) -> bool:
        """Return whether a normalized name is allowed."""
        return any(name.endswith(n) if n.startswith(".") else name == n for n in self.names)

    def has_address(self, address: Address) -> bool:
        """Return whether the list itself names an address or a range that holds it."""
        address = _innermost(address)
        return any(address.version == n.version and address in n for n in self.networks)

    def may_connect(self, name: str, address: Address) -> bool:
        """Return whether an allowed name may lead to an address, because it is public or listed."""
        if self.has_address(address) or (name == HOST_NAME and name in self.names):
            return True
        address = _innermost(address)
        return address.is_global and not address.is_multicast


def _network(entry: str) -> Network | None:
    """Return an address or a range, or None if the entry is a name."""
    text = entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        if "/" not in text or "://" in text:
            return None
        if "has host bits set" in str(error):
            first = ipaddress.ip_network(text, strict=False)
            raise BadEntry(f"is not the beginning of a range; did you mean {first}?") from None
        raise BadEntry(
            "is not an address range such as 10.0.0.0/8; give names without a path"
        ) from error


def _name_entry(entry: str) -> str:
    """Return a name, or a suffix with its dot, in its form for comparisons. Raises `BadEntry`."""
    if "://" in entry:
        raise BadEntry("is a URL; give its host name alone")
    if entry == "*":
        raise BadEntry("would allow every host; use the network `full` for that")
    name = entry.removeprefix("*.")
    if ":" in name:
        raise BadEntry("has a port; every port of an allowed host can be reached")
    if "*" in name:
        raise BadEntry("has a `*` that is not its first part; only `*.name` is possible")
    if not name.isascii():
        raise BadEntry("is not ASCII; write an international name as its xn-- form")
    normalized = normalize(name)
    if normalized is None:
        raise BadEntry("is not a host name, `*.name`, IP address or address range")
    return f".{normalized}" if entry.startswith("*.") else normalized


def normalize(name: str) -> str | None:
    """Return a host name in lower case without a last dot, or None if it is not a host name.

    A name whose last part is a number is not one: resolvers read 127.1 and 0x7f000001 as addresses.
    """
    name = name.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    return None if _NUMERIC.fullmatch(labels[-1]) else name


def _innermost(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address wraps, or the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
