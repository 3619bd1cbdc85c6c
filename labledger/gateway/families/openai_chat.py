"""OpenAI's Chat Completions API, which many providers speak.

A stream has usage only if the request asks for it (`stream_options.include_usage`), in a chunk of
its own or in the last one. `[DONE]` ends it.
"""

from __future__ import annotations

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
from labledger.gateway.families.openai_responses import (
    STANDARD_TIERS,
    error,
    image_sizes,
    media_features,
    usage_with_cache,
)
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

_ENDPOINTS = {"/v1/chat/completions": Endpoint()}
_SEARCHES = ("web_search_options", "search_parameters", "plugins", "enable_search")
"""How requests to this and compatible providers ask for a search."""


def _read_request(endpoint: Endpoint, body: JsonObject, size: int) -> Asked:
    sizes = list(image_sizes(body.get("messages")))
    limits = [positive(body.get(name)) for name in ("max_completion_tokens", "max_tokens")]
    return requested(
        endpoint,
        body,
        size,
        max_output=max((limit for limit in limits if limit is not None), default=None),
        features=frozenset(_features(body)),
        media_bytes=sum(sizes),
        images=len(sizes),
        answers=max(positive(body.get("n")) or 1, positive(body.get("best_of")) or 1),
    )


def _features(body: JsonObject) -> Iterator[Feature]:
    for tool in map(mapping, items(body.get("tools"))):
        kind = tool.get("type")
        if not is_one_of(kind, None, "function", "custom"):
            searches = str(kind).startswith("web_search")
            yield Feature.WEB_SEARCH if searches else Feature.OTHER_TOOLS
    # An empty object asks for a search, too.
    if any(body.get(name) not in (None, False) for name in _SEARCHES):
        yield Feature.WEB_SEARCH
    if not is_one_of(body.get("service_tier"), *STANDARD_TIERS):
        yield Feature.SERVICE_TIERS
    if any(mapping(part.get("audio")).get("id") for part in objects(body.get("messages"))):
        yield Feature.STORED
    yield from media_features(body.get("messages"))


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
    read_request=_read_request,
    reader=_Reader,
    error=error,
    key_header="Authorization",
)
