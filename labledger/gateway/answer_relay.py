"""Passing an answer to the agent as it comes, while its usage is read on the side.

The first bytes say whether an answer is a stream of events, a JSON object or an array: its label
may be wrong. Pieces of a stream pass as they come, except one that may complete the answer: it
waits until the end of the call is durable in the journal, or until more follows. A transfer that
ended properly is a whole answer. Where only the closing of the connection ends it, the API's own
mark of the end decides.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from aiohttp import web
from multidict import CIMultiDict

from labledger.clock import utc_now
from labledger.gateway.answers import Answer, AnswerCut, Headers, NoAnswer, for_agent, request_id
from labledger.gateway.calls import OpenCall
from labledger.gateway.charging import Charging
from labledger.gateway.families.answer_reader import AnswerReader
from labledger.gateway.families.event_stream import BodyForm, Event, EventReader, form_of
from labledger.gateway.families.family import MAX_NAME
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
_MAX_START = 4096
"""How many first bytes may leave it open what a body is."""


class _Body(Protocol):
    """The body of a stream, while it is read."""

    has_read: bool
    """Whether anything of an answer was read."""
    detail: str | None
    """The sentence of an error within the answer."""

    def feed(self, piece: bytes) -> None:
        """Read a piece."""

    def end(self) -> None:
        """Read what the end of the body completes."""

    def may_end_with(self, piece: bytes, /) -> bool:
        """Whether the answer may be complete with a piece that was read."""


class _Events:
    """A stream of events."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader, self._events = reader, EventReader()
        self.has_read = False
        self.detail: str | None = None

    def feed(self, piece: bytes) -> None:
        for event in self._events.feed(piece):
            self._take(event)

    def end(self) -> None:
        for event in self._events.end():
            # Half of a document is no event.
            if event.document is not None or not event.data.lstrip().startswith("{"):
                self._take(event)

    def _take(self, event: Event) -> None:
        self._reader.take_event(event)
        self.has_read = True
        if self._reader.failed and self.detail is None:
            self.detail = sentence_in(event.data)

    def may_end_with(self, _: bytes, /) -> bool:
        return self._reader.whole or self._events.has_begun_event


