"""What the APIs have in common: the parts of a family, and reading JSON that anybody wrote.

A request is judged by allow-lists: an endpoint, a query or a tool that is not known is refused, as
it may be something by which the provider reaches the network, keeps data or charges for more than
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labledger.gateway.families.answer_reader import AnswerReader, CallSettings
from labledger.records import JsonObject

MAX_NAME = 200
"""How many characters of a model's name or of a request's id are kept."""
IMAGE_TOKENS = 50_000
"""More tokens than any provider counts for one image."""
_MORE_MODELS = ("models", "fallbacks", "fallback_models")
"""By which members providers are told to ask other models in its place."""
UNSTATED_SEARCHES = 20
"""How many searches of one call are reserved where the request does not limit them."""
_MAX_WORD = 40
_MAX_TEMPERATURE = 100
HIDDEN_TOKENS = 2_000
"""More tokens than a provider adds to a request by itself, such as its words on tools."""


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
    """Returns how a body asks for its answer."""
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


def requested(
    endpoint: Endpoint,
    body: JsonObject,
    size: int,
    *,
    max_output: int | None,
    features: frozenset[Feature],
    media_bytes: int,
    images: int,
    answers: int = 1,
) -> Asked:
    """Return what a request asks for, from what its API says in its own way.

    Raises `Refused` if it names no model, or the same member in two spellings, of which this reader
    and the provider's might believe different ones.
    """
    names = [key.casefold().replace("_", "") for key in body]
    if len(set(names)) != len(names):
        raise Refused(400, "ambiguous", "the body has members whose names differ in spelling only")
    model = endpoint.model if endpoint.model is not None else body.get("model")
    if not isinstance(model, str) or not model or len(model) > MAX_NAME:
        raise Refused(400, "no_model", "the body names no model")
    if any(body.get(name) for name in _MORE_MODELS):
        raise Refused(400, "model_not_granted", "the body names more models than one")
    streamed = body.get("stream") is True if endpoint.streamed is None else endpoint.streamed
    request = size - media_bytes + min(images * IMAGE_TOKENS, media_bytes) + HIDDEN_TOKENS
    searches = _searches(body) if Feature.WEB_SEARCH in features else 0
    counts = endpoint.counts_tokens
    return Asked(model, streamed, request, max_output, answers, features, counts, searches)


def _searches(body: JsonObject) -> int:
    """Return how many searches the provider may make, by what the body says of its tools."""
    uses = [positive(mapping(tool).get("max_uses")) for tool in items(body.get("tools"))]
    stated = [number for number in (*uses, positive(body.get("max_tool_calls"))) if number]
    return max(stated, default=UNSTATED_SEARCHES)


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return a value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def objects(value: Any, *, but: frozenset[str] = frozenset()) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in a value, except what the members named in `but` hold."""
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, dict):
            yield found
            pending.extend(member for name, member in found.items() if name not in but)
        elif isinstance(found, list):
            pending.extend(found)


def is_one_of(value: Any, *allowed: str | None) -> bool:
    """Return whether a value is one of some texts, or None where that is one of them."""
    return (value is None or isinstance(value, str)) and value in allowed


def positive(value: Any) -> int | None:
    """Return a value if it is an integer above 0."""
    return value if isinstance(value, int) and value is not True and value > 0 else None


def text_or_none(value: Any) -> str | None:
    """Return a name that a provider gave, cut to what is kept."""
    return value[:MAX_NAME] if isinstance(value, str) and value else None


def word_or_none(value: Any) -> str | None:
    """Return a short word, or a number of tokens, by which a request sets how it is answered."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**_MAX_WORD else None
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_WORD else None


def temperature(value: Any) -> float | None:
    """Return a temperature; None for what is none."""
    is_set = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_set and 0 <= value <= _MAX_TEMPERATURE else None


def asked_tiers(body: Mapping[str, Any], standard: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Return the tier, speed and place that a request asks for, standard ones left out."""
    words = {name: word_or_none(body.get(name)) for name in standard}
    return {
        name: word.casefold()
        for name, word in words.items()
        if word is not None and word.casefold() not in {"auto", *standard[name]}
    }
