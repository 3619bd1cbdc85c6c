"""OpenAI's Chat Completions API, which many providers speak.

A stream has usage only if the request asks for it (`stream_options.include_usage`), in a separate
chunk or in the last one. Moonshot has it in the choice, and Groq in `x_groq`. `[DONE]` ends the
stream.
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
    items,
    mapping,
    temperature,
    text_or_none,
    word_or_none,
)
from labledger.gateway.families.openai_responses import (
    STANDARD,
    error,
    served_tier,
    usage_with_cache,
)
from labledger.gateway.families.requests.chat import read_request
from labledger.gateway.families.usage_numbers import check_total, count, is_number
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

_ENDPOINTS = {"/v1/chat/completions": Endpoint()}


_DETAILS = ("prompt_tokens_details", "completion_tokens_details")
_READ = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
"""The providers' names for tokens that were read from a cache or written to it."""
_TIMES = (
    *("queue_time", "prompt_time", "completion_time", "total_time", "time_to_first_token"),
    *("start_time", "end_time", "total_latency"),
)
_SPEEDS = (
    *("tokens_per_second", "prompt_tokens_per_second", "completion_tokens_per_second"),
    *("completion_tokens_per_sec", "completion_tokens_after_first_per_sec"),
    *("completion_tokens_after_first_per_sec_first_ten", "total_tokens_per_sec"),
    "acceptance_rate",
)
_MORE_THAN_TEXT = {
    "audio": "audio in the answer",
    "images": "images in the answer",
    "executed_tools": "tools of the provider",
}
"""Members of a message that may have other prices than text."""
KNOWN_NUMBERS = frozenset(
    {
        *("prompt_tokens", "completion_tokens", "total_tokens", *_READ, *_WRITTEN),
        # Other names of the same numbers.
        *("input_tokens", "output_tokens"),
        *(f"{details}.{name}" for details in _DETAILS for name in (*_READ, *_WRITTEN)),
        *(f"{details}.text_tokens" for details in _DETAILS),
        # Parts of the output. DeepSeek also counts the uncached part of the request.
        "prompt_cache_miss_tokens",
        *("completion_tokens_details.reasoning_tokens", "reasoning_tokens"),
        *(f"completion_tokens_details.{s}_prediction_tokens" for s in ("accepted", "rejected")),
        *_TIMES,
        *_SPEEDS,
        # Compatible servers state their charge in these.
        *("cost", "cost.*", "cost_details.*", "estimated_cost", "cost_in_usd_ticks"),
    }
)


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return usage of Chat Completions as `Usage`. Raises `ValueError` if it is not complete."""
    request = count(usage, "prompt_tokens", None)
    output = count(usage, "completion_tokens", None)
    of_request = mapping(usage.get("prompt_tokens_details"))
    of_output = dict(mapping(usage.get("completion_tokens_details")))
    of_output.setdefault("reasoning_tokens", usage.get("reasoning_tokens"))
    reasoning = count(of_output, "reasoning_tokens")
    total = usage.get("total_tokens")
    if reasoning and total == request + output + reasoning:
        # Some providers count reasoning beside the answer, not within it.
        output += reasoning
    check_total(usage, "total_tokens", request + output)
    _check_misses(usage, request)
    cached = {
        "cached_tokens": _named(usage, of_request, _READ),
        "cache_write_tokens": _named(usage, of_request, _WRITTEN),
    }
    return usage_with_cache(request, cached, output, of_output)


def _check_misses(usage: Mapping[str, Any], request: int) -> None:
    """Raise `ValueError` if the two parts that DeepSeek names are not the whole request."""
    names = ("prompt_cache_hit_tokens", "prompt_cache_miss_tokens")
    hit, missed = (count(usage, name) for name in names)
    if missed and hit + missed != request:
        raise ValueError(f"its {' and '.join(names)} are {hit + missed}, and not {request}")


def _named(usage: Mapping[str, Any], details: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return a number with several possible names. Raises `ValueError` if two values differ."""
    counts = {count(where, name) for where in (usage, details) for name in names} - {0}
    if len(counts) > 1:
        raise ValueError(f"{names[0]} is given by several names, with different numbers")
    return max(counts, default=0)


