"""OpenAI's Responses API.

The event `response.completed`, or `response.incomplete`, ends a stream and has its usage, in which
the tokens of the request include cached ones. Searches of the provider are items of the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labledger.gateway.families.answer_reader import AnswerReader, CallSettings
from labledger.gateway.families.event_stream import Event
from labledger.gateway.families.family import (
    Asked,
    Endpoint,
    Family,
    Feature,
    asked_tiers,
    is_one_of,
    items,
    mapping,
    objects,
    positive,
    requested,
    temperature,
    text_or_none,
    word_or_none,
)
from labledger.gateway.families.usage_numbers import check_total, count
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

_ENDPOINTS = {"/v1/responses": Endpoint()}
_TOOLS_OF_THE_AGENT = {
    *("function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview"),
    *("namespace", "tool_search"),
}
_TOOL_FEATURES = {
    "web_search": Feature.WEB_SEARCH,
    "web_search_preview": Feature.WEB_SEARCH,
    "code_interpreter": Feature.CODE_EXECUTION,
    "file_search": Feature.FILES,
    "image_generation": Feature.IMAGE_GENERATION,
    "mcp": Feature.MCP,
}
_ENDS = ("response.completed", "response.incomplete", "response.failed")
STANDARD_TIERS = (None, "auto", "default")


def _read_request(endpoint: Endpoint, body: JsonObject, size: int) -> Asked:
    sizes = list(image_sizes([body.get("input")]))
    return requested(
        endpoint,
        body,
        size,
        max_output=positive(body.get("max_output_tokens")),
        features=frozenset(_features(body)),
        media_bytes=sum(sizes),
        images=len(sizes),
    )


def _features(body: JsonObject) -> Iterator[Feature]:
    for tool in _tools(body.get("tools")):
        yield from _tool_features(tool)
    if any(body.get(name) for name in ("previous_response_id", "conversation", "background")):
        yield Feature.STORED
    if mapping(body.get("prompt")).get("id"):
        yield Feature.STORED
    if not is_one_of(body.get("service_tier"), *STANDARD_TIERS):
        yield Feature.SERVICE_TIERS
    for part in objects(body.get("input")):
        if part.get("type") == "item_reference":
            yield Feature.STORED
    yield from media_features(body.get("input"))


def _tools(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield tools with those that they group."""
    for tool in map(mapping, items(value)):
        yield tool
        if tool.get("type") == "namespace":
            yield from _tools(tool.get("tools"))


def _tool_features(tool: Mapping[str, Any]) -> Iterator[Feature]:
    kind = tool.get("type")
    if kind == "shell":
        # Without an environment, or with that of the agent, the agent runs the commands.
        if not is_one_of(mapping(tool.get("environment")).get("type"), None, "local"):
            yield Feature.CODE_EXECUTION
    elif not isinstance(kind, str) or kind not in _TOOLS_OF_THE_AGENT:
        # Versions of a tool end with a date.
        name = "_".join(part for part in str(kind).split("_") if not part.isdigit())
        yield _TOOL_FEATURES.get(name, Feature.OTHER_TOOLS)


def media_features(value: Any) -> Iterator[Feature]:
    """Yield what the images and files of OpenAI's messages use."""
    for part in objects(value):
        for name in ("image_url", "file_url", "video_url", "audio_url"):
            nested = part.get(name)
            url = nested.get("url") if isinstance(nested, dict) else nested
            if isinstance(url, str) and not url.startswith("data:"):
                yield Feature.URL_INPUTS
        if part.get("file_id") or mapping(part.get("file")).get("file_id"):
            yield Feature.FILES


def image_sizes(value: Any) -> Iterator[int]:
    """Yield the bytes of the URL of each image that a request holds itself."""
    for part in objects(value):
        nested = part.get("image_url")
        url = nested.get("url") if isinstance(nested, dict) else nested
        if isinstance(url, str) and url.startswith("data:image/"):
            yield len(url)


STANDARD: Mapping[str, frozenset[str]] = {
    "service_tier": frozenset({"default", "standard", "on_demand"})
}
"""The tiers of the standard price."""
_UNDER = ("input_tokens_details", "output_tokens_details")
_PARTS = ("cached_tokens", "cache_write_tokens", "text_tokens", "reasoning_tokens")
KNOWN_NUMBERS = frozenset(
    {
        *("input_tokens", "output_tokens", "total_tokens"),
        *(f"{details}.{part}" for details in _UNDER for part in _PARTS),
        # What compatible servers say that they charged.
        *("cost", "cost_details.*", "estimated_cost", "cost_in_usd_ticks"),
    }
)
_FREE_ITEMS = frozenset(
    {
        *("function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call"),
        *("apply_patch_call", "mcp_call", "tool_search_call"),
    }
)
"""Calls of tools for which nothing is charged but tokens."""


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return usage as the Responses API says it. Raises `ValueError` if it is not complete."""
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
    known_numbers = KNOWN_NUMBERS
    counts_tools = True
    standard = STANDARD
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
        self._take_usage(response.get("usage"))
        self._take_tier("service_tier", served_tier(response))
        searches = sum(map(self._searched, map(mapping, items(response.get("output")))))
        self._take_searches(searches)
        self.finished = True
        self.failed = not is_one_of(response.get("status"), "completed", "incomplete")

    def _searched(self, item: Mapping[str, Any]) -> bool:
        """Return whether an item of the output is a search; note other items with a charge."""
        kind = item.get("type")
        if kind == "web_search_call":
            # To open a page that was found, or to search in it, costs no search.
            action = mapping(item.get("action")).get("type")
            return not is_one_of(action, "open_page", "find_in_page", "find")
        if isinstance(kind, str) and kind.endswith("_call") and kind not in _FREE_ITEMS:
            self._charge(f"a {kind[:40]}")
        return False

    @property
    def _has_usage(self) -> bool:
        # A failed response is charged for what it says that it used.
        return bool(self._said.numbers) or self.whole


def served_tier(document: Mapping[str, Any]) -> Any:
    """Return the tier that an answer says has served it. `auto` names none."""
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
    read_request=_read_request,
    read_settings=_read_settings,
    reader=_Reader,
    error=error,
    key_header="Authorization",
    # Codex repeats a request that got 403, and none that got 400.
    forbidden=400,
)
