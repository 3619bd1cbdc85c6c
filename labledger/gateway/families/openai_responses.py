"""OpenAI's Responses API.

The event `response.completed`, or `response.incomplete`, ends a stream and has its usage. The
tokens of the request include cached ones. The provider's searches are items of the output.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from labledger.gateway.families.requests.responses import read_request
from labledger.gateway.families.usage_numbers import check_total, count, unknown_number
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

_ENDPOINTS = {"/v1/responses": Endpoint()}
_ENDS = ("response.completed", "response.incomplete", "response.failed")


STANDARD: Mapping[str, frozenset[str]] = {
    "service_tier": frozenset({"default", "standard", "on_demand"})
}
"""The tiers of the standard price."""
_MAX_ITEMS = 1_000
"""The most names of an answer's items that are kept."""
_UNDER = ("input_tokens_details", "output_tokens_details")
_PARTS = ("cached_tokens", "cache_write_tokens", "text_tokens", "reasoning_tokens")
KNOWN_NUMBERS = frozenset(
    {
        *("input_tokens", "output_tokens", "total_tokens"),
        *(f"{details}.{part}" for details in _UNDER for part in _PARTS),
        # Compatible servers state their charge in these.
        *("cost", "cost_details.*", "estimated_cost", "cost_in_usd_ticks"),
    }
)
_FREE_ITEMS = frozenset(
    {
        *("function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call"),
        *("apply_patch_call", "mcp_call", "tool_search_call"),
    }
)
"""Calls of tools that cost only tokens."""
_COUNTED_ITEMS = ("web_search.num_requests",)
"""Numbers of `tool_usage` that the items of the output also show."""


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return usage of the Responses API as `Usage`. Raises `ValueError` if it is not complete."""
    read = usage_with_cache(
        count(usage, "input_tokens", None),
        mapping(usage.get("input_tokens_details")),
        count(usage, "output_tokens", None),
        mapping(usage.get("output_tokens_details")),
    )
    check_total(usage, "total_tokens", read.total)
    return read


def usage_with_cache(
    request: int, of_request: Mapping[str, Any], output: int, of_output: Mapping[str, Any]
) -> Usage:
    """Return usage from totals and their details. The request's total includes cached tokens.

    Raises `ValueError` if a part is larger than its total.
    """
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
    known_numbers = KNOWN_NUMBERS
    counts_tools = True
    standard = STANDARD
    read_usage = staticmethod(read_usage)

    def __init__(self) -> None:
        super().__init__()
        self._searches_by_item = 0

    def take_event(self, event: StreamEvent) -> None:
        document = mapping(event.document)
        kind = document.get("type", event.name)
        if kind == "error":
            self.finished = self.failed = True
        elif kind == "response.output_item.done":
            # Some servers leave the items out of the last event.
            item = mapping(document.get("item"))
            self._note_name(item)
            self._searches_by_item += self._searched(item)
            self._take_searches(self._searches_by_item)
        elif is_one_of(kind, *_ENDS):
            self.take_whole(document.get("response"))

    def take_whole(self, document: Any) -> None:
        response = mapping(document)
        self.model = text_or_none(response.get("model"))
        self._take_usage(response.get("usage"))
        self._take_tier("service_tier", served_tier(response))
        # Numbers of calls of the provider's tools, and tokens of images.
        if number := unknown_number(mapping(response.get("tool_usage")), _COUNTED_ITEMS):
            self._charge(f"tool_usage.{number}")
        output = [mapping(item) for item in items(response.get("output"))]
        for item in output:
            self._note_name(item)
        searches = sum(map(self._searched, output))
        self._take_searches(searches)
        self.finished = True
        self.failed = not is_one_of(response.get("status"), "completed", "incomplete")

    def _note_name(self, item: Mapping[str, Any]) -> None:
        name = text_or_none(item.get("id"))
        if name is not None and len(self.item_names) < _MAX_ITEMS:
            self.item_names.append(name)

    def _searched(self, item: Mapping[str, Any]) -> bool:
        """Return whether an item of the output is a search. Note other items with a charge."""
        kind = item.get("type")
        if kind == "web_search_call":
            # Opening a page that was found, or searching in it, is not charged as a search.
            action = mapping(item.get("action")).get("type")
            return not is_one_of(action, "open_page", "find_in_page", "find")
        if isinstance(kind, str) and kind.endswith("_call") and kind not in _FREE_ITEMS:
            self._charge(f"the item {kind[:40]}")
        place = mapping(item.get("environment")).get("type")
        if kind == "shell_call" and not is_one_of(place, None, "local"):
            self._charge("a shell in a container of the provider")
        return False

    @property
    def _has_usage(self) -> bool:
        # A failed response is charged for its stated usage.
        return bool(self._said.numbers) or self.whole


def served_tier(document: Mapping[str, Any]) -> Any:
    """Return the tier that the answer names; None for `auto`, which names no tier."""
    tier = document.get("service_tier")
    return None if tier == "auto" else tier


def _read_settings(body: JsonObject) -> CallSettings:
    effort = word_or_none(mapping(body.get("reasoning")).get("effort"))
    return CallSettings(effort, temperature(body.get("temperature")), asked_tiers(body, STANDARD))


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
    read_settings=_read_settings,
    reader=_Reader,
    error=error,
    key_header="Authorization",
    # Codex retries a request after 403, but not after 400.
    forbidden=400,
)
