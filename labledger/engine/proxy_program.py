"""The program of an egress proxy: an HTTP proxy that connects only to allowed hosts.

It runs as `python3 -c` with the standard library of Python 3.11. Clients are hostile, so headers,
connections, waiting times and the log are limited. The proxy resolves a name once for each
connection, and connects to the address that it checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
import resource
import socket
import sys
from collections.abc import Iterable
from typing import NamedTuple

from labledger.engine.allowed_hosts import PORT, Address, AllowedHosts, normalize
from labledger.engine.relay import BUFFER, relay_both

MAX_CONNECTIONS = 128
"""How many clients are served at once. Others get status 503."""
MAX_HEADER = 32 << 10
"""The longest request line with headers, in bytes."""
MAX_NAMES = 500
"""How many different destinations are logged."""
_HEADER_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 30.0
_UNSERVED_TIMEOUT_S = 1.0
"""How long a client that gets 503 may take to send its request, in seconds."""


class ConnectionRefused(Exception):
    """The proxy answers a request with an HTTP status instead of a connection."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Destination(NamedTuple):
    """The host and port to which a client wants to connect."""

    host: str
    port: int

    @classmethod
    def parse(cls, authority: str, default_port: int | None) -> Destination:
        """Parse HOST:PORT or [ADDRESS]:PORT. Raises `ConnectionRefused` for anything else."""
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/]+)(?::([0-9]{1,5}))?", authority)
        port = match and (int(match[2]) if match[2] else default_port)
        if match is None or not port or port > 65535:
            raise ConnectionRefused("400 Bad Request", f"no host and port: {authority[:300]!r}")
        return cls(match[1].strip("[]"), port)


class Log:
    """Writes a line for the first event of each kind, and again for its 10th, 100th, 1,000th, …

    The log stays small whatever clients do. Its counts are lower limits.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int, str], int] = {}
        self._left_out = 0

    def add(self, what: str, destination: Destination, why: str = "") -> None:
        """Count an event. `what` is `allowed`, `refused` or `failed`."""
        key = (what, destination.host[:253], destination.port, why[:200])
        if key not in self._counts and len(self._counts) >= MAX_NAMES:
            self._left_out += 1
            if _is_power_of_ten(self._left_out):
                self._write({"what": "left_out", "count": self._left_out})
            return
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if _is_power_of_ten(count):
            row = {"what": key[0], "host": key[1], "port": key[2], "count": count}
            self._write({**row, "why": key[3]} if key[3] else row)

    @staticmethod
    def _write(row: dict[str, object]) -> None:
        print(json.dumps(row), flush=True)


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"


class Proxy:
    """Serves the clients of one network."""

    def __init__(self, allowed: AllowedHosts, log: Log) -> None:
        self._allowed, self._log = allowed, log
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client connection to its end."""
        self._connections += 1
        try:
            if self._connections > MAX_CONNECTIONS:
                # Closing a connection with unread data resets it, and the answer is lost.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(MAX_HEADER), _UNSERVED_TIMEOUT_S)
                raise ConnectionRefused("503 Service Unavailable", "too many connections at once")
            await self._serve_request(reader, writer)
        except ConnectionRefused as refused:
            await _answer(writer, refused.status, refused.why)
        except (OSError, EOFError, ValueError):
            pass
        finally:
            self._connections -= 1
            writer.close()

    async def _serve_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEADER_TIMEOUT_S)
        except asyncio.LimitOverrunError:
            status = "431 Request Header Fields Too Large"
            raise ConnectionRefused(status, "the request's headers are too long") from None
        request, *headers = head[:-4].decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise ConnectionRefused("400 Bad Request", "no HTTP/1 request")
        if words[0] == "CONNECT":
            destination, forwarded = Destination.parse(words[1], None), b""
        else:
            destination, forwarded = _plain_request(words, headers)
        upstream, to_upstream = await self._connect(destination)
        try:
            if forwarded:
                to_upstream.write(forwarded)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await relay_both((reader, writer), (upstream, to_upstream))
        finally:
            to_upstream.close()

    async def _connect(
        self, destination: Destination
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a destination. Raises `ConnectionRefused` if it is forbidden or silent."""
        try:
            addresses = await self._addresses(destination.host)
        except ConnectionRefused as refused:
            what = "refused" if refused.status.startswith("403") else "failed"
            self._log.add(what, destination, refused.why)
            raise
        why = "it does not answer"
        for address in addresses:
            try:
                opening = asyncio.open_connection(str(address), destination.port, limit=BUFFER)
                streams = await asyncio.wait_for(opening, _CONNECT_TIMEOUT_S)
            except OSError as error:
                why = f"no connection to {address}: {error or 'no answer'}"
                continue
            self._log.add("allowed", destination)
            return streams
        self._log.add("failed", destination, why)
        raise ConnectionRefused("502 Bad Gateway", f"{destination.host}:{destination.port}: {why}")

    async def _addresses(self, host: str) -> list[Address]:
        """Return the addresses of a host that the proxy may connect to, at least one."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return await self._resolved(host)
        if not self._allowed.has_address(address):
            raise ConnectionRefused("403 Forbidden", f"{host} is not one of allowed_hosts")
        return [address]

    async def _resolved(self, host: str) -> list[Address]:
        name = normalize(host)
        if name is None or not self._allowed.has_name(name):
            raise ConnectionRefused("403 Forbidden", f"{host[:253]} is not one of allowed_hosts")
        try:
            lookup = asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
            entries = await asyncio.wait_for(lookup, _CONNECT_TIMEOUT_S)
        except OSError as error:
            raise ConnectionRefused("502 Bad Gateway", f"{name} has no address: {error}") from None
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]
        usable = [address for address in addresses if self._allowed.may_connect(name, address)]
        if not usable:
            private = ", ".join(sorted({str(address) for address in addresses})[:4])
            why = f"{name} leads to {private}, which is not public and not one of allowed_hosts"
            raise ConnectionRefused("403 Forbidden", why)
        return usable


