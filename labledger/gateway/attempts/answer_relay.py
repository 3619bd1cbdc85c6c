"""Pass an answer to the agent, and read its usage on the side.

The first bytes decide the kind of answer, because labels may be wrong. A piece that may complete
the answer waits until the end of the call is durable, or until more follows. Without a length or
chunks, the API's end mark decides whether it is whole.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from labledger.clock import utc_now
from labledger.gateway.accounting.calls import OpenCall
from labledger.gateway.accounting.charging import Charging
from labledger.gateway.attempts.answer_bodies import (
    MAX_START,
    MAX_WHOLE,
    DocumentBody,
    EventsBody,
    LabeledBody,
    StreamBody,
    documents_of,
    note_ambiguous,
    read_body,
)
from labledger.gateway.families.event_stream import BodyForm, form_of
from labledger.gateway.families.family import MAX_NAME
from labledger.gateway.keys import KeyMask
from labledger.gateway.messages.answers import (
    AnswerCut,
    Headers,
    NoAnswer,
    ProviderAnswer,
    for_agent,
    request_id,
)
from labledger.gateway.messages.recordings import Recording
from labledger.gateway.providers.refusals import read_refusal
from labledger.records.model_calls import CallState

_STALLED_S = 300.0
"""How long an agent may take to accept a piece of an answer, in seconds."""
_BYTES_FOR_A_TOKEN = 2048
_BYTES_MORE = 4 << 20
"""Together, more bytes than an answer can have, including the text that events repeat."""


class Relay:
    """Passes the answer of one call."""

    def __init__(
        self,
        request: web.BaseRequest,
        call: OpenCall,
        charging: Charging,
        output_tokens: int,
        recording: Recording | None,
        background: Callable[[asyncio.Future[None]], None],
    ) -> None:
        """`background` gets tasks that continue after the agent gave up the answer."""
        self._request, self._call, self._charging = request, call, charging
        self._reader = charging.reader
        self._max_bytes = _BYTES_MORE + _BYTES_FOR_A_TOKEN * output_tokens
        self._recording, self._background = recording, background
        self._loop = asyncio.get_running_loop()
        self._writing_since: float | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    async def run(self, answer: ProviderAnswer) -> web.StreamResponse:
        """Pass an answer, and end the call. Raises `NoAnswer`, `JournalBroken`."""
        headers = for_agent(answer.headers, answer.key)
        names = {name.lower(): value for name, value in headers}
        self._about: dict[str, Any] = {
            "status": answer.status,
            "request_id": request_id(names, MAX_NAME),
        }
        if self._recording:
            self._recording.begin(answer.status, headers)
        pieces = self._pieces(answer)
        try:
            await self._call.asked()
            self._call.is_answered = answer.status < 300
            if 300 <= answer.status < 400:
                message = "labledger: the provider redirects, which is not followed"
                raise NoAnswer("redirected", 502, message)
            if answer.status < 300 and not self._charging.counts_tokens:
                body, pieces = await self._body(pieces, names.get("content-type", ""))
                if body is not None:
                    return await self._stream(answer, headers, pieces, body)
            return await self._whole(answer, headers, pieces)
        except asyncio.CancelledError:
            self._call.leave(**self._facts())
            raise
        finally:
            answer.close()
            if self._stall_timer is not None:
                self._stall_timer.cancel()
            if self._recording and (writing := self._recording.end_early()):
                self._background(writing)

    def _facts(self) -> dict[str, Any]:
        return {**self._charging.fields(utc_now()), **self._about}

    def _note_error(self, body: StreamBody) -> None:
        if body.detail is not None:
            self._about["detail"] = body.detail

    async def _body(
        self, pieces: AsyncIterator[bytes], label: str
    ) -> tuple[StreamBody | None, AsyncIterator[bytes]]:
        """Return the body of a stream and all its pieces. An answer in one piece has no body.

        An answer that is labeled as a stream begins for the agent at once. Otherwise the first
        bytes decide.
        """
        if label.strip().casefold().startswith("text/event-stream"):
            return LabeledBody(self._reader), pieces
        start, form, cut = b"", None, None
        try:
            while form is None and len(start.lstrip()) <= MAX_START:
                start += await anext(pieces)
                form = form_of(start)
        except StopAsyncIteration:
            pass
        except AnswerCut as error:
            cut = error

        async def all_pieces() -> AsyncIterator[bytes]:
            if start:
                yield start
            if cut is not None:
                raise cut
            async for piece in pieces:
                yield piece

        if form is BodyForm.EVENTS:
            return EventsBody(self._reader), all_pieces()
        if form is BodyForm.ARRAY and self._charging.is_streamed:
            return DocumentBody(self._reader), all_pieces()
        return None, all_pieces()

    async def _pieces(self, answer: ProviderAnswer) -> AsyncIterator[bytes]:
        """Yield the pieces of an answer with the key masked, and record them."""
        mask = KeyMask(answer.key)
        size = 0
        async for piece in answer.pieces():
            self._call.note_byte()
            size += len(piece)
            if size > self._max_bytes:
                raise AnswerCut("answer_too_long")
            if passing := mask.feed(piece):
                if self._recording:
                    self._recording.take(passing)
                yield passing
        if rest := mask.end():
            if self._recording:
                self._recording.take(rest)
            yield rest

    async def _stream(
        self,
        answer: ProviderAnswer,
        headers: Headers,
        pieces: AsyncIterator[bytes],
        body: StreamBody,
    ) -> web.StreamResponse:
        # Without a length, the agent sees the end only after it is durable.
        kept = CIMultiDict(_without_length(headers))
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(self._request)
        held, cut = b"", None
        try:
            async for piece in pieces:
                if self._call.has_ended:
                    await self._write(response, piece)
                    continue
                body.feed(piece)
                self._note_error(body)
                if held:
                    await self._write(response, held)
                    held = b""
                if self._reader.finished:
                    await self._end(CallState.ANSWERED, None)
                if body.may_end_with(piece) and not self._call.has_ended:
                    held = piece
                else:
                    await self._write(response, piece)
        except AnswerCut as error:
            cut = error
        reason = None if self._call.has_ended else self._missing(answer, body, cut)
        await self._end(CallState.ANSWERED if reason is None else CallState.CUT, reason)
        if held:
            await self._write(response, held)
        if cut is not None or reason is not None:
            # The closed connection shows the agent that the answer has no end.
            if self._request.transport is not None:
                self._request.transport.close()
            return response
        await response.write_eof()
        return response

    def _missing(
        self, answer: ProviderAnswer, body: StreamBody, cut: AnswerCut | None
    ) -> str | None:
        """Read the end of a stream. Return the reason why it is not whole; None if it is."""
        body.end()
        self._note_error(body)
        self._reader.transferred = answer.is_framed and cut is None
        is_whole = answer.is_framed and body.has_read if cut is None else self._reader.finished
        if is_whole or (cut is None and (self._reader.whole or self._reader.failed)):
            return None
        return (cut or AnswerCut()).reason

    async def _end(self, state: CallState, reason: str | None) -> None:
        """Journal durably how the answer ended, unless that is already done."""
        if self._call.has_ended:
            return
        if self._reader.failed:
            state, reason = CallState.CUT, "error_in_answer"
        self._reader.ended = state is CallState.ANSWERED
        await self._record(is_cut=state is CallState.CUT and not self._reader.failed)
        self._call.end(state, reason=reason, **self._facts())
        await asyncio.shield(self._call.durable())

    async def _record(self, *, is_cut: bool) -> None:
        """Write the record of the answer. Its end is journaled later, so it can be replayed."""
        if self._recording:
            if is_cut:
                self._recording.note_cut()
            await asyncio.shield(self._recording.end())

    async def _write(self, response: web.StreamResponse, piece: bytes) -> None:
        """Send a piece to the agent, which reads at its own speed."""
        self._writing_since = self._loop.time()
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(_STALLED_S, self._end_stalled)
        try:
            await response.write(piece)
        except ConnectionError:
            self._call.leave(**self._facts())
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the agent no longer reads the answer") from None
        finally:
            self._writing_since = None

    def _end_stalled(self) -> None:
        """Close the agent's connection if it took too long to accept a piece.

        The pending write then fails. One timer serves all pieces, because most are accepted at
        once.
        """
        self._stall_timer = None
        if self._writing_since is None:
            return
        left_s = self._writing_since + _STALLED_S - self._loop.time()
        if left_s > 0:
            self._stall_timer = self._loop.call_later(left_s, self._end_stalled)
        elif self._request.transport is not None:
            self._request.transport.abort()

    async def _whole(
        self, answer: ProviderAnswer, headers: Headers, pieces: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        body = bytearray()
        try:
            async for piece in pieces:
                body += piece
                if len(body) > MAX_WHOLE:
                    raise AnswerCut("answer_too_long")
            if not answer.is_framed and answer.status < 400 and _is_torn(bytes(body)):
                raise AnswerCut
        except AnswerCut as cut:
            await self._record(is_cut=True)
            about = self._about | {"status": 502}
            self._call.end(CallState.CUT, reason=cut.reason, **about)
            await asyncio.shield(self._call.durable())
            message = "labledger: the provider's answer ended too early"
            raise NoAnswer(cut.reason, 502, message) from None
        await self._record(is_cut=False)
        self._reader.transferred = answer.is_framed
        self._end_whole(answer.status, bytes(body))
        await asyncio.shield(self._call.durable())
        kept = CIMultiDict(_without_length(headers))
        return web.Response(status=answer.status, headers=kept, body=bytes(body))

    def _says_usage(self, body: bytes) -> bool:
        """Read an error. Return whether it states a usage, which is then charged."""
        if self._charging.counts_tokens:
            return False
        note_ambiguous(self._reader, body)
        try:
            return self._reader.take_error(json.loads(body))
        except (ValueError, RecursionError):
            return False

    def _end_whole(self, status: int, body: bytes) -> None:
        if status >= 400:
            refusal = read_refusal(status, body)
            self._about["detail"] = refusal.detail
            facts = self._facts() if self._says_usage(body) else self._about
            self._call.end(CallState.ANSWERED, reason=refusal.reason, **facts)
            return
        try:
            if self._charging.counts_tokens:
                documents_of(body)
            else:
                read_body(self._reader, body)
        except (ValueError, RecursionError):
            self._call.end(CallState.FAILED, reason="not_an_answer", **self._about)
            return
        if self._reader.failed:
            state, reason = CallState.FAILED, "not_an_answer"
            self._about["detail"] = read_refusal(status, body).detail
        else:
            state, reason = CallState.ANSWERED, None
            self._reader.ended = True
        self._call.end(state, reason=reason, **self._facts())


def _is_torn(body: bytes) -> bool:
    """Return whether a body begins as JSON but is not JSON."""
    if form_of(body[:MAX_START]) not in {BodyForm.OBJECT, BodyForm.ARRAY}:
        return False
    try:
        documents_of(body)
    except RecursionError:
        return False
    except ValueError:
        return True
    return False


def _without_length(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() != "content-length"]
