"""Google's Gemini API.

The path names the model, and says whether the answer is a stream: of events with `alt=sse`,
otherwise of the items of one array. Members may be spelled in two ways, `fileData` and `file_data`.
Each chunk of a stream has the usage so far. No event marks the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from labledger.gateway.families.answer_reader import AnswerReader, CallSettings
from labledger.gateway.families.event_stream import StreamEvent
from labledger.gateway.families.family import (
    CallRefused,
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
from labledger.gateway.families.requests.bodies import members
from labledger.gateway.families.requests.google import read_request
from labledger.gateway.families.usage_numbers import check_total, count
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


STANDARD: Mapping[str, frozenset[str]] = {
    "service_tier": frozenset({"standard", "unspecified", "service_tier_unspecified", "on_demand"})
}
"""The tiers of the standard price."""
KNOWN_NUMBERS = frozenset(
    {
        *("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount"),
        *("thoughtsTokenCount", "toolUsePromptTokenCount", "totalTokenCount"),
        # Parts of the others, by modality: see `_Reader._take_modalities`.
        *("promptTokensDetails.tokenCount", "cacheTokensDetails.tokenCount"),
        *("candidatesTokensDetails.tokenCount", "toolUsePromptTokensDetails.tokenCount"),
    }
)
_MODALITIES = {
    "promptTokensDetails": ("TEXT", "IMAGE", "VIDEO", "DOCUMENT"),
    "cacheTokensDetails": ("TEXT", "IMAGE", "VIDEO", "DOCUMENT"),
    "toolUsePromptTokensDetails": ("TEXT", "IMAGE", "VIDEO", "DOCUMENT"),
    "candidatesTokensDetails": ("TEXT",),
}
"""The modalities that have the price of text, in the request and in the answer."""
_FILES = ("inlineData", "inline_data", "fileData", "file_data")
"""The parts of an answer that are images, audio or other files."""
_PRICED_BY_QUERY = re.compile(r"gemini-([3-9]|\d\d)")
"""Models that charge for each search query. Earlier ones charge once for an answer."""


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return usage in Google's form as `Usage`. Raises `ValueError` if it is not complete."""
    prompt = count(usage, "promptTokenCount", None)
    cached = count(usage, "cachedContentTokenCount")
    thoughts = count(usage, "thoughtsTokenCount")
    if cached > prompt:
        raise ValueError("a part is larger than the whole")
    read = Usage(
        input=prompt - cached + count(usage, "toolUsePromptTokenCount"),
        cache_read=cached,
        output=count(usage, "candidatesTokenCount") + thoughts,
        reasoning=thoughts,
    )
    check_total(usage, "totalTokenCount", read.total)
    return read


class _Reader(AnswerReader):
    known_numbers = KNOWN_NUMBERS
    counts_tools = True
    standard = STANDARD
    read_usage = staticmethod(read_usage)

    def __init__(self) -> None:
        super().__init__()
        self._ended = self._has_results = self._is_document = False

    def take_event(self, event: StreamEvent) -> None:
        self._take(mapping(event.document))

    def take_whole(self, document: Any) -> None:
        self._is_document = True
        for chunk in document if isinstance(document, list) else [document]:
            self._take(mapping(chunk))

    def _take(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error"):
            self.failed = True
        self.model = text_or_none(chunk.get("modelVersion")) or self.model
        if usage := mapping(chunk.get("usageMetadata")):
            self._take_usage(usage)
            self._take_modalities(usage)
            for name in ("trafficType", "serviceTier"):
                self._take_tier("service_tier", _tier(usage.get(name)))
        self._take_tier("service_tier", _tier(chunk.get("serviceTier")))
        for candidate in map(mapping, items(chunk.get("candidates"))):
            self._ended |= bool(candidate.get("finishReason"))
            if grounding := mapping(candidate.get("groundingMetadata")):
                self._take_grounding(grounding)
            for part in map(mapping, items(mapping(candidate.get("content")).get("parts"))):
                if any(name in part for name in _FILES):
                    self._charge("an answer that is no text")
        # A blocked request gets no candidate.
        self._ended |= bool(mapping(chunk.get("promptFeedback")).get("blockReason"))

    def _take_modalities(self, usage: Mapping[str, Any]) -> None:
        for name in _MODALITIES.keys() & usage.keys():
            plain = _MODALITIES[name]
            for modality in map(mapping, items(usage[name])):
                if modality.get("tokenCount") and not is_one_of(modality.get("modality"), *plain):
                    self._charge(f"{name} of {str(modality.get('modality'))[:40]}")

    def _take_grounding(self, grounding: Mapping[str, Any]) -> None:
        queries = len(items(grounding.get("webSearchQueries")))
        if queries and not _PRICED_BY_QUERY.match(self.model or ""):
            queries = 1
        self.searches = max(self.searches, queries)
        if items(grounding.get("imageSearchQueries")):
            self._charge("a search for images")
        chunks = list(map(mapping, items(grounding.get("groundingChunks"))))
        if any("web" in chunk for chunk in chunks):
            self._has_results = True
        if grounding.get("googleMapsWidgetContextToken") or any(
            "maps" in chunk for chunk in chunks
        ):
            self._charge("a search in maps")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self._has_results and not self.searches:
            yield "the answer does not say how often the provider searched"

    @property
    def whole(self) -> bool:
        return self._ended and not self.failed

    @property
    def _has_usage(self) -> bool:
        # Another chunk may follow the chunk with the reason of the end.
        return self.whole and (self.ended or self._is_document)


def _tier(value: Any) -> Any:
    """Return a tier in the spelling of requests. Vertex writes `ON_DEMAND_FLEX`, for example."""
    return value.casefold().removeprefix("on_demand_") if isinstance(value, str) else value


def _read_settings(body: JsonObject) -> CallSettings:
    try:
        request = members(body)
        config = members(request.get("generationconfig"))
        thinking = members(config.get("thinkingconfig"))
    except CallRefused:
        return CallSettings()
    effort = word_or_none(thinking.get("thinkinglevel"))
    if effort is None:
        effort = word_or_none(thinking.get("thinkingbudget"))
    tiers = asked_tiers({"service_tier": request.get("servicetier")}, STANDARD)
    return CallSettings(effort, temperature(config.get("temperature")), tiers)


def _error(status: int, message: str) -> JsonObject:
    name = _ERRORS.get(status, "UNAVAILABLE")
    return {"error": {"code": status, "message": message, "status": name}}


FAMILY: Family = Family(
    endpoint=_endpoint,
    query=frozenset({"alt", "key"}),
    read_request=read_request,
    read_settings=_read_settings,
    reader=_Reader,
    error=_error,
    key_header="x-goog-api-key",
)