_HOP_BY_HOP = frozenset(
    ("connection", "host", "keep-alive", "proxy-authorization", "proxy-connection", "upgrade")
)


def _plain_request(words: list[str], headers: list[str]) -> tuple[Destination, bytes]:
    """Return the destination of a request for an http:// URL, and the request to send there.

    The `Host` header comes from the URL, whatever the client sent. No second request follows.
    """
    match = re.fullmatch(r"http://([^/?#]*)(/[^#]*|\?[^#]*)?(?:#.*)?", words[1], re.IGNORECASE)
    if match is None:
        raise ConnectionRefused("400 Bad Request", "this is a proxy: use CONNECT or an http:// URL")
    destination = Destination.parse(match[1], 80)
    path = match[2] or "/"
    lines = [f"{words[0]} {path if path.startswith('/') else '/' + path} {words[2]}"]
    lines += [f"Host: {match[1]}", "Connection: close"]
    for header in headers:
        name, colon, _ = header.partition(":")
        if not colon or not re.fullmatch(r"[!#-'*+.0-9A-Z^-z|~-]+", name):
            raise ConnectionRefused("400 Bad Request", "a malformed header")
        if name.lower() not in _HOP_BY_HOP:
            lines.append(header)
    return destination, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _answer(writer: asyncio.StreamWriter, status: str, why: str) -> None:
    body = f"labledger egress proxy: {why}\n".encode("utf-8", "replace")
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    with contextlib.suppress(OSError):
        await asyncio.wait_for(writer.drain(), _HEADER_TIMEOUT_S)


async def main(address: str, entries: Iterable[str]) -> None:
    """Serve at `address` until this process is killed."""
    proxy = Proxy(AllowedHosts.parse(entries), Log())
    server = await asyncio.start_server(proxy.serve, address, PORT, limit=MAX_HEADER, backlog=256)
    print(json.dumps({"what": "listening"}), flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
