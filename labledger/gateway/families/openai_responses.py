"""OpenAI's Responses API.

The event `response.completed`, or `response.incomplete`, ends a stream and has its usage, in which
the tokens of the request include cached ones.
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
    is_one_of,
    mapping,
    text_or_none,
)
from labledger.gateway.families.requests.responses import read_request
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

_ENDPOINTS = {"/v1/responses": Endpoint()}
_ENDS = ("response.completed", "response.incomplete", "response.failed")


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return usage as the Responses API says it. Raises `ValueError` if it is not complete."""
    return usage_with_cache(
        count(usage, "input_tokens", None),
        mapping(usage.get("input_tokens_details")),
        count(usage, "output_tokens", None),
        mapping(usage.get("output_tokens_details")),
    )


def usage_with_cache(
    request: int, of_request: Mapping[str, Any], output: int, of_output: Mapping[str, Any]
) -> Usage:
    """Return usage whose tokens of the request include cached ones, of which the details tell."""
    read, written = count(of_request, "cached_tokens"), count(of_request, "cache_write_tokens")
    reasoning = count(of_output, "reasoning_tokens")
    if read + written > request or reasoning > output:
        raise ValueError("a part is larger than the whole")
    return Usage(
        input=request - read - written,
        cache_read=read,
        cache_write=written,
        output=output,
        reasoning=reasoning,
    )


class _Reader(AnswerReader):
    read_usage = staticmethod(read_usage)

    def take_event(self, event: Event) -> None:
        document = mapping(event.document)
        kind = document.get("type", event.name)
        if kind == "error":
            self.finished = self.failed = True
        elif is_one_of(kind, *_ENDS):
            self.take_whole(document.get("response"))

    def take_whole(self, document: Any) -> None:
        response = mapping(document)
        self.model = text_or_none(response.get("model"))
        self._usage = dict(mapping(response.get("usage")))
        self.finished = True
        self.failed = not is_one_of(response.get("status"), "completed", "incomplete")

    @property
    def _has_usage(self) -> bool:
        return True


def error(status: int, message: str) -> JsonObject:
    """Return an error in OpenAI's form."""
    kind = "invalid_request_error" if status < 429 else "server_error"
    if status == 429:
        kind = "rate_limit_exceeded"
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}


FAMILY: Family = Family(
    endpoint=_ENDPOINTS.get,
    query=frozenset(),
    read_request=read_request,
    reader=_Reader,
    error=error,
    key_header="Authorization",
    # Codex repeats a request that got 403, and none that got 400.
    forbidden=400,
)
