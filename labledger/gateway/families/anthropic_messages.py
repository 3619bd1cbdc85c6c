"""Anthropic's Messages API.

A stream states the request's tokens in `message_start`, and the answer's tokens in cumulative
`message_delta` events. The larger number of both applies, because compatible servers differ. If the
provider compacts the conversation, `iterations` has the usage of each of its requests, and the
other numbers leave the compaction out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labledger.gateway.families.answer_reader import AnswerReader, CallSettings
from labledger.gateway.families.event_stream import StreamEvent
from labledger.gateway.families.family import (
    Endpoint,
    Family,
    asked_tiers,
    is_one_of,
    items,
    mapping,
    temperature,
    text_or_none,
    word_or_none,
)
from labledger.gateway.families.requests.anthropic import read_request
from labledger.gateway.families.usage_numbers import (
    combined,
    count,
    is_number,
    unknown_number,
)
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

_ENDPOINTS = {
    "/v1/messages": Endpoint(),
    "/v1/messages/count_tokens": Endpoint(streamed=False, counts_tokens=True),
}
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
_ERRORS |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}


STANDARD: Mapping[str, frozenset[str]] = {
    "service_tier": frozenset({"standard", "standard_only"}),
    "speed": frozenset({"standard"}),
    "inference_geo": frozenset({"global", "not_available"}),
}
"""The tiers, speeds and regions of the standard price."""
_COUNTS = (
    *("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation.ephemeral_5m_input_tokens", "cache_creation.ephemeral_1h_input_tokens"),
    "output_tokens",
)
KNOWN_NUMBERS = frozenset(
    {
        *_COUNTS,
        *(f"iterations.{name}" for name in _COUNTS),
        # A part of the output.
        *("output_tokens_details.thinking_tokens", "output_tokens_details.reasoning_tokens"),
        # A search has a price. Fetching a page costs only its tokens.
        *("server_tool_use.web_search_requests", "server_tool_use.web_fetch_requests"),
        *("server_tool_use.tool_search_requests",),
        # Compatible servers repeat these, and state their charge in them.
        *("total_tokens", "prompt_tokens", "completion_tokens", "cached_tokens"),
        *("cost", "cost_details.*"),
    }
)
_CHARGED_ITERATIONS = frozenset({"compaction", "message"})


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return usage in Anthropic's form as `Usage`. Raises `ValueError` if it is not complete."""
    answer = _read_counts(usage)
    iterations = [mapping(iteration) for iteration in items(usage.get("iterations"))]
    of_kinds = {
        kind: [_read_counts(iteration) for iteration in iterations if iteration.get("type") == kind]
        for kind in _CHARGED_ITERATIONS
    }
    messages = combined(of_kinds["message"])
    if messages != Usage() and messages.total < answer.total:
        raise ValueError("its iterations have fewer tokens than it has")
    return combined(
        [messages if messages.total > answer.total else answer, *of_kinds["compaction"]]
    )


def _read_counts(usage: Mapping[str, Any]) -> Usage:
    by_time = mapping(usage.get("cache_creation"))
    hour = count(by_time, "ephemeral_1h_input_tokens")
    parts = hour + count(by_time, "ephemeral_5m_input_tokens")
    written = count(usage, "cache_creation_input_tokens", parts)
    if parts > written:
        # A sum of 0 is a placeholder of servers that know only the parts.
        if written:
            raise ValueError("the tokens written to caches have a sum that is too small")
        written = parts
    return Usage(
        input=count(usage, "input_tokens", None),
        cache_read=count(usage, "cache_read_input_tokens"),
        cache_write=written - hour,
        cache_write_1h=hour,
        output=count(usage, "output_tokens", None),
    )


def _has_writes_of_unknown_time(usage: Mapping[str, Any]) -> bool:
    """Return whether both parts of the tokens written to caches are less than their sum."""
    by_time = mapping(usage.get("cache_creation"))
    parts = [by_time.get(f"ephemeral_{time}_input_tokens") for time in ("5m", "1h")]
    known = [part for part in parts if is_number(part)]
    written = usage.get("cache_creation_input_tokens")
    # Parts of 0 are placeholders.
    return len(known) == 2 and is_number(written) and 0 < sum(known) < written


