"""The APIs that the gateway speaks, and the tokens of one call in terms that all of them share.

Providers count differently: Anthropic leaves cached tokens out of `input_tokens`, OpenAI and Google
include them; Google counts thoughts beside the output, the others within it. `Usage` says it in one
way. An answer without usage has none: it is unknown, and never a `Usage` of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from labledger.records.json_codec import Section


class Api(StrEnum):
    """An API of model providers, by which requests, answers and errors are read."""

    ANTHROPIC_MESSAGES = "anthropic-messages"
    OPENAI_RESPONSES = "openai-responses"
    OPENAI_CHAT = "openai-chat"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True)
class Usage(Section):
    """The tokens of one call, each counted under one name except `reasoning`."""

    input: int = 0
    """Tokens of the request that were neither read from a cache nor written to one."""
    cache_read: int = 0
    cache_write: int = 0
    """Tokens written to a cache for its usual time."""
    cache_write_1h: int = 0
    """Tokens written to a cache for an hour, which costs more."""
    output: int = 0
    """All tokens of the answer, those of its reasoning included."""
    reasoning: int = 0
    """The part of `output` that is reasoning."""

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"cache_write_1h", "reasoning"})

    @property
    def total(self) -> int:
        """All tokens of the request and the answer."""
        return self.request + self.output

    @property
    def request(self) -> int:
        """All tokens of the request, those of caches included."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h