class _Array:
    """A stream that is one JSON array."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader, self._body = reader, bytearray()
        self.has_read = False
        self.detail: str | None = None

    def feed(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > _MAX_WHOLE:
            raise AnswerCut("answer_too_long")

    def end(self) -> None:
        try:
            self._reader.take_whole(json.loads(self._body))
            self.has_read = True
        except (ValueError, RecursionError):
            return

    def may_end_with(self, piece: bytes, /) -> bool:
        return piece.rstrip().endswith(b"]")


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
        """`background` gets what goes on after the answer was given up."""
        self._request, self._call, self._charging = request, call, charging
        self._reader = charging.reader
        self._max_bytes = _BYTES_MORE + _BYTES_FOR_A_TOKEN * output_tokens
        self._recording, self._background = recording, background

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
        try:
            await self._call.asked()
            self._call.is_answered = answer.status < 300
            if 300 <= answer.status < 400:
                message = "labledger: the provider redirects, which is not followed"
                raise NoAnswer("redirected", 502, message)
            form, pieces = await self._opened(pieces, names.get("content-type", ""))
            if answer.status == 200 and not self._charging.counts_tokens:
                if form is BodyForm.EVENTS:
                    return await self._stream(answer, headers, pieces, _Events(self._reader))
                if form is BodyForm.ARRAY and self._charging.is_streamed:
                    return await self._stream(answer, headers, pieces, _Array(self._reader))
            return await self._whole(answer, headers, pieces)
        except asyncio.CancelledError:
            self._call.leave(**self._facts())
            raise
        finally:
            answer.close()
            if self._recording and (writing := self._recording.end_early()):
                self._background(writing)

    def _facts(self) -> dict[str, Any]:
        return {**self._charging.fields(utc_now()), **self._about}

    def _note_error(self, body: _Body) -> None:
        if body.detail is not None:
            self._about["detail"] = body.detail

    async def _opened(
        self, pieces: AsyncIterator[bytes], label: str
    ) -> tuple[BodyForm, AsyncIterator[bytes]]:
        """Return what a body is, by its first bytes, and all of its pieces."""
        is_labeled = label.strip().casefold().startswith("text/event-stream")
        start, form, cut = b"", None, None
        try:
            while form is None and len(start.lstrip()) <= _MAX_START:
                start += await anext(pieces)
                form = form_of(start)
                if is_labeled and not start.strip():
                    form = BodyForm.EVENTS
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

        if form is None:
            form = BodyForm.EVENTS if is_labeled else BodyForm.OTHER
        return form, all_pieces()

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
        self, answer: Answer, headers: Headers, pieces: AsyncIterator[bytes], body: _Body
    ) -> web.StreamResponse:
        # Without a length, the agent sees the end when it is durable, whatever the provider said.
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
            # Its agent sees that the answer has no end.
            if self._request.transport is not None:
                self._request.transport.close()
            return response
        await response.write_eof()
        return response

    def _missing(self, answer: Answer, body: _Body, cut: AnswerCut | None) -> str | None:
        """Read the end of a stream. Return why it is not whole, as a word; None if it is."""
        body.end()
        self._note_error(body)
        is_whole = answer.is_framed and body.has_read if cut is None else self._reader.finished
        if is_whole or (cut is None and (self._reader.whole or self._reader.failed)):
            return None
        return (cut or AnswerCut()).reason

    async def _end(self, state: CallState, reason: str | None) -> None:
        """Journal, durably, how the answer ended, unless that was done."""
        if self._call.has_ended:
            return
        if self._reader.failed:
            state, reason = CallState.CUT, "error_in_answer"
        self._reader.ended = state is CallState.ANSWERED
        await self._record(is_cut=state is CallState.CUT and not self._reader.failed)
        self._call.end(state, reason=reason, **self._facts())
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
            self._call.leave(**self._facts())
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the agent takes no more of the answer") from None

    async def _whole(
        self, answer: Answer, headers: Headers, pieces: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        body = bytearray()
        try:
            async for piece in pieces:
                body += piece
                if len(body) > _MAX_WHOLE:
                    raise AnswerCut("answer_too_long")
            if not answer.is_framed and answer.status < 400 and _is_torn(bytes(body)):
                raise AnswerCut
        except AnswerCut as cut:
            await self._record(is_cut=True)
            self._call.end(CallState.CUT, reason=cut.reason, **{**self._about, "status": 502})
            await asyncio.shield(self._call.durable())
            message = "labledger: the provider's answer ended too early"
            raise NoAnswer(cut.reason, 502, message) from None
        await self._record(is_cut=False)
        self._end_whole(answer.status, bytes(body))
        await asyncio.shield(self._call.durable())
        kept = CIMultiDict(_without_length(headers))
        return web.Response(status=answer.status, headers=kept, body=bytes(body))

    def _end_whole(self, status: int, body: bytes) -> None:
        if status >= 400:
            refusal = read_refusal(status, body)
            self._about["detail"] = refusal.detail
            self._call.end(CallState.ANSWERED, reason=refusal.reason, **self._about)
            return
        try:
            self._take_whole(body)
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

    def _take_whole(self, body: bytes) -> None:
        """Read an answer in one piece. Raises `ValueError` if it is none, and `RecursionError`."""
        documents = _documents(body)
        if self._charging.counts_tokens:
            return
        if len(documents) == 1:
            self._reader.take_whole(documents[0])
            return
        for document in documents:
            self._reader.take_event(Event("", json.dumps(document)))


def _documents(body: bytes) -> list[Any]:
    """Return the JSON value of a body, or its JSON objects, one a line.

    Raises `ValueError` if it is neither, and `RecursionError`.
    """
    try:
        return [json.loads(body)]
    except ValueError:
        documents = [json.loads(line) for line in body.splitlines() if line.strip()]
        if len(documents) < 2 or not all(isinstance(each, dict) for each in documents):
            raise
        return documents


def _is_torn(body: bytes) -> bool:
    """Return whether a body begins as JSON and is none."""
    if form_of(body[:_MAX_START]) not in {BodyForm.OBJECT, BodyForm.ARRAY}:
        return False
    try:
        _documents(body)
    except RecursionError:
        return False
    except ValueError:
        return True
    return False


def _without_length(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() != "content-length"]