class _Reader(AnswerReader):
    known_numbers = KNOWN_NUMBERS
    standard = STANDARD
    read_usage = staticmethod(read_usage)

    def __init__(self) -> None:
        super().__init__()
        self._stopped = self._has_output = self._has_searched = False

    def take_event(self, event: StreamEvent) -> None:
        document = mapping(event.document)
        kind = document.get("type")
        if "usage" in document and not is_one_of(kind, "message_start", "message_delta"):
            self._take_usage(document["usage"])
        if kind == "content_block_start":
            self._take_block(document.get("content_block"))
        elif kind == "message_start":
            message = mapping(document.get("message"))
            self.model = text_or_none(message.get("model"))
            self._take_usage(message.get("usage"))
        elif kind == "message_delta":
            usage = mapping(document.get("usage"))
            # The output that a stream begins with is a guess.
            self._said.take(usage, placeholders=() if self._has_output else ("output_tokens",))
            self._take_tiers(usage)
            self._has_output |= usage.get("output_tokens") is not None
            self._stopped |= bool(mapping(document.get("delta")).get("stop_reason"))
        elif is_one_of(kind, "message_stop", "error"):
            self.finished = True
            self.failed = kind == "error"

    def take_whole(self, document: Any) -> None:
        message = mapping(document)
        self.model = text_or_none(message.get("model"))
        self.failed = message.get("type") != "message"
        self._take_usage(message.get("usage"))
        for block in items(message.get("content")):
            self._take_block(block)
        self._has_output = self._stopped = self.finished = not self.failed

    def _take_block(self, block: Any) -> None:
        block = mapping(block)
        is_search = block.get("type") == "server_tool_use" and block.get("name") == "web_search"
        self._has_searched |= is_search

    def _take_usage(self, usage: Any) -> None:
        super()._take_usage(usage)
        self._take_tiers(mapping(usage))

    def _take_tiers(self, usage: Mapping[str, Any]) -> None:
        for name in STANDARD:
            self._take_tier(name, usage.get(name))
        self._take_searches(mapping(usage.get("server_tool_use")).get("web_search_requests"))

    @property
    def request_sizes(self) -> tuple[int, ...]:
        usage = self.usage
        iterations = map(mapping, items(self._said.numbers.get("iterations")))
        charged = [
            iteration
            for iteration in iterations
            if is_one_of(iteration.get("type"), *_CHARGED_ITERATIONS)
        ]
        if usage is None or not charged:
            return super().request_sizes
        requests = [self._said.numbers, *charged]
        return tuple(_read_counts(iteration).request for iteration in requests)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        used = mapping(self._said.numbers.get("server_tool_use"))
        if self._has_searched and used.get("web_search_requests") is None:
            yield "a search by the provider, which the usage does not count"
        if _has_writes_of_unknown_time(self._said.numbers):
            yield "the usage has more tokens written to caches than it says for how long"
        for iteration in map(mapping, items(self._said.numbers.get("iterations"))):
            is_charged = is_one_of(iteration.get("type"), *_CHARGED_ITERATIONS)
            if not is_charged and unknown_number(iteration, ()):
                yield f"the usage has an iteration of the type {str(iteration.get('type'))[:40]!r}"

    @property
    def _has_usage(self) -> bool:
        # Compatible servers may send another usage after the reason of the end.
        is_last = self.finished or (self._stopped and self.transferred)
        return self._has_output and is_last and not self.failed


def _read_settings(body: JsonObject) -> CallSettings:
    thinking = mapping(body.get("thinking"))
    effort = word_or_none(mapping(body.get("output_config")).get("effort"))
    if effort is None:
        budget = word_or_none(thinking.get("budget_tokens"))
        effort = budget or word_or_none(thinking.get("type"))
    return CallSettings(effort, temperature(body.get("temperature")), asked_tiers(body, STANDARD))


def _error(status: int, message: str) -> JsonObject:
    kind = _ERRORS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


FAMILY: Family = Family(
    endpoint=_ENDPOINTS.get,
    query=frozenset({"beta"}),
    read_request=read_request,
    read_settings=_read_settings,
    reader=_Reader,
    error=_error,
    key_header="x-api-key",
)
