"""OpenAI's Chat Completions API, which many providers speak.

A stream has usage only if the request asks for it (`stream_options.include_usage`), in a chunk of
its own or in the last one. `[DONE]` ends it.
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
    items,
    mapping,
    text_or_none,
)
from labledger.gateway.families.openai_responses import (
    error,
    usage_with_cache,
)
from labledger.gateway.families.requests.chat import read_request
from labledger.records.model_calls import Usage

_ENDPOINTS = {"/v1/chat/completions": Endpoint()}


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return usage as Chat Completions say it. Raises `ValueError` if it is not complete."""
    request = count(usage, "prompt_tokens", None)
    output = count(usage, "completion_tokens", None)
    of_request = dict(mapping(usage.get("prompt_tokens_details")))
    if of_request.get("cached_tokens") is None:
        # How DeepSeek calls them.
        of_request["cached_tokens"] = count(usage, "prompt_cache_hit_tokens")
    of_output = mapping(usage.get("completion_tokens_details"))
    reasoning = count(of_output, "reasoning_tokens")
    if reasoning and usage.get("total_tokens") == request + output + reasoning:
        # Some providers count reasoning beside the answer, not within it.
        output += reasoning
    return usage_with_cache(request, of_request, output, of_output)


class _Reader(AnswerReader):
    read_usage = staticmethod(read_usage)

    def __init__(self) -> None:
        super().__init__()
        self._answered = False

    def take_event(self, event: Event) -> None:
        if event.data.strip() == "[DONE]":
            self.finished = True
            return
        chunk = mapping(event.document)
        if chunk.get("error"):
            self.failed = True
        self.model = text_or_none(chunk.get("model")) or self.model
        if usage := mapping(chunk.get("usage")):
            self._usage = dict(usage)
        choices = map(mapping, items(chunk.get("choices")))
        self._answered |= any(choice.get("finish_reason") for choice in choices)

    def take_whole(self, document: Any) -> None:
        completion = mapping(document)
        self.model = text_or_none(completion.get("model"))
        self._usage = dict(mapping(completion.get("usage")))
        self.failed = not isinstance(completion.get("choices"), list)
        self._answered = self.finished = True

    @property
    def whole(self) -> bool:
        return (self.finished or self._answered) and not self.failed


FAMILY: Family = Family(
    endpoint=_ENDPOINTS.get,
    query=frozenset(),
    read_request=read_request,
    reader=_Reader,
    error=error,
    key_header="Authorization",
)
