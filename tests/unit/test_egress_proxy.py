"""The egress proxy's decisions and protocol, with real connections on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from labledger.engine import proxy_program
from labledger.engine.allowed_hosts import HOST_NAME, AllowedHosts, BadEntry, normalize
from labledger.engine.proxy_program import Log, Proxy


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("https://pypi.org/simple", "is a URL"),
        ("pypi.org:443", "has a port"),
        ("pypi.org/simple", "not an address range"),
        ("*", "would allow every host"),
        ("*.*.org", "`*` that is not its first part"),
        ("py*.org", "`*` that is not its first part"),
        ("10.0.0.1/8", "did you mean 10.0.0.0/8"),
        ("10.0.0.0/40", "not an address range"),
        ("bücher.example", "xn--"),
        ("127.1", "is not a host name"),
        ("0x7f000001", "is not a host name"),
        ("2130706433", "is not a host name"),
        ("", "is not a host name"),
        ("a..b", "is not a host name"),
        ("-a.org", "is not a host name"),
        ("a b.org", "is not a host name"),
        ("a.org\r\nHost: b", "has a port"),
        ("[::1]:80", "has a port"),
    ],
)
def test_entries_that_cannot_be_used(entry: str, reason: str) -> None:
    """An entry that is not a name, suffix, address or range is refused with the reason."""
    with pytest.raises(BadEntry, match=r".*") as caught:
        AllowedHosts.parse([entry])
    assert reason in str(caught.value)


def test_names() -> None:
    """A name allows itself alone; `*.name` allows every name below it, but not the name."""
    allowed = AllowedHosts.parse(["PyPI.org.", "*.example.org"])
    for name in ("pypi.org", "PYPI.ORG", "pypi.org.", "a.example.org", "b.a.example.org"):
        normalized = normalize(name)
        assert normalized is not None
        assert allowed.has_name(normalized)
    for name in ("example.org", "notexample.org", "a.pypi.org", "pypi.org.evil.example", "org"):
        assert not allowed.has_name(name)
    assert not allowed.has_address(ip_address("151.101.0.223"))


@pytest.mark.parametrize(
    "name", ["127.1", "0x7f.1", "0177.0.0.1", "2130706433", "1.2.3.4", "[::1]"]
)
def test_numbers_are_no_names(name: str) -> None:
    """Text that a resolver would read as an address is not a name."""
    assert normalize(name) is None


def test_addresses() -> None:
    """Addresses and ranges allow what they contain, also inside an IPv6 address."""
    allowed = AllowedHosts.parse(["192.0.2.7", "10.1.0.0/16", "2001:db8::/32", "[::1]"])
    for text in ("192.0.2.7", "10.1.2.3", "2001:db8::5", "::1", "::ffff:10.1.2.3"):
        assert allowed.has_address(ip_address(text))
    for text in ("192.0.2.8", "10.2.0.1", "::2", "::ffff:10.2.0.1"):
        assert not allowed.has_address(ip_address(text))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "169.254.169.254", "10.0.0.1", "172.17.0.1", "192.168.1.1", "100.64.0.1"),
        *("0.0.0.0", "198.18.0.2", "224.0.0.1", "::1", "fe80::1", "fd00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1"),
    ],
)
def test_private_addresses(address: str) -> None:
    """An allowed name leads to no private address unless the address is listed too."""
    name, resolved = "rebound.example", ip_address(address)
    assert not AllowedHosts.parse([name, "2001:db8::/32"]).may_connect(name, resolved)
    ranges = ["0.0.0.0/0", "::/0"]
    assert AllowedHosts.parse([name, *ranges]).may_connect(name, resolved)


def test_public_addresses_and_the_machine() -> None:
    """An allowed name leads to public addresses, and the machine's own name to the machine."""
    allowed = AllowedHosts.parse(["pypi.org", HOST_NAME])
    assert allowed.may_connect("pypi.org", ip_address("151.101.0.223"))
    assert allowed.may_connect(HOST_NAME, ip_address("172.17.0.1"))
    suffix = AllowedHosts.parse(["*.docker.internal"])
    assert not suffix.may_connect(HOST_NAME, ip_address("172.17.0.1"))


