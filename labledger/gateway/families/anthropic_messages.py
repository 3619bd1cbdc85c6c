"""Anthropic's Messages API.

A stream says its usage in two places: `message_start` has that of the request, and the cumulative
`message_delta` at the end that of the answer; what is in both, the later one says. Compatible
servers may report cached tokens in the later one alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labledger.gateway.families.event_stream import Event
from labledger.gateway.families.family import (
    AnswerReader,
    Endpoint,
    Family,
    count,
    mapping,
    text_or_none,
)
from labledger.gateway.families.requests.anthropic import read_request
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

_ENDPOINTS = {
    "/v1/messages": Endpoint(),
    "/v1/messages/count_tokens": Endpoint(streamed=False, counts_tokens=True),
}
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
_ERRORS |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return usage as Anthropic says it. Raises `ValueError` if it is not complete."""
    written = count(usage, "cache_creation_input_tokens")
    by_time = mapping(usage.get("cache_creation"))
    hour = min(count(by_time, "ephemeral_1h_input_tokens"), written)
    return Usage(
        input=count(usage, "input_tokens", None),
        cache_read=count(usage, "cache_read_input_tokens"),
        cache_write=written - hour,
        cache_write_1h=hour,
        output=count(usage, "output_tokens", None),
    )


class _Reader(AnswerReader):
    read_usage = staticmethod(read_usage)

    def __init__(self) -> None:
        super().__init__()
        self._ended = False

    def take_event(self, event: Event) -> None:
        document = mapping(event.document)
        kind = document.get("type")
        if kind == "message_start":
            message = mapping(document.get("message"))
            self.model = text_or_none(message.get("model"))
            self._merge(message.get("usage"))
        elif kind == "message_delta":
            self._merge(document.get("usage"))
            has_output = mapping(document.get("usage")).get("output_tokens") is not None
            self._ended = has_output and bool(mapping(document.get("delta")).get("stop_reason"))
        elif kind in {"message_stop", "error"}:
            self.finished = True
            self.failed = kind == "error"

    def take_whole(self, document: Any) -> None:
        message = mapping(document)
        self.model = text_or_none(message.get("model"))
        self.failed = message.get("type") != "message"
        self._merge(message.get("usage"))
        self._ended = self.finished = not self.failed

    def _merge(self, usage: Any) -> None:
        self._usage |= {key: value for key, value in mapping(usage).items() if value is not None}

    @property
    def _has_usage(self) -> bool:
        return self._ended


def _error(status: int, message: str) -> JsonObject:
    kind = _ERRORS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


FAMILY: Family = Family(
    endpoint=_ENDPOINTS.get,
    query=frozenset({"beta"}),
    read_request=read_request,
    reader=_Reader,
    error=_error,
    key_header="x-api-key",
)
