"""The common parts of all APIs: the parts of a family, and readers for untrusted JSON.

Allow-lists judge a request. An unknown endpoint, query or tool is refused, because it may let the
provider reach the network, keep data, or charge for more than tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labledger.gateway.families.answer_reader import AnswerReader, CallSettings
from labledger.gateway.families.request_trace import RequestTrace, Turns
from labledger.records import JsonObject

MAX_NAME = 200
"""The most characters of a model's name or a request's id that are kept."""
_MAX_WORD = 40
_MAX_TEMPERATURE = 100


class Feature(StrEnum):
    """A feature that a request may use only if the experiment grants it by this name.

    With each feature, the provider does more than answer from the request alone: it reaches the
    network, runs programs, reads stored data, or charges other prices.
    """

    WEB_SEARCH = "web_search"
    URL_INPUTS = "url_inputs"
    CODE_EXECUTION = "code_execution"
    FILES = "files"
    MCP = "mcp"
    STORED = "stored"
    IMAGE_GENERATION = "image_generation"
    SERVICE_TIERS = "service_tiers"
    OTHER_TOOLS = "other_tools"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The request that a path names."""

    model: str | None = None
    """The model that the path names; None if the body names it."""
    streamed: bool | None = None
    """Whether it asks for a stream; None if the body decides."""
    counts_tokens: bool = False
    """Whether it only counts tokens, which is free."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The facts of a request."""

    model: str
    streamed: bool
    request_tokens: int
    """An upper bound of the request's tokens."""
    max_output: int | None
    """The most tokens of one answer; None if the request does not limit them."""
    answers: int = 1
    """How many answers it asks for at once."""
    features: frozenset[Feature] = frozenset()
    counts_tokens: bool = False
    searches: int = 0
    """How many searches the provider may make, if it charges for each search."""
    unknown: tuple[str, ...] = ()
    """The first unknown parts of the request, which need `other_tools`."""
    least_output: int = 0
    """A lower bound of the output, whatever is assumed for `max_output`."""
    extra_output: int = 0
    """Additional tokens of each answer that may be charged."""
    other_prices: bool = False
    """Whether some tokens, such as sound, have other prices than text."""
    text_bytes: int = 0
    """The bytes of the body without images and files."""
    overhead_tokens: int = 0
    """The part of `request_tokens` that is not in the body."""
    has_file: bool = False
    """Whether it holds a file or a recording, which counts with a whole context window."""
    stored: tuple[str, ...] = ()
    """The items that the provider stored, which the request names without their content."""
    stored_tokens: int = 0
    """The part of `request_tokens` for these items."""
    turns: Turns | None = None
    """None if this request does not show the tokens of the next one; also None after reading."""
    trace: RequestTrace | None = None
    """The digests that the next request is compared with; None if not needed."""


class CallRefused(Exception):
    """A request that is not forwarded. The message is for the agent's log."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True, slots=True)
class Family:
    """How one API asks, answers and reports errors."""

    endpoint: Callable[[str], Endpoint | None]
    """Returns the endpoint of a path below the API's address; None if it is not allowed."""
    query: frozenset[str]
    """The parameters that a request's query may have."""
    read_request: Callable[[Endpoint, JsonObject, int], Asked]
    """Return the facts of a body, given its endpoint and size in bytes. Raises `CallRefused`."""
    read_settings: Callable[[JsonObject], CallSettings]
    """Returns the settings with which a body asks for its answer."""
    reader: Callable[[], AnswerReader]
    error: Callable[[int, str], JsonObject]
    """Returns an error with a status and a message in the API's form."""
    key_header: str
    """The header that carries the key."""
    forbidden: int = 403
    """The status of a refusal that clients of the API do not retry."""

    def key_headers(self, key: str, auth: str | None = None) -> Mapping[str, str]:
        """Return the headers with a provider's key.

        `auth` is the header's name, if it is not the usual one of the API.
        """
        name = auth or self.key_header
        return {name: f"Bearer {key}" if name.lower() == "authorization" else key}


def mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return `value` if it is an array, else an empty array."""
    return value if isinstance(value, list) else []


def is_one_of(value: Any, *allowed: str | None) -> bool:
    """Return whether a value is one of `allowed`, which are texts or None."""
    return (value is None or isinstance(value, str)) and value in allowed


def text_or_none(value: Any) -> str | None:
    """Return a name from a provider, cut to the stored length; None if it is no text."""
    return value[:MAX_NAME] if isinstance(value, str) and value else None


def word_or_none(value: Any) -> str | None:
    """Return a short word, or a number of tokens, that a request uses as a setting."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**_MAX_WORD else None
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_WORD else None


def temperature(value: Any) -> float | None:
    """Return a temperature; None if the value is not a temperature."""
    is_set = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_set and 0 <= value <= _MAX_TEMPERATURE else None


def asked_tiers(body: Mapping[str, Any], standard: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Return the requested tier, speed and region, without standard values."""
    words = {name: word_or_none(body.get(name)) for name in standard}
    return {
        name: word.casefold()
        for name, word in words.items()
        if word is not None and word.casefold() not in {"auto", *standard[name]}
    }
