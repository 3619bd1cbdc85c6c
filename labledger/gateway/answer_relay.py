"""Passing an answer to the agent as it comes, while its usage is read on the side.

Pieces pass as they come, except one that may complete the answer: it waits until the end of the
call is durable in the journal, or until more follows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from labledger.gateway.admission import Admitted
from labledger.gateway.answers import Answer, AnswerCut, Headers, NoAnswer, for_agent, request_id
from labledger.gateway.calls import OpenCall
from labledger.gateway.families.event_stream import EventReader
from labledger.gateway.families.family import MAX_NAME, AnswerReader
from labledger.gateway.keys import KeyMask
from labledger.gateway.recordings import Recording
from labledger.gateway.refusals import read_refusal, sentence_in
from labledger.records.model_calls import CallState

_STALLED_S = 300.0
"""How long an agent may take for a piece of an answer, in seconds."""
_BYTES_FOR_A_TOKEN = 2048
_BYTES_MORE = 4 << 20
"""More bytes than an answer of so many tokens has, with all that events repeat."""
_MAX_WHOLE = 64 << 20


class Relay:
    """Passes the answer of one call."""

    def __init__(
        self,
        request: web.BaseRequest,
        call: OpenCall,
        admitted: Admitted,
        output_tokens: int,
        recording: Recording | None,
    ) -> None:
        self._request, self._call = request, call
        self._reader: AnswerReader = admitted.target.family.reader()
        self._counts_tokens = admitted.asked.counts_tokens
        self._max_bytes = _BYTES_MORE + _BYTES_FOR_A_TOKEN * output_tokens
        self._recording = recording

    async def run(self, answer: Answer) -> web.StreamResponse:
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
        is_stream = names.get("content-type", "").startswith("text/event-stream")
        try:
            await self._call.asked()
            self._call.is_answered = answer.status < 300
            if 300 <= answer.status < 400:
                message = "labledger: the provider redirects, which is not followed"
                raise NoAnswer("redirected", 502, message)
            if is_stream and answer.status == 200:
                return await self._stream(answer.status, headers, pieces)
            return await self._whole(answer.status, headers, pieces)
        except asyncio.CancelledError:
            self._call.leave(**self._about, **self._usage())
            raise
        finally:
            answer.close()
            if self._recording:
                self._recording.end_now()

    def _usage(self) -> dict[str, Any]:
        reader = self._reader
        return {
            "usage": reader.usage,
            "raw_usage": reader.raw_usage,
            "model_served": reader.model,
        }

    async def _pieces(self, answer: Answer) -> AsyncIterator[bytes]:
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
        self, status: int, headers: Headers, pieces: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers=CIMultiDict(headers))
        await response.prepare(self._request)
        events, held, cut = EventReader(), b"", None
        try:
            async for piece in pieces:
                if self._call.has_ended:
                    await self._write(response, piece)
                    continue
                for event in events.feed(piece):
                    self._reader.take_event(event)
                    if self._reader.failed and "detail" not in self._about:
                        self._about["detail"] = sentence_in(event.data)
                if held:
                    await self._write(response, held)
                    held = b""
                if self._reader.finished:
                    await self._end()
                if self._reader.whole and not self._call.has_ended:
                    held = piece
                else:
                    await self._write(response, piece)
        except AnswerCut as error:
            cut = error
        await self._end(cut)
        if held:
            await self._write(response, held)
        if cut is not None:
            # Its agent sees that the answer has no end.
            if self._request.transport is not None:
                self._request.transport.close()
            return response
        await response.write_eof()
        return response

    async def _end(self, cut: AnswerCut | None = None) -> None:
        """Journal, durably, how the answer ended, unless that was done."""
        if self._call.has_ended:
            return
        await self._record(is_cut=cut is not None)
        about = {**self._about, **self._usage()}
        if self._reader.failed:
            self._call.end(CallState.CUT, reason="error_in_answer", **about)
        elif self._reader.whole and cut is None:
            self._call.end(CallState.ANSWERED, **about)
        else:
            reason = (cut or AnswerCut()).reason
            self._call.end(CallState.CUT, reason=reason, **about)
        await asyncio.shield(self._call.durable())

    async def _record(self, *, is_cut: bool) -> None:
        """Write the record of the answer: what is journaled as ended can be replayed."""
        if self._recording:
            if is_cut:
                self._recording.note_cut()
            await asyncio.shield(self._recording.end())

    async def _write(self, response: web.StreamResponse, piece: bytes) -> None:
        """Give a piece to the agent, which takes them at its own speed."""
        try:
            async with asyncio.timeout(_STALLED_S):
                await response.write(piece)
        except (TimeoutError, ConnectionError):
            self._call.leave(**self._about, **self._usage())
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the agent takes no more of the answer") from None

    async def _whole(
        self, status: int, headers: Headers, pieces: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        body = bytearray()
        try:
            async for piece in pieces:
                body += piece
                if len(body) > _MAX_WHOLE:
                    raise AnswerCut("answer_too_long")
        except AnswerCut as cut:
            await self._record(is_cut=True)
            self._call.end(CallState.CUT, reason=cut.reason, **{**self._about, "status": 502})
            await asyncio.shield(self._call.durable())
            message = "labledger: the provider's answer ended too early"
            raise NoAnswer(cut.reason, 502, message) from None
        await self._record(is_cut=False)
        self._end_whole(status, bytes(body))
        await asyncio.shield(self._call.durable())
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        return web.Response(status=status, headers=CIMultiDict(kept), body=bytes(body))

    def _end_whole(self, status: int, body: bytes) -> None:
        if status >= 400:
            refusal = read_refusal(status, body)
            self._about["detail"] = refusal.detail
            self._call.end(CallState.ANSWERED, reason=refusal.reason, **self._about)
            return
        try:
            document = json.loads(body)
            if not self._counts_tokens:
                self._reader.take_whole(document)
        except (ValueError, RecursionError):
            self._call.end(CallState.FAILED, reason="not_an_answer", **self._about)
            return
        about = {**self._about, **self._usage()}
        if self._reader.failed:
            about["detail"] = read_refusal(status, body).detail
            self._call.end(CallState.FAILED, reason="not_an_answer", **about)
        else:
            self._call.end(CallState.ANSWERED, **about)
