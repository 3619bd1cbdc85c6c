"""The provider's count of a request, in an answer that was cut.

Some providers state the tokens of the request when the answer begins, or repeatedly while it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labledger.gateway.families import FAMILIES
from labledger.records.model_calls import Api, Usage

_OF_THE_REQUEST: Mapping[str, tuple[str, ...]] = {
    Api.ANTHROPIC_MESSAGES: (
        *("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
        "cache_creation",
    ),
    Api.OPENAI_CHAT: ("prompt_tokens", "prompt_tokens_details", "prompt_cache_hit_tokens"),
    Api.GEMINI: ("promptTokenCount", "cachedContentTokenCount", "toolUsePromptTokenCount"),
}
"""The usage numbers of the request. Responses state none before their end."""
_NEEDED: Mapping[str, frozenset[str]] = {
    # Compatible servers may state some only at the end. The input is then only a part.
    Api.ANTHROPIC_MESSAGES: frozenset(
        {"input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}
    ),
}
_NO_ANSWER: Mapping[str, Mapping[str, int]] = {
    Api.ANTHROPIC_MESSAGES: {"output_tokens": 0},
    Api.OPENAI_CHAT: {"completion_tokens": 0},
}


def named_request(api: str, raw_usage: Mapping[str, Any] | None) -> Usage | None:
    """Return the request's tokens from the usage so far; None if they are not complete.

    A count of 0 means that the request was not counted.
    """
    if not raw_usage or api not in _OF_THE_REQUEST or raw_usage.get("iterations"):
        return None
    named = {k: raw_usage[k] for k in _OF_THE_REQUEST[api] if raw_usage.get(k) is not None}
    if not _NEEDED.get(api, frozenset()).issubset(named):
        return None
    try:
        usage = FAMILIES[Api(api)].reader().read_usage({**named, **_NO_ANSWER.get(api, {})})
    except ValueError:
        return None
    return usage if usage.request else None
