"""What clients of a gateway ask of it, over HTTP at the control socket of the lab's folder.

Only users who reach the lab folder reach the socket. A client of another protocol is told which one
the gateway speaks, and can stop it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from labledger import __version__, clock
from labledger.errors import LabLedgerError
from labledger.gateway.attempts import Attempts
from labledger.gateway.client import PROTOCOL, PROTOCOL_HEADER
from labledger.gateway.status import GatewayStatus
from labledger.gateway.upstream import Upstream
from labledger.records import JsonObject
from labledger.records.model_grants import CapShare, KeySource

_MAX_BODY = 4 << 20
_Handler = Callable[[Any], Awaitable[JsonObject]]


class Control:
    """Answers the clients of a gateway. For one event loop."""

    def __init__(self, attempts: Attempts, upstream: Upstream, stop: asyncio.Event) -> None:
        self._attempts, self._upstream, self._stop = attempts, upstream, stop
        self._started_at = clock.utc_now()
        self.asked_at = time.monotonic()
        """When a client last asked for something."""
        self._handlers: dict[tuple[str, str], _Handler] = {
            ("POST", "/keys"): self._keys,
            ("POST", "/open"): self._open,
            ("POST", "/close"): self._close,
            ("POST", "/shares"): self._shares,
            ("GET", "/status"): self._status,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if (request.method, request.path) == ("POST", "/stop"):
            # Of any protocol: that is how a gateway of another version is replaced.
            self._stop.set()
            return web.json_response({})
        if request.headers.get(PROTOCOL_HEADER) != str(PROTOCOL):
            return web.json_response(self._status_now().as_json(), status=409)
        handler = self._handlers.get((request.method, request.path))
        if handler is None:
            return web.json_response({"error": "there is no such request"}, status=404)
        self.asked_at = time.monotonic()
        try:
            body = await request.content.read(_MAX_BODY)
            return web.json_response(await handler(json.loads(body) if body else {}))
        except LabLedgerError as error:
            return web.json_response({"error": error.message, "hint": error.hint}, status=422)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # The message of another error could hold what was sent.
            message = f"the request is not valid: {type(error).__name__}"
            return web.json_response({"error": message, "hint": None}, status=422)

    async def _keys(self, body: Any) -> JsonObject:
        keys = {KeySource.from_json(row["source"]): str(row["key"]) for row in body["keys"]}
        self._upstream.keys.take(body["run_id"], keys)
        return {}

    async def _open(self, body: Any) -> JsonObject:
        await self._attempts.open(Path(body["trial"]))
        return {}

    async def _close(self, body: Any) -> JsonObject:
        await self._attempts.close(Path(body["trial"]))
        return {}

    async def _shares(self, body: Any) -> JsonObject:
        shares = [CapShare.from_json(row) for row in body["shares"]]
        uses = self._attempts.take_shares(body["run_id"], shares)
        return {"uses": [use.as_json() for use in uses]}

    async def _status(self, _: Any) -> JsonObject:
        return self._status_now().as_json()

    def _status_now(self) -> GatewayStatus:
        return GatewayStatus(
            pid=os.getpid(),
            version=__version__,
            protocol=PROTOCOL,
            started_at=self._started_at,
            runs_with_keys=self._upstream.keys.runs,
            variants=self._attempts.variants(),
            paces=self._upstream.paces(),
            problems=self._attempts.problems(),
        )