class Served:
    """A proxy and a server on loopback, and the requests that the server got."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed
        self.requests: list[bytes] = []
        self.port = 0

    async def exchange(self, request: str) -> bytes:
        """Send a request to the proxy and return all that it answers. `PORT` is the server's."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._proxy_port)
        writer.write(request.replace("PORT", str(self.port)).encode())
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return answer

    @asynccontextmanager
    async def tunnel(self) -> AsyncIterator[None]:
        """Hold a tunnel to the server, through which nothing is sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._proxy_port)
        writer.write(f"CONNECT 127.0.0.1:{self.port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        yield
        writer.close()
        await writer.wait_closed()

    async def run(self, test: Callable[[], Awaitable[None]]) -> None:
        proxy = Proxy(AllowedHosts.parse(self.allowed), Log())
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        limit = proxy_program.MAX_HEADER
        front = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=limit)
        self.port = server.sockets[0].getsockname()[1]
        self._proxy_port = front.sockets[0].getsockname()[1]
        async with server, front:
            await test()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError:
            pass  # A tunnel that carried no bytes.
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
            await writer.drain()
        writer.close()


def through(served: Served, *requests: str) -> list[bytes]:
    answers: list[bytes] = []

    async def test() -> None:
        for request in requests:
            answers.append(await served.exchange(request))

    asyncio.run(served.run(test))
    return answers


def test_tunnels_and_plain_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """CONNECT tunnels to an allowed address, a plain request is passed on, and both are logged."""
    served = Served(("127.0.0.1",))
    tunnel, plain = through(
        served,
        "CONNECT 127.0.0.1:PORT HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: in\r\n\r\n",
        "GET http://127.0.0.1:PORT/a?b#c HTTP/1.1\r\nHost: evil\r\nX: 1\r\nConnection: x\r\n\r\n",
    )
    assert tunnel.startswith(b"HTTP/1.1 200 ")
    assert tunnel.endswith(b"hello")
    assert plain.endswith(b"hello")
    inner, outer = served.requests
    assert b"Host: in" in inner
    host = f"Host: 127.0.0.1:{served.port}".encode()
    assert outer == b"GET /a?b HTTP/1.1\r\n" + host + b"\r\nConnection: close\r\nX: 1\r\n\r\n"
    (row,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (row["what"], row["host"], row["port"]) == ("allowed", "127.0.0.1", served.port)


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("CONNECT evil.example:443 HTTP/1.1\r\n\r\n", b"403"),
        ("CONNECT 127.0.0.2:PORT HTTP/1.1\r\n\r\n", b"403"),
        ("CONNECT 127.1:PORT HTTP/1.1\r\n\r\n", b"403"),
        ("CONNECT 2130706433:PORT HTTP/1.1\r\n\r\n", b"403"),
        ("CONNECT [::ffff:7f00:2]:PORT HTTP/1.1\r\n\r\n", b"403"),
        ("CONNECT localhost:PORT HTTP/1.1\r\n\r\n", b"403"),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"403"),
        ("GET http://127.0.0.1:PORT@evil.example/ HTTP/1.1\r\n\r\n", b"400"),
        ("GET http://127.0.0.1:PORT/ HTTP/1.1\r\nA : b\r\n\r\n", b"400"),
        ("GET http://127.0.0.1:PORT/ HTTP/1.1\r\nA: b\r\n folded: x\r\n\r\n", b"400"),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", b"400"),
        ("CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n", b"400"),
        ("CONNECT 127.0.0.1:0 HTTP/1.1\r\n\r\n", b"400"),
        ("CONNECT 127.0.0.1:99999 HTTP/1.1\r\n\r\n", b"400"),
        ("nonsense\r\n\r\n", b"400"),
        ("GET http://127.0.0.1:PORT/ HTTP/1.1\r\nA: " + "b" * 70_000 + "\r\n\r\n", b"431"),
    ],
)
def test_refusals(request_text: str, status: bytes) -> None:
    """A forbidden or malformed request reaches no server and gets its status."""
    served = Served(("127.0.0.1", "localhost.example"))
    (answer,) = through(served, request_text)
    assert answer.split(b" ")[1] == status
    assert served.requests == []


def test_names_that_lead_to_private_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    """An allowed name that leads to loopback is refused, and the log says why."""
    served = Served(("localhost",))
    (answer,) = through(served, "CONNECT localhost:PORT HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    (row,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert row["what"] == "refused"
    assert "127.0.0.1" in row["why"]


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client beyond the limit gets 503 at once, and a place when another has gone."""
    monkeypatch.setattr(proxy_program, "MAX_CONNECTIONS", 1)
    served = Served(("127.0.0.1",))

    async def test() -> None:
        tunnel = "CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"
        async with asyncio.timeout(30), served.tunnel():
            assert (await served.exchange(tunnel)).startswith(b"HTTP/1.1 503 ")
        async with asyncio.timeout(30):
            while (answer := await served.exchange(tunnel)).startswith(b"HTTP/1.1 503 "):
                await asyncio.sleep(0.01)
        assert answer.endswith(b"hello")

    asyncio.run(served.run(test))


def test_the_log_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    """The log stays short, however many requests and names a client makes up."""
    log = Log()
    for count in range(1, 2_001):
        log.add("refused", proxy_program.Destination("evil.example", 443), "no")
        log.add("refused", proxy_program.Destination(f"{count}.example" * 99, 443), "no" * 999)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < proxy_program.MAX_NAMES + 10
    assert max(map(len, lines)) < 600
    evil = [row for row in map(json.loads, lines) if row.get("host") == "evil.example"]
    assert [row["count"] for row in evil] == [1, 10, 100, 1000]
