"""Read the usage in the pieces of an answer's body, while they pass to the agent."""

from __future__ import annotations

import json
from typing import Any, Protocol

from labledger.gateway.families.answer_reader import AnswerReader
from labledger.gateway.families.event_stream import (
    BodyForm,
    EventReader,
    StreamEvent,
    form_of,
    is_ambiguous,
)
from labledger.gateway.messages.answers import AnswerCut
from labledger.gateway.providers.refusals import sentence_in

MAX_WHOLE = 64 << 20
"""The most bytes of a body that is read as one JSON value."""
MAX_START = 4096
"""After this many bytes, without leading empty lines, the kind of a body must be known."""


class StreamBody(Protocol):
    """The body of a stream, while it is read."""

    @property
    def has_read(self) -> bool:
        """Whether any part of an answer was read."""

    @property
    def detail(self) -> str | None:
        """The sentence of an error within the answer."""

    def feed(self, piece: bytes) -> None:
        """Read a piece. Raises `AnswerCut` if the body is too long."""

    def end(self) -> None:
        """Read the last event or value, which the end of the body completes."""

    def may_end_with(self, piece: bytes, /) -> bool:
        """Return whether the answer may be complete with this piece, which was read."""


class EventsBody:
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
            # Half of a document is not an event.
            if event.document is not None or not event.data.lstrip().startswith("{"):
                self._take(event)
            else:
                self._reader.note_unread()

    def _take(self, event: StreamEvent) -> None:
        if self._reader.finished:
            return  # The call has ended, or ends after this piece.
        if "usage" in event.data:
            if event.document is None:
                self._reader.note_unread()
            note_ambiguous(self._reader, event.data.encode("utf-8", "replace"))
        self._reader.take_event(event)
        self.has_read = True
        if self._reader.failed and self.detail is None:
            self.detail = sentence_in(event.data)

    def may_end_with(self, _: bytes, /) -> bool:
        return self._reader.whole or self._events.has_begun_event


class DocumentBody:
    """A stream that is one JSON value: an array of chunks, or an answer that is not a stream."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader, self._body = reader, bytearray()
        self.has_read = False
        self.detail: str | None = None

    def feed(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > MAX_WHOLE:
            raise AnswerCut("answer_too_long")

    def end(self) -> None:
        try:
            read_body(self._reader, bytes(self._body))
            self.has_read = True
        except (ValueError, RecursionError):
            return
        if self._reader.failed:
            self.detail = sentence_in(bytes(self._body).decode("utf-8", "replace"))

    def may_end_with(self, piece: bytes, /) -> bool:
        return piece.rstrip().endswith((b"]", b"}"))


class LabeledBody:
    """A body that is labeled as a stream of events, but may be one JSON value."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader, self._start = reader, b""
        self._body: StreamBody | None = None

    @property
    def has_read(self) -> bool:
        return self._body is not None and self._body.has_read

    @property
    def detail(self) -> str | None:
        return None if self._body is None else self._body.detail

    def feed(self, piece: bytes) -> None:
        if self._body is None:
            self._start += piece
            form = form_of(self._start)
            if form is None and len(self._start.lstrip()) <= MAX_START:
                return
            piece = self._start
            self._body = self._opened(form)
        self._body.feed(piece)

    def _opened(self, form: BodyForm | None) -> StreamBody:
        is_document = form in {BodyForm.OBJECT, BodyForm.ARRAY}
        return DocumentBody(self._reader) if is_document else EventsBody(self._reader)

    def end(self) -> None:
        if self._body is None:
            self._body = self._opened(None)
            self._body.feed(self._start)
        self._body.end()

    def may_end_with(self, piece: bytes, /) -> bool:
        return self._body is not None and self._body.may_end_with(piece)


def documents_of(body: bytes) -> list[Any]:
    """Return the JSON value of a body, or its JSON objects, one per line.

    Raises `ValueError` if it is neither, and `RecursionError`.
    """
    try:
        return [json.loads(body)]
    except ValueError:
        documents = [json.loads(line) for line in body.splitlines() if line.strip()]
        if len(documents) < 2 or not all(isinstance(document, dict) for document in documents):
            raise
        return documents


def read_body(reader: AnswerReader, body: bytes) -> None:
    """Read an answer that is one JSON value, or a stream of JSON objects, one per line.

    Raises the same errors as `documents_of`.
    """
    documents = documents_of(body)
    for text in [body] if len(documents) == 1 else body.splitlines():
        note_ambiguous(reader, text)
    if len(documents) == 1:
        reader.take_whole(documents[0])
        return
    for document in documents:
        if not reader.finished:
            reader.take_event(StreamEvent("", json.dumps(document)))


def note_ambiguous(reader: AnswerReader, text: bytes) -> None:
    """Note if a part of an answer states a usage twice, with different values."""
    if b"usage" in text and is_ambiguous(text):
        reader.note_ambiguous()
