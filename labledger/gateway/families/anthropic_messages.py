"""Anthropic's Messages API.

A stream says its usage in two places: `message_start` has that of the request, and the cumulative
`message_delta` at the end that of the answer; what is in both, the later one says. Compatible
servers may report cached tokens in the later one alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from labledger.gateway.families.event_stream import Event
from labledger.gateway.families.family import (
    AnswerReader,
    Asked,
    Endpoint,
    Family,
    Feature,
    count,
    is_one_of,
    items,
    mapping,
    objects,
    positive,
    requested,
    text_or_none,
)
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

_ENDPOINTS = {
    "/v1/messages": Endpoint(),
    "/v1/messages/count_tokens": Endpoint(streamed=False, counts_tokens=True),
}
_TOOLS_OF_THE_AGENT = re.compile(
    r"(custom|(bash|text_editor|computer|memory|tool_search_tool_(bm25|regex))(_\d{8})?)"
)
"""Types of tools that the agent runs, or that search in the request's own tools."""
_TOOL_FEATURES = (
    (re.compile(r"web_search_\d{8}"), Feature.WEB_SEARCH),
    (re.compile(r"web_fetch_\d{8}"), Feature.URL_INPUTS),
    (re.compile(r"code_execution_\d{8}"), Feature.CODE_EXECUTION),
    (re.compile(r"mcp_toolset"), Feature.MCP),
)
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
_ERRORS |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}


def _read_request(endpoint: Endpoint, body: JsonObject, size: int) -> Asked:
    media_bytes, images = _media(body)
    return requested(
        endpoint,
        body,
        size,
        max_output=positive(body.get("max_tokens")),
        features=frozenset(_features(body)),
        media_bytes=media_bytes,
        images=images,
    )


def _features(body: JsonObject) -> Iterator[Feature]:
    for tool in map(mapping, items(body.get("tools"))):
        yield from _tool_features(tool.get("type"))
    if body.get("mcp_servers"):
        yield Feature.MCP
    if body.get("container"):
        yield Feature.CODE_EXECUTION
    if not is_one_of(body.get("service_tier"), None, "auto", "standard_only"):
        yield Feature.SERVICE_TIERS
    if not is_one_of(body.get("speed"), None, "standard") or body.get("inference_geo"):
        yield Feature.SERVICE_TIERS
    for part in _sources(body):
        if part.get("type") == "url":
            yield Feature.URL_INPUTS
        elif part.get("type") == "file":
            yield Feature.FILES


def _tool_features(kind: Any) -> Iterator[Feature]:
    if kind is None or (isinstance(kind, str) and _TOOLS_OF_THE_AGENT.fullmatch(kind)):
        return
    for pattern, feature in _TOOL_FEATURES:
        if isinstance(kind, str) and pattern.fullmatch(kind):
            yield feature
            return
    yield Feature.OTHER_TOOLS


def _sources(body: JsonObject) -> Iterator[Mapping[str, Any]]:
    """Yield the sources of images and documents, wherever they are."""
    # What a tool is called with is no content, whatever it looks like.
    for part in objects([body.get("messages"), body.get("system")], but=frozenset({"input"})):
        if isinstance(part.get("source"), dict):
            yield part["source"]
        if part.get("type") == "container_upload":
            yield {"type": "file"}


def _media(body: JsonObject) -> tuple[int, int]:
    """Return how many bytes of images a request holds, and how many images."""
    sizes = [
        len(source["data"])
        for source in _sources(body)
        if source.get("type") == "base64"
        and isinstance(source.get("data"), str)
        and str(source.get("media_type")).startswith("image/")
    ]
    return sum(sizes), len(sizes)


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
    read_request=_read_request,
    reader=_Reader,
    error=_error,
    key_header="x-api-key",
)
