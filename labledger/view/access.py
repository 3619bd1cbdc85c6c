"""Who may ask the server for what: token, cookie, names of the host, headers, and connections.

The link that the server prints holds a token, which is exchanged for a cookie at the first visit.
A page of another site cannot ask in the user's name: the cookie is not sent with its requests
(SameSite=Strict), a name of another site that leads to loopback is refused (`Host`), and so is a
change that another site asks for (`Origin`). Every answer forbids scripts and requests beyond the
server's own. Connections are limited.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from labledger import clock

_CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # To other sites nothing is sent. With `no-referrer`, forms would not say which site sent them.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer; files that do not change have another `Cache-Control`."""

TOKEN = "token"  # noqa: S105
"""The parameter of a link that holds a token."""
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HTTP_PORT = 80
_SAFE = frozenset({"GET", "HEAD"})
_ONE_TIME_S = 60.0
"""For how long a link that is handed to a browser can be followed."""
MAX_CONNECTIONS = 400
_IDLE_S = 45.0
"""For how long a connection may have no request under way, in seconds; so a client that does not
read."""
_FIRST_REQUEST_S = 10.0
"""How long a connection may be open before its first request is admitted, in seconds."""
_LOOK_S = 2.0


class Refused(Exception):
    """A request that is not answered, with the status and why."""

    def __init__(self, status: HTTPStatus, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint


class Access:
    """The secrets of one server, and the check of each request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._token, self._session = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self._one_time: dict[str, float] = {}
        self._cookie = f"labledger_view_{port}"
        """Browsers send a host's cookies to all of its ports."""
        ports = ("", f":{port}") if port == _HTTP_PORT else (f":{port}",)
        self._hosts = frozenset(f"{name}{end}" for name in _NAMES for end in ports)

    def link(self, path: str = "/", *, once: bool = False) -> str:
        """Return the link to a path with a token.

        With `once`, it can be followed once, within a minute: other users of the machine can read
        the arguments of the browser's process.
        """
        token = self._token
        if once:
            token = secrets.token_urlsafe(24)
            self._one_time[token] = clock.monotonic() + _ONE_TIME_S
        return f"http://127.0.0.1:{self._port}{path}?{TOKEN}={token}"

    def check_host(self, request: web.BaseRequest) -> None:
        """Raise `Refused` unless a request names the server as loopback, with its port."""
        if request.headers.get("Host", "").lower() not in self._hosts:
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server answers only to its own address on loopback",
                f"open http://127.0.0.1:{self._port}/ with the token of the link that was printed; "
                "a tunnel needs the same port at both ends",
            )

    def is_admitted(self, request: web.BaseRequest) -> bool:
        """Return whether a request has the session's cookie, or the token as a bearer."""
        cookie = request.cookies.get(self._cookie, "")
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return _equal(cookie, self._session) or _equal(bearer, self._token)

    def check_origin(self, request: web.BaseRequest) -> None:
        """Raise `Refused` for a change that a page of another site asks for."""
        if request.method in _SAFE:
            return
        if request.headers.get("Origin", "").lower() != f"http://{request.headers['Host'].lower()}":
            raise Refused(HTTPStatus.FORBIDDEN, "only a page of this server may ask for changes")

    def exchange(self, request: web.Request) -> web.Response | None:
        """Return the answer to a request with a token: the cookie, and where to go without it.

        None if it has no token, or a wrong one.
        """
        token = request.query.get(TOKEN, "")
        if request.method not in _SAFE or not (_equal(token, self._token) or self._spend(token)):
            return None
        response = web.Response(status=HTTPStatus.SEE_OTHER)
        target = request.rel_url.without_query_params(TOKEN)
        # A path such as //host would be another host.
        response.headers["Location"] = "/" + str(target).lstrip("/")
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
        return response

    def _spend(self, token: str) -> bool:
        ends = self._one_time.pop(token, 0.0)
        return clock.monotonic() < ends


def comes_from_elsewhere(request: web.BaseRequest) -> bool:
    """Return whether a browser followed a link of another site, and so sent no cookie along."""
    return (
        request.method == "GET"
        and request.headers.get("Sec-Fetch-Site") == "cross-site"
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )


def _equal(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), expected.encode())


@dataclass
class _Seen:
    """How a connection was when it last moved."""

    moved_at: float
    unsent: int


class Connections:
    """The limits on a server's connections: how many, and how long one may be idle or not read.

    Without them, a process on this machine that opens connections and sends or reads nothing could
    use up the server's files and memory. A new connection takes the place of one that has no
    request under way, so such a process cannot keep the user from the pages either.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._busy: set[asyncio.BaseProtocol] = set()
        self._admitted: set[asyncio.BaseProtocol] = set()
        """The connections that carried a request of an admitted browser."""
        self._used_at: dict[asyncio.BaseProtocol, float] = {}
        """When each connection was opened, or last had a request under way."""
        self._seen: dict[RequestHandler, _Seen] = {}

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection. Another connection may be ended for it."""
        if len(self._open()) >= MAX_CONNECTIONS and not self._end_one():
            return _Refusing()
        connection = self._server()
        self._used_at[connection] = clock.monotonic()
        return connection

    def _end_one(self) -> bool:
        """End the connection that was unused for longest; connections without an admitted request
        come first. Returns False if all are busy."""
        self._forget_ended()
        free = [each for each in self._open() if each not in self._busy]
        if not free:
            return False
        last = min(free, key=lambda each: (each in self._admitted, self._used_at.get(each, 0.0)))
        assert last.transport is not None
        last.transport.abort()
        return True

    def _open(self) -> list[RequestHandler]:
        """Return the connections that are not closing."""
        return [
            each
            for each in self._server.connections
            if each.transport is not None and not each.transport.is_closing()
        ]

    def begin(self, request: web.BaseRequest) -> None:
        """Note that a request of an admitted browser is under way."""
        if request.protocol is not None:
            self._busy.add(request.protocol)
            self._admitted.add(request.protocol)

    def end(self, request: web.BaseRequest) -> None:
        """Note that a request has its answer."""
        if request.protocol is not None:
            self._busy.discard(request.protocol)
            self._used_at[request.protocol] = clock.monotonic()

    async def watch(self) -> None:
        """End connections that do not move, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.end_idle(_IDLE_S, _FIRST_REQUEST_S)

    def end_idle(self, idle_s: float, first_request_s: float) -> None:
        """End connections that did not move for `idle_s` seconds.

        `first_request_s` is the limit for connections without a request of an admitted browser.
        """
        now = clock.monotonic()
        self._forget_ended()
        for connection in list(self._server.connections):
            transport = connection.transport
            if transport is None:
                continue
            unsent = transport.get_write_buffer_size()
            seen = self._seen.setdefault(connection, _Seen(now, unsent))
            is_working = connection in self._busy and not unsent
            limit_s = idle_s if connection in self._admitted else first_request_s
            if is_working or unsent != seen.unsent:
                self._seen[connection] = _Seen(now, unsent)
            elif now - seen.moved_at >= limit_s:
                transport.abort()

    def _forget_ended(self) -> None:
        present = set(self._server.connections)
        self._busy &= present
        self._admitted &= present
        self._used_at = {each: at for each, at in self._used_at.items() if each in present}
        self._seen = {each: seen for each, seen in self._seen.items() if each in present}


class _Refusing(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
