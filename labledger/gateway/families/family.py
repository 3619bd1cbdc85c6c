"""What the APIs have in common: the parts of a family, and reading JSON that anybody wrote.

A request is judged by allow-lists: an endpoint, a query or a tool that is not known is refused, as
it may be something by which the provider reaches the network, keeps data or charges for more than
tokens.
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
"""How many characters of a model's name or of a request's id are kept."""
_MAX_WORD = 40
_MAX_TEMPERATURE = 100


class Feature(StrEnum):
    """What a request may use only if the experiment grants it by this name.

    With each of them the provider does more than to answer from the request alone: it reaches the
    network, runs programs, reads what it stored, or charges by other prices.
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
    """What a path asks for."""

    model: str | None = None
    """The model that the path names; None where the body does."""
    streamed: bool | None = None
    """Whether it asks for a stream; None where the body says so."""
    counts_tokens: bool = False
    """Whether it only counts tokens, for which nothing is charged."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for."""

    model: str
    streamed: bool
    request_tokens: int
    """More tokens than the request can have."""
    max_output: int | None
    """The most tokens of one answer; None where the request does not say."""
    answers: int = 1
    """How many answers it asks for at once."""
    features: frozenset[Feature] = frozenset()
    counts_tokens: bool = False
    searches: int = 0
    """How many searches the provider may make, if it charges for each search."""
    unknown: tuple[str, ...] = ()
    """The first unknown things in it, which need `other_tools`."""
    least_output: int = 0
    """A lower bound of the output, whatever is assumed for `max_output`."""
    extra_output: int = 0
    """Additional tokens of each answer that may be charged."""
    other_prices: bool = False
    """Whether some tokens, such as sound, have prices outside any table of text tokens."""
    text_bytes: int = 0
    """The bytes of the body without images and files."""
    overhead_tokens: int = 0
    """The part of `request_tokens` that is not in the body."""
    has_file: bool = False
    """Whether it holds a file, a recording or a film, which counts with a whole context window."""
    stored: tuple[str, ...] = ()
    """The items that the provider stored, which the request names without their content."""
    stored_tokens: int = 0
    """The part of `request_tokens` for these items."""
    turns: Turns | None = None
    """None if this request does not show the tokens of the next one; also None after reading."""
    trace: RequestTrace | None = None
    """What the next request is compared with; None if no comparison is needed."""


class Refused(Exception):
    """A request that is not forwarded. The text is for the agent's log."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True, slots=True)
class Family:
    """How one API asks, answers and reports errors."""

    endpoint: Callable[[str], Endpoint | None]
    """Returns what a path below the API's address asks for; None if it is not allowed."""
    query: frozenset[str]
    """The parameters that a request's query may have."""
    read_request: Callable[[Endpoint, JsonObject, int], Asked]
    """Returns what a body of so many bytes asks for. Raises `Refused`."""
    read_settings: Callable[[JsonObject], CallSettings]
    """Returns the settings with which a body asks for its answer."""
    reader: Callable[[], AnswerReader]
    error: Callable[[int, str], JsonObject]
    """Returns an error with a status and a message in the API's form."""
    key_header: str
    """The header that carries the key."""
    forbidden: int = 403
    """The status of a refusal that clients of the API do not repeat."""

    def key_headers(self, key: str, auth: str | None = None) -> Mapping[str, str]:
        """Return the headers with which a provider gets its key.

        `auth` is the header's name, for a provider that wants another one.
        """
        name = auth or self.key_header
        return {name: f"Bearer {key}" if name.lower() == "authorization" else key}


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return a value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def is_one_of(value: Any, *allowed: str | None) -> bool:
    """Return whether a value is one of some texts, or None where that is one of them."""
    return (value is None or isinstance(value, str)) and value in allowed


def text_or_none(value: Any) -> str | None:
    """Return a provider's name for something, cut to the stored length."""
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
