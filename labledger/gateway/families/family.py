"""What the APIs have in common: the parts of a family, and reading JSON that anybody wrote.

A request is judged by allow-lists: an endpoint, a query or a tool that is not known is refused, as
it may be something by which the provider reaches the network, keeps data or charges for more than
tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labledger.gateway.families.event_stream import Event
from labledger.gateway.families.request_trace import RequestTrace, Turns
from labledger.records import JsonObject
from labledger.records.model_calls import Usage

MAX_TOKENS = 10**9
"""No call has more tokens of a kind: what a provider says beyond it is no number of tokens, and a
cost stays within the integers of SQLite."""
MAX_NAME = 200
"""How many characters of a model's name or of a request's id are kept."""


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
    """How many searches the provider may make, for which it charges by number."""
    unknown: tuple[str, ...] = ()
    """The first things in it that are not known, for which `other_tools` is needed."""
    least_output: int = 0
    """No fewer than so many tokens may come, whatever is assumed for `max_output`."""
    extra_output: int = 0
    """So many more tokens of each answer may be charged."""
    other_prices: bool = False
    """Whether some tokens have prices that no table of text tokens gives, such as of sound."""
    text_bytes: int = 0
    """The bytes of the body without images and files."""
    overhead_tokens: int = 0
    """The part of `request_tokens` that is not in the body."""
    turns: Turns | None = None
    """None where the tokens of the next request cannot be told from this one, and once read."""
    trace: RequestTrace | None = None
    """What is compared with the next request; None where that is not needed."""


class Refused(Exception):
    """A request that is not forwarded. The text is for the agent's log."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class AnswerReader(ABC):
    """Reads what one answer says of itself, event by event or whole."""

    def __init__(self) -> None:
        self.model: str | None = None
        """The model that answered."""
        self.finished = False
        """Whether the event was read after which none follows."""
        self.failed = False
        """Whether the answer says that it failed."""
        self._usage: JsonObject = {}

    @abstractmethod
    def take_event(self, event: Event) -> None:
        """Read an event of a stream."""

    @abstractmethod
    def take_whole(self, document: Any) -> None:
        """Read an answer that came in one piece."""

    @staticmethod
    @abstractmethod
    def read_usage(usage: Mapping[str, Any]) -> Usage:
        """Return a provider's usage in the words of `Usage`. Raises `ValueError`."""

    @property
    def whole(self) -> bool:
        """Whether nothing is missing if the answer ends here."""
        return self.finished and not self.failed

    @property
    def raw_usage(self) -> JsonObject | None:
        """The usage as the provider said it."""
        return self._usage or None

    @property
    def usage(self) -> Usage | None:
        """The usage of the whole answer; None until it is known."""
        try:
            return self.read_usage(self._usage) if self._has_usage else None
        except ValueError:
            return None

    @property
    def _has_usage(self) -> bool:
        """Whether what was said of the usage is the last word."""
        return self.whole


@dataclass(frozen=True, slots=True)
class Family:
    """How one API asks, answers and reports errors."""

    endpoint: Callable[[str], Endpoint | None]
    """Returns what a path below the API's address asks for; None if it is not allowed."""
    query: frozenset[str]
    """The parameters that a request's query may have."""
    read_request: Callable[[Endpoint, JsonObject, int], Asked]
    """Returns what a body of so many bytes asks for. Raises `Refused`."""
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


def count(usage: Mapping[str, Any], name: str, default: int | None = 0) -> int:
    """Return a number of tokens; `default` where it is absent or null.

    Raises `ValueError` if it is no number of tokens, or absent without a default.
    """
    value = usage.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"{name} is no number of tokens")
    return value


def text_or_none(value: Any) -> str | None:
    """Return a name that a provider gave, cut to what is kept."""
    return value[:MAX_NAME] if isinstance(value, str) and value else None