class _Reader(AnswerReader):
    known_numbers = KNOWN_NUMBERS
    counts_searches = False
    standard = STANDARD
    read_usage = staticmethod(read_usage)

    def __init__(self) -> None:
        super().__init__()
        self._answered = self._has_last = False

    def take_event(self, event: StreamEvent) -> None:
        if event.data.strip() == "[DONE]":
            self.finished = True
            return
        self._take(mapping(event.document))

    def take_whole(self, document: Any) -> None:
        completion = mapping(document)
        self._take(completion)
        self.failed = not isinstance(completion.get("choices"), list)
        self._answered = self.finished = True

    def _take(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error"):
            self.failed = True
        self.model = text_or_none(chunk.get("model")) or self.model
        # A stream has very many chunks, and few have more than text.
        if chunk.get("search_results") or chunk.get("citations"):
            self._charge("a search by the provider")
        if "service_tier" in chunk:
            self._take_tier("service_tier", served_tier(chunk))
        if usage := chunk.get("usage"):
            self._take_usage(usage)
            # A chunk with only usage is the last one.
            has_usage = bool(mapping(usage).get("prompt_tokens"))
            self._has_last |= has_usage and chunk.get("choices") == []
            self._answered |= self._has_last
        if "x_groq" in chunk:
            self._take_usage(mapping(chunk["x_groq"]).get("usage"))
        for choice in map(mapping, items(chunk.get("choices"))):
            self._take_choice(choice)

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        self._answered |= bool(choice.get("finish_reason"))
        if choice.get("usage"):
            self._take_usage(choice["usage"])
            if choice.get("index"):
                # Each choice has the tokens of its own answer.
                self._charge("another choice with a usage")
        for message in (choice.get("delta"), choice.get("message")):
            if isinstance(message, dict):
                self._take_message(message)

    def _take_message(self, message: Mapping[str, Any]) -> None:
        if _cites(message):
            self._charge("a search by the provider")
        for name, what in _MORE_THAN_TEXT.items():
            if message.get(name):
                self._charge(what)

    def _take_usage(self, usage: Any) -> None:
        super()._take_usage(usage)
        self._take_tier("service_tier", served_tier(mapping(usage)))
        used = mapping(mapping(usage).get("server_tool_use")).get("web_search_requests")
        if is_number(used) and used > 0:
            self._charge("a search by the provider")

    @property
    def whole(self) -> bool:
        return (self.finished or self._answered) and not self.failed

    @property
    def _has_usage(self) -> bool:
        # The chunk with the reason of the end may have a usage that a later chunk replaces.
        return self.whole and (self.finished or self._has_last or self.transferred)


def _cites(message: Mapping[str, Any]) -> bool:
    annotations = message.get("annotations")
    return bool(annotations) and any(
        mapping(annotation).get("type") == "url_citation" for annotation in items(annotations)
    )


def _read_settings(body: JsonObject) -> CallSettings:
    effort = word_or_none(body.get("reasoning_effort"))
    if effort is None:
        reasoning = mapping(body.get("reasoning"))
        effort = word_or_none(reasoning.get("effort")) or word_or_none(reasoning.get("max_tokens"))
    if effort is None:
        effort = word_or_none(mapping(body.get("thinking")).get("type"))
    return CallSettings(effort, temperature(body.get("temperature")), asked_tiers(body, STANDARD))


FAMILY: Family = Family(
    endpoint=_ENDPOINTS.get,
    query=frozenset(),
    read_request=read_request,
    read_settings=_read_settings,
    reader=_Reader,
    error=error,
    key_header="Authorization",
)
