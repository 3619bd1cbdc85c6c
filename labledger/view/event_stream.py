"""The stream of server-sent events that an open page listens to."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from http import HTTPStatus

from aiohttp import web

from labledger import clock
from labledger.records import JsonObject
from labledger.text import escape_values
from labledger.view.access import HEADERS, Refused
from labledger.view.parameters import Parameters
from labledger.view.watcher import Watcher

PARAMETERS = ("run",)
_MAX_STREAMS = 100
_ALIVE_S = 15.0
"""Seconds without an event after which `alive` is sent: a page behind a tunnel that hangs knows."""
_RETRY_MS = 1000


class EventStreams:
    """Answers requests for events."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._start = secrets.token_hex(8)
        """Another one tells pages that the server was started again."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send events until the page is closed."""
        if self._watcher.listeners >= _MAX_STREAMS:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open")
        parameters = Parameters(list(request.query.items()), PARAMETERS)
        run_ids = frozenset(parameters.texts("run")) or None
        response = web.StreamResponse(headers={**HEADERS, "X-Accel-Buffering": "no"})
        response.content_type, response.charset = "text/event-stream", "utf-8"
        # A page that is closed while it is written to ends its stream.
        with self._watcher.listening(run_ids) as listener, suppress(ConnectionResetError):
            await response.prepare(request)
            hello = {"start": self._start, "at": clock.utc_now(), "ledger": self._watcher.ledger}
            await response.write(f"retry: {_RETRY_MS}\n".encode() + _event("hello", hello))
            while True:
                events = await listener.events(_ALIVE_S) or [("alive", {})]
                # A client that does not read lets this wait, and gets the newest state afterwards.
                await response.write(b"".join(_event(name, data) for name, data in events))
        return response


def _event(name: str, data: JsonObject) -> bytes:
    text = json.dumps(escape_values(data), ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode("utf-8", "replace")
