"""Access control of the server: token, cookie, host names, headers, and connection limits.

The printed link holds a token, which the first visit exchanges for a cookie. Other sites cannot act
for the user: browsers do not send the cookie with their requests (SameSite=Strict), and the server
refuses foreign names (`Host`) and changes requested by other sites (`Origin`).
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
    # Sends no referrer to other sites. With `no-referrer`, forms would send no `Origin` either.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every response; constant files have another `Cache-Control`."""

TOKEN = "token"  # noqa: S105
"""The parameter of a link that holds a token."""
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HTTP_PORT = 80
_SAFE = frozenset({"GET", "HEAD"})
_ONE_TIME_S = 60.0
"""How long a link for a started browser is valid, in seconds."""
MAX_CONNECTIONS = 400
_IDLE_S = 45.0
"""How long a connection may be idle, and how long a client may read nothing, in seconds."""
_FIRST_REQUEST_S = 10.0
"""How long a connection may be open before its first request is admitted, in seconds."""
_LOOK_S = 2.0


class PageRefused(Exception):
    """A request that is refused, with the HTTP status and the reason."""

    def __init__(self, status: HTTPStatus, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint


class Access:
    """The secrets of one server, and the checks of requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._token, self._session = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self._one_time: dict[str, float] = {}
        self._cookie = f"labledger_view_{port}"
        """The port is in the name because browsers send a host's cookies to all of its ports."""
        ports = ("", f":{port}") if port == _HTTP_PORT else (f":{port}",)
        self._hosts = frozenset(f"{name}{end}" for name in _NAMES for end in ports)

    def link(self, path: str = "/", *, once: bool = False) -> str:
        """Return the link to a path with a token.

        With `once`, the link works once, within a minute, because other users of the machine can
        read the arguments of the browser's process.
        """
        token = self._token
        if once:
            token = secrets.token_urlsafe(24)
            self._one_time[token] = clock.monotonic() + _ONE_TIME_S
        return f"http://127.0.0.1:{self._port}{path}?{TOKEN}={token}"

    def check_host(self, request: web.BaseRequest) -> None:
        """Raise `PageRefused` unless the `Host` header names loopback and the server's port."""
        if request.headers.get("Host", "").lower() not in self._hosts:
            raise PageRefused(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server answers only to its own address on loopback",
                f"open http://127.0.0.1:{self._port}/ with the token of the link that was printed; "
                "a tunnel needs the same port at both ends",
            )

    def is_admitted(self, request: web.BaseRequest) -> bool:
        """Return whether a request has the session's cookie, or the token as a bearer token."""
        cookie = request.cookies.get(self._cookie, "")
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return _equal(cookie, self._session) or _equal(bearer, self._token)

    def check_origin(self, request: web.BaseRequest) -> None:
        """Raise `PageRefused` if a page of another site requests a change."""
        if request.method in _SAFE:
            return
        if request.headers.get("Origin", "").lower() != f"http://{request.headers['Host'].lower()}":
            raise PageRefused(
                HTTPStatus.FORBIDDEN, "only a page of this server may ask for changes"
            )

    def exchange(self, request: web.Request) -> web.Response | None:
        """Exchange a valid token for the cookie, and redirect to the same path without the token.

        Returns None if the request has no valid token.
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
    """Return whether a browser followed a link on another site, and therefore sent no cookie."""
    return (
        request.method == "GET"
        and request.headers.get("Sec-Fetch-Site") == "cross-site"
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )


def _equal(received: str, expected: str) -> bool:
    return secrets.compare_digest(received.encode("utf-8", "replace"), expected.encode())


@dataclass
class _Seen:
    """The state of a connection when it last sent bytes."""

    moved_at: float
    unsent: int


class Connections:
    """Limits the number of connections, and how long one may be idle or leave data unread.

    Without limits, a process on this machine could open connections, send or read nothing, and
    exhaust the server's files and memory. At the limit, a new connection replaces an idle one, so
    that such a process cannot lock out the user either.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._busy: set[asyncio.BaseProtocol] = set()
        self._admitted: set[asyncio.BaseProtocol] = set()
        """The connections that carried a request of an admitted browser."""
        self._used_at: dict[asyncio.BaseProtocol, float] = {}
        """When each connection was opened, or last had a request in progress."""
        self._seen: dict[RequestHandler, _Seen] = {}

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection. At the limit, close an idle one for it."""
        if len(self._open()) >= MAX_CONNECTIONS and not self._end_one():
            return _Refusing()
        connection = self._server()
        self._used_at[connection] = clock.monotonic()
        return connection

    def _end_one(self) -> bool:
        """Close the connection that was idle longest. Connections without an admitted request come
        first. Returns False if all connections are busy."""
        self._forget_ended()
        idle = [connection for connection in self._open() if connection not in self._busy]
        if not idle:
            return False
        oldest = min(idle, key=lambda c: (c in self._admitted, self._used_at.get(c, 0.0)))
        assert oldest.transport is not None
        oldest.transport.abort()
        return True

    def _open(self) -> list[RequestHandler]:
        """Return the connections that are not closing."""
        return [
            connection
            for connection in self._server.connections
            if connection.transport is not None and not connection.transport.is_closing()
        ]

    def begin(self, request: web.BaseRequest) -> None:
        """Note that a request of an admitted browser is in progress."""
        if request.protocol is not None:
            self._busy.add(request.protocol)
            self._admitted.add(request.protocol)

    def end(self, request: web.BaseRequest) -> None:
        """Note that a request was answered."""
        if request.protocol is not None:
            self._busy.discard(request.protocol)
            self._used_at[request.protocol] = clock.monotonic()

    async def watch(self) -> None:
        """Close stalled connections, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.end_idle(_IDLE_S, _FIRST_REQUEST_S)

    def end_idle(self, idle_s: float, first_request_s: float) -> None:
        """Close connections that made no progress for `idle_s` seconds.

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
        self._used_at = {key: time for key, time in self._used_at.items() if key in present}
        self._seen = {key: seen for key, seen in self._seen.items() if key in present}


class _Refusing(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
