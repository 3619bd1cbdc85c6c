"""The HTTP server of a scripted provider.

It listens only on loopback. It also answers other requests of agents: for lists of models, counts
of tokens, and HEAD. `GET /_requests` reports the received requests, keys included, and `DELETE`
forgets them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from labledger.errors import LabLedgerError
from labledger.gateway.scripted.agent_actions import NoTool, Said, is_auxiliary, said_in
from labledger.gateway.scripted.received_requests import Conversation, api_of, read_conversation
from labledger.gateway.scripted.script import Fault, Script, ScriptedTask, Turn
from labledger.gateway.scripted.scripted_answers import ENDLESS_TEXT, FORMS, Reply
from labledger.records import JsonObject
from labledger.records.canonical_json import sha256_hex
from labledger.records.model_calls import Api

_MAX_BODY = 64 << 20
_KEPT_REQUESTS = 10_000
_KEPT_BODY = 256 << 10
"""The most requests that are reported, and the most bytes of each body."""
_HANG_S = 3600.0


class ScriptedProvider:
    """A provider that answers by a script. `app` serves it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._faults_met: Counter[tuple[str, int]] = Counter()
        """How many requests for each turn have met a fault, over all conversations."""
        self._requests: deque[JsonObject] = deque(maxlen=_KEPT_REQUESTS)
        self._numbers = itertools.count(1)

    @property
    def requests(self) -> list[JsonObject]:
        """The received requests, in order: method, path, headers, body, task, turn and outcome."""
        return list(self._requests)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_get("/_requests", self._report)
        app.router.add_delete("/_requests", self._forget)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _report(self, _: web.Request) -> web.Response:
        return web.json_response(list(self._requests))

    async def _forget(self, _: web.Request) -> web.Response:
        self._requests.clear()
        return web.Response(status=204)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        note = self._note(request, body)
        api = api_of(request.path)
        if api is None or request.method != "POST":
            return self._beside(request, note)
        key = _key(request)
        form = FORMS[api]
        if self._script.keys and key not in self._script.keys:
            note["outcome"] = "wrong key"
            return web.json_response(form.error(401, f"unknown key {key}"), status=401)
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            note["outcome"] = "no JSON object"
            return web.json_response(form.error(400, "the body is no JSON object"), status=400)
        conversation = read_conversation(api, request.path, document)
        return await self._answer_conversation(request, conversation, note, key)

    def _note(self, request: web.Request, body: bytes) -> JsonObject:
        note: JsonObject = {
            "number": next(self._numbers),
            "method": request.method,
            "path": request.path_qs,
            "headers": [[name, value] for name, value in request.headers.items()],
            "body_bytes": len(body),
            "body_sha256": sha256_hex(body),
            "body": body[:_KEPT_BODY].decode("utf-8", "replace"),
            "task": None,
            "turn": None,
            "outcome": "answered",
        }
        self._requests.append(note)
        return note

    def _beside(self, request: web.Request, note: JsonObject) -> web.Response:
        """Answer a request that does not ask a model."""
        note["outcome"] = "beside"
        if request.path.endswith("/count_tokens"):
            return web.json_response({"input_tokens": note["body_bytes"] // 4})
        if request.path.endswith(":countTokens"):
            return web.json_response({"totalTokens": note["body_bytes"] // 4})
        if request.path.endswith("/models") and request.method == "GET":
            return web.json_response({"object": "list", "data": [], "models": []})
        if request.method in {"HEAD", "GET"} and request.path.strip("/") == "":
            return web.Response()
        error = {"error": {"message": f"no script answers {request.method} {request.path}"}}
        return web.json_response(error, status=404)

    async def _answer_conversation(
        self, request: web.Request, conversation: Conversation, note: JsonObject, key: str
    ) -> web.StreamResponse:
        task = self._script.task_of(conversation.model, conversation.text)
        if task is not None and not task.plain and is_auxiliary(conversation):
            task = None
        turn = self._script.auxiliary if task is None else task.turn(conversation.answers)
        number = conversation.answers
        note |= {"task": task and task.name, "turn": None if task is None else number}
        note["auxiliary"] = task is None
        fault = self._next_fault(task, turn, number)
        if fault is not None:
            note["outcome"] = "fault"
        try:
            message = said_in(turn, conversation)
        except NoTool as error:
            note["outcome"] = str(error)
            return web.json_response(FORMS[conversation.api].error(400, str(error)), status=400)
        await asyncio.sleep(turn.wait_s)
        reply = _reply(conversation, turn, message, note)
        return await _Exchange(request, conversation.api, reply, turn.pace_s, fault, key).run(
            streamed=conversation.streamed
        )

    def _next_fault(self, task: ScriptedTask | None, turn: Turn, number: int) -> Fault | None:
        """Return the fault of a request for a turn, and count it; None without one."""
        place = ("" if task is None else task.name, number)
        remaining = self._faults_met[place]
        for fault in turn.faults:
            if fault.times == 0 or remaining < fault.times:
                self._faults_met[place] += 1
                return fault
            remaining -= fault.times
        return None


def _reply(conversation: Conversation, turn: Turn, message: Said, note: JsonObject) -> Reply:
    name = f"{conversation.answers:04d}{note['body_sha256'][:16]}"
    return Reply(name, conversation.model, message, turn.usage, conversation.wants_usage)


def _key(request: web.Request) -> str:
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    named = (request.headers.get(name) for name in ("x-api-key", "x-goog-api-key"))
    return next(filter(None, named), "") or bearer or request.query.get("key", "")


class _Exchange:
    """One answer, with its fault."""

    def __init__(
        self,
        request: web.Request,
        api: Api,
        reply: Reply,
        pace_s: float,
        fault: Fault | None,
        key: str,
    ) -> None:
        self._request, self._form, self._reply = request, FORMS[api], reply
        self._pace_s, self._fault, self._key = pace_s, fault or Fault(), key
        self._headers = {"request-id": f"req_{reply.id}", "x-request-id": f"req_{reply.id}"}

    async def run(self, *, streamed: bool) -> web.StreamResponse:
        fault = self._fault
        if fault.hang:
            await asyncio.sleep(_HANG_S)
        if fault.reset:
            return self._hang_up(web.Response())
        if fault.status is not None:
            return self._error(fault.status)
        if fault.wrong_json:
            return web.Response(
                body=b'{"type": "mess', content_type="application/json", headers=self._headers
            )
        return await (self._stream() if streamed else self._whole())

    def _error(self, status: int) -> web.Response:
        headers = dict(self._headers)
        if self._fault.retry_after is not None:
            headers["Retry-After"] = f"{self._fault.retry_after:g}"
        return web.json_response(
            self._form.error(status, self._message), status=status, headers=headers
        )

    @property
    def _message(self) -> str:
        return self._fault.message.replace("{key}", self._key)

    async def _whole(self) -> web.StreamResponse:
        body = json.dumps(self._form.whole(self._reply)).encode()
        if self._fault.cut_after is None:
            return web.Response(body=body, content_type="application/json", headers=self._headers)
        response = web.StreamResponse(headers={**self._headers, "Content-Length": str(len(body))})
        response.content_type = "application/json"
        await response.prepare(self._request)
        await response.write(body[: min(self._fault.cut_after, len(body) - 1)])
        return self._hang_up(response)

    async def _stream(self) -> web.StreamResponse:
        response = web.StreamResponse(headers={**self._headers, "Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"
        await response.prepare(self._request)
        for number, event in enumerate(self._form.events(self._reply)):
            if number == self._fault.cut_after:
                return self._hang_up(response)
            if number == self._fault.error_after:
                await response.write(self._form.error_event(self._message))
                return response
            if self._fault.endless and number == 2:
                break
            if number and self._pace_s:
                await asyncio.sleep(self._pace_s)
            await response.write(event)
        while self._fault.endless:
            await response.write(self._form.more_text(ENDLESS_TEXT))
            await asyncio.sleep(self._pace_s)
        await response.write_eof()
        return response

    def _hang_up(self, response: web.StreamResponse) -> web.StreamResponse:
        """End the connection without the end of the answer."""
        if self._request.transport is not None:
            self._request.transport.close()
        return response


@asynccontextmanager
async def serving(provider: ScriptedProvider, port: int = 0) -> AsyncIterator[int]:
    """Serve a provider on 127.0.0.1 while the block runs. Yields the port."""
    # Requests that hang are cancelled when their client disconnects, or the server ends.
    runner = web.AppRunner(
        provider.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            raise LabLedgerError(
                f"could not listen on 127.0.0.1:{port}: {error.strerror}",
                hint="choose another port, or 0 for a free one",
            ) from error
        addresses: list[Any] = runner.addresses
        yield addresses[0][1]
    finally:
        await runner.cleanup()


def serve_script(script: Script, port: int, started: Callable[[int], None]) -> None:
    """Serve a script until the process is interrupted. `started` gets the port."""

    async def serve() -> None:
        async with serving(ScriptedProvider(script), port) as bound:
            started(bound)
            await asyncio.Event().wait()

    asyncio.run(serve())
