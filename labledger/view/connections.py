"""Limits on connections: how many there are, and how long one may be idle or not read.

Without them, a process on this machine that opens connections and sends or reads nothing could use
up the server's files and memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from labledger import clock

MAX_CONNECTIONS = 400
_IDLE_S = 45.0
"""For how long a connection may have no request under way, in seconds; so a client that does not
read."""
_LOOK_S = 2.0


@dataclass
class _Seen:
    """How a connection was when it last moved."""

    moved_at: float
    unsent: int


class Connections:
    """The connections of a server."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._busy: set[asyncio.BaseProtocol] = set()
        self._seen: dict[RequestHandler, _Seen] = {}

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection: one that ends it if there are too many."""
        if len(self._server.connections) >= MAX_CONNECTIONS:
            return _Refusing()
        return self._server()

    def begin(self, request: web.BaseRequest) -> None:
        """Note that a request is under way."""
        if request.protocol is not None:
            self._busy.add(request.protocol)

    def end(self, request: web.BaseRequest) -> None:
        """Note that a request has its answer."""
        if request.protocol is not None:
            self._busy.discard(request.protocol)

    async def watch(self) -> None:
        """End connections that do not move, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.end_idle(_IDLE_S)

    def end_idle(self, idle_s: float) -> None:
        """End the connections that did not move for so many seconds."""
        now = clock.monotonic()
        present = list(self._server.connections)
        self._seen = {each: self._seen[each] for each in present if each in self._seen}
        for connection in present:
            transport = connection.transport
            if transport is None:
                continue
            unsent = transport.get_write_buffer_size()
            seen = self._seen.setdefault(connection, _Seen(now, unsent))
            is_working = connection in self._busy and not unsent
            if is_working or unsent != seen.unsent:
                self._seen[connection] = _Seen(now, unsent)
            elif now - seen.moved_at >= idle_s:
                transport.abort()


class _Refusing(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
