"""One open attempt: its grant, its socket, its journal, and what happens to a request.

A request is judged, reserved against the caps, journaled, sent to the provider, and its answer is
passed on. A request that is not admitted gets an error in the form of its API, with a status that
agents do not repeat.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from labledger.gateway.admission import MAX_BODY, Admission, Admitted, Target, error_of, is_greeting
from labledger.gateway.answer_relay import Relay
from labledger.gateway.answers import Answer, Headers, NoAnswer
from labledger.gateway.calls import Calls, Journal, JournalBroken, OpenCall
from labledger.gateway.caps import (
    Account,
    CapReached,
    Caps,
    WorstCase,
    counted_request,
    worst_case,
)
from labledger.gateway.families.family import Asked, Refused
from labledger.gateway.known_requests import KnownRequests
from labledger.gateway.pacing import WaitedTime
from labledger.gateway.recordings import (
    CanonicalRequest,
    Recording,
    Replay,
    ReplayMiss,
    canonical_request,
)
from labledger.gateway.request_headers import check_headers
from labledger.gateway.unix_sockets import listen
from labledger.gateway.upstream import Upstream
from labledger.records.model_calls import JOURNAL, NO_SHARE, CallState, ModelCall
from labledger.records.model_costs import PriceTable
from labledger.records.model_grants import (
    GRANT,
    RECORD,
    SCHEMA,
    SOCKET,
    WAITED,
    ModelGrant,
    Waiting,
)

_log = logging.getLogger("labledger.gateway")
_PARALLEL = 32
"""How many requests of an attempt are under way at once; others wait."""
_LARGE_BODY = 2 << 20
_LARGE_PARALLEL = 2
"""How many bodies larger than that are in memory at once for an attempt."""
_MAX_FIELD = 64 << 10
_BODY_S = 120.0
"""How long a request may take to arrive, in seconds."""
_CLOSING_S = 0.1
_SHARE_S = 600.0
"""How long a call waits for more of a cap that hosts share, in seconds."""
_DO_NOT_RETRY = {"x-should-retry": "false"}
"""What the clients of Anthropic and OpenAI go by, whatever the status."""


class BadGrant(Exception):
    """A grant cannot be used. The text continues a sentence that begins with its file."""


def read_grant(trial: Path) -> ModelGrant:
    """Return the grant of the attempt in a trial's folder. Raises `BadGrant`, and `OSError`."""
    try:
        document = json.loads((trial / GRANT).read_bytes())
        if not isinstance(document, dict) or document.get("schema_version") != SCHEMA:
            raise BadGrant(f"is no {SCHEMA}")
        return ModelGrant.from_json(document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadGrant(f"is not valid: {error}") from None


@dataclass(frozen=True, slots=True)
class Accounts:
    """The accounts of an attempt."""

    trial: Account
    variant: Account
    run: Account


class Attempt:
    """An open attempt. For one event loop."""

    def __init__(
        self, trial: Path, grant: ModelGrant, accounts: Accounts, upstream: Upstream
    ) -> None:
        """Take up the attempt in a trial's folder. Raises `OSError`, `ValueError`, `BadGrant`."""
        self.trial, self.grant, self.accounts = trial, grant, accounts
        self._upstream = upstream
        self._admission = Admission(grant)
        self._known = KnownRequests()
        self._prices = PriceTable(grant.prices)
        limits = (
            (accounts.trial, grant.limits),
            (accounts.variant, grant.variant_limits),
            (accounts.run, grant.run_limits),
        )
        journal = Journal.open(trial / JOURNAL)
        try:
            # If the record is missing, or not readable, say so before a container starts.
            self._replay = _replay(trial, grant, journal)
            socket = trial / SOCKET
            socket.parent.mkdir(mode=0o755, exist_ok=True)
            self._listener = listen(socket, for_all=True)
        except BaseException:
            journal.close()
            raise
        # From here on nothing fails: calls are counted in accounts that others share.
        caps = Caps(limits, self._prices)
        self.calls = Calls(journal, caps, grant.schedule_idx, replayed=self._replay is not None)
        excluded = grant.waiting is Waiting.EXCLUDED
        self.waited = WaitedTime(trial / WAITED if excluded else None)
        self._places = asyncio.Semaphore(_PARALLEL)
        self._large_places = asyncio.Semaphore(_LARGE_PARALLEL)
        self._runner: web.ServerRunner | None = None

    @property
    def problem(self) -> str | None:
        """What does not work; None if all does."""
        return self.calls.journal.broken or self.waited.problem

    async def serve(self) -> None:
        """Answer at the attempt's socket."""
        server = web.Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=_MAX_FIELD,
            max_field_size=_MAX_FIELD,
        )
        runner = web.ServerRunner(server, shutdown_timeout=_CLOSING_S)
        await runner.setup()
        await web.SockSite(runner, self._listener).start()
        self._runner = runner

    async def close(self) -> None:
        """Admit no more requests, end those under way, and make the journal durable.

        Raises `JournalBroken`.
        """
        self.calls.closing = True
        path = self.trial / SOCKET
        with suppress(OSError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                path.unlink()
        if self._runner is not None:
            await self._runner.cleanup()
        self.calls.journal.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        target: Target | None = None
        try:
            if is_greeting(request.method, request.raw_path):
                return web.Response()
            self._admission.check_token(request.headers, request.raw_path)
            target = self._admission.target(request.method, request.raw_path)
            check_headers(_headers(request))
            async with self._places:
                return await self._handle_call(request, target)
        except Refused as refused:
            return _error(target, refused.status, refused.message)
        except JournalBroken as error:
            _log.error("%s", error.message)
            return _error(target, 503, "labledger: the journal of calls cannot be written")
        except NoAnswer as failure:
            return _error(target, failure.status, failure.message)

    async def _handle_call(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        model = target.endpoint.model or ""
        try:
            body = await self._body(request)
            asked, document = self._admission.read(target, body)
            model = asked.model
            self._admission.check_grant(target, asked)
            admitted = Admitted(target, asked, body, document)
            call, worst = await self._reserved(request, target, asked)
        except Refused as refused:
            await self.calls.refuse(target, model, refused.status, refused.reason)
            raise
        except CapReached as cap:
            message = f"labledger: {cap.message}"
            status = target.family.forbidden
            await self.calls.refuse(target, model, status, cap.reason)
            raise Refused(status, cap.reason, message) from None
        return await self._forward(request, admitted, call, worst)

    async def _reserved(
        self, request: web.BaseRequest, target: Target, asked: Asked
    ) -> tuple[OpenCall, WorstCase]:
        """Begin a call with the most that it can use. Raises `CapReached`, and `Refused`."""
        trace, betas = asked.trace, _betas(request)
        most = None if trace is None else self._known.most_tokens(trace, betas)
        worst = worst_case(
            asked, target.provider.name, self.grant.unstated_output, self._prices, most
        )
        call = await self._begin(target, asked.model, worst)

        def note(ended: ModelCall) -> None:
            counted = counted_request(ended, worst)
            if trace is not None and counted is not None:
                self._known.note(trace, betas, ended, counted.request)

        call.when_ended = note
        return call, worst

    async def _begin(self, target: Target, model: str, worst: WorstCase) -> OpenCall:
        """Begin a call as soon as caps allow it. Raises `CapReached`, and `Refused`."""
        if not self.grant.shared:
            return await self.calls.begin(target, model, worst)
        try:
            with self.waited.waiting():
                async with asyncio.timeout(_SHARE_S):
                    return await self.calls.begin(target, model, worst)
        except TimeoutError:
            message = "labledger: what this host may use of the caps of the run is used up"
            raise Refused(503, NO_SHARE, message) from None

    async def _body(self, request: web.BaseRequest) -> bytes:
        """Return a request's body. Raises `Refused`."""
        length = request.content_length
        if length is not None and length > MAX_BODY:
            raise _too_large()
        if length is not None and length <= _LARGE_BODY:
            return await _read(request)
        async with self._large_places:
            return await _read(request)

    async def _forward(
        self, request: web.BaseRequest, admitted: Admitted, call: OpenCall, worst: WorstCase
    ) -> web.StreamResponse:
        relay = Relay(request, call, admitted, worst.usage.output, self._recording(admitted, call))
        try:
            answer = await self._answer(request, admitted, call)
            with self.waited.working():
                return await relay.run(answer)
        except NoAnswer as failure:
            call.end(CallState.FAILED, reason=failure.reason, status=failure.status)
            await asyncio.shield(call.durable())
            raise
        except BaseException:
            call.leave()
            raise

    async def _answer(self, request: web.BaseRequest, admitted: Admitted, call: OpenCall) -> Answer:
        if self._replay is not None:
            asked = canonical_request(admitted.target, admitted.document)
            return await self._replayed(self._replay, asked)
        headers = _headers(request)
        return await self._upstream.ask(
            self.grant.run_id, admitted.target, headers, admitted.body, self.waited, call.progress
        )

    async def _replayed(self, replay: Replay, asked: CanonicalRequest) -> Answer:
        try:
            return replay.answer(asked.request)
        except ReplayMiss as miss:
            await asyncio.get_running_loop().run_in_executor(None, miss.keep, self.trial)
            raise

    def _recording(self, admitted: Admitted, call: OpenCall) -> Recording | None:
        if not self.grant.record:
            return None
        asked = canonical_request(admitted.target, admitted.document)
        return Recording(self.trial / RECORD, call.number, asked)


def _headers(request: web.BaseRequest) -> Headers:
    return [
        (name.decode("ascii"), value.decode("utf-8", "surrogateescape"))
        for name, value in request.raw_headers
    ]


def _betas(request: web.BaseRequest) -> str:
    """Return the headers by which a provider may read a body in another way."""
    names = ("anthropic-beta", "anthropic-version", "openai-beta")
    return "\n".join(f"{name}: {request.headers.getall(name, [])}" for name in names)


def _replay(trial: Path, grant: ModelGrant, journal: Journal) -> Replay | None:
    if grant.replay is None:
        return None
    ended = {call.call for call in journal.calls if call.state is not CallState.UNKNOWN}
    return Replay(Path(grant.replay), trial, ended)


async def _read(request: web.BaseRequest) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > MAX_BODY:
                    raise _too_large()
    except TimeoutError:
        raise Refused(408, "body", "labledger: the body did not arrive in time") from None
    except web.RequestPayloadError:
        raise Refused(400, "body", "labledger: the body did not arrive whole") from None
    return bytes(body)


def _too_large() -> Refused:
    return Refused(413, "body", f"labledger: the body has more than {MAX_BODY >> 20} MB")


def _error(target: Target | None, status: int, message: str) -> web.Response:
    headers = {} if status >= 500 or status == 429 else _DO_NOT_RETRY
    body = json.dumps(error_of(target, status, message)).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
