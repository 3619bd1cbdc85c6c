"""Google's Gemini API.

The path names the model and whether the answer is a stream: of events with `alt=sse`, else of the
items of one array. Members may be spelled in two ways, `fileData` and `file_data`. Each chunk of a
stream has the usage so far; no event marks the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from labledger.gateway.families.event_stream import Event
from labledger.gateway.families.family import (
    AnswerReader,
    Endpoint,
    Family,
    count,
    items,
    mapping,
    text_or_none,
)
from labledger.gateway.families.requests.google import read_request
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

_PATH = re.compile(
    r"/v1(?:beta)?/models/([A-Za-z0-9][A-Za-z0-9._-]*)"
    r":(generateContent|streamGenerateContent|countTokens)"
)
_ERRORS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}
_ERRORS |= {404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}


def _endpoint(path: str) -> Endpoint | None:
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    return Endpoint(match[1], match[2] == "streamGenerateContent", match[2] == "countTokens")


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return usage as Google says it. Raises `ValueError` if it is not complete."""
    prompt = count(usage, "promptTokenCount", None)
    cached = count(usage, "cachedContentTokenCount")
    thoughts = count(usage, "thoughtsTokenCount")
    if cached > prompt:
        raise ValueError("a part is larger than the whole")
    return Usage(
        input=prompt - cached + count(usage, "toolUsePromptTokenCount"),
        cache_read=cached,
        output=count(usage, "candidatesTokenCount") + thoughts,
        reasoning=thoughts,
    )


class _Reader(AnswerReader):
    read_usage = staticmethod(read_usage)

    def __init__(self) -> None:
        super().__init__()
        self._ended = False

    def take_event(self, event: Event) -> None:
        self._take(mapping(event.document))

    def take_whole(self, document: Any) -> None:
        for chunk in document if isinstance(document, list) else [document]:
            self._take(mapping(chunk))

    def _take(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error"):
            self.failed = True
        self.model = text_or_none(chunk.get("modelVersion")) or self.model
        if usage := mapping(chunk.get("usageMetadata")):
            self._usage = dict(usage)
        candidates = map(mapping, items(chunk.get("candidates")))
        self._ended |= any(candidate.get("finishReason") for candidate in candidates)
        # A request that is blocked gets no candidate.
        self._ended |= bool(mapping(chunk.get("promptFeedback")).get("blockReason"))

    @property
    def whole(self) -> bool:
        return self._ended and not self.failed


def _error(status: int, message: str) -> JsonObject:
    name = _ERRORS.get(status, "UNAVAILABLE")
    return {"error": {"code": status, "message": message, "status": name}}


FAMILY: Family = Family(
    endpoint=_endpoint,
    query=frozenset({"alt", "key"}),
    read_request=read_request,
    reader=_Reader,
    error=_error,
    key_header="x-goog-api-key",
)
