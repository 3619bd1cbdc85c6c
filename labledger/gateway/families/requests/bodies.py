"""The common parts of requests to all APIs: members, counts, bounds, and the sum of tokens.

Members are read in any spelling, because some servers do so: `maxTokens` and `max_tokens` are one
member. An object with one member in two spellings is refused. So is a count that is not a JSON
integer, because servers read it differently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from labledger.gateway.families.family import (
    MAX_NAME,
    Asked,
    CallRefused,
    Endpoint,
    Feature,
    items,
)
from labledger.gateway.families.request_trace import Turns
from labledger.gateway.families.requests.media import STORED_ITEM_TOKENS, WINDOW, HeldMedia
from labledger.gateway.families.usage_numbers import MAX_TOKENS
from labledger.records import JsonObject, canonical_json

HIDDEN_TOKENS = 2_000
"""More tokens than a provider adds to a request, such as instructions about tools."""
TOOL_TOKENS = 1_500
"""More tokens than a provider adds for a tool that it describes itself."""
_MORE_MODELS = ("models", "fallbacks", "fallbackmodels", "modellist", "fallbackmodel")
"""Members that let a provider use other models instead."""
_SECOND_REQUESTS = (
    *("extrabody", "extraheaders", "extraquery", "apibase", "baseurl", "apikey"),
    *("customllmprovider", "userconfig", "litellmparams"),
)
"""Members that let a proxy change the request."""
_OUTPUT = (
    *("maxtokens", "maxcompletiontokens", "maxoutputtokens", "maxnewtokens", "npredict"),
    *("maxtokenstosample", "maxgeneratedtokens", "maxlength", "numpredict", "maxgentokens"),
    *("mintokens", "minlength", "minnewtokens", "minoutputtokens", "mincompletiontokens"),
    *("budgettokens", "thinkingbudget", "thinkingtokenbudget", "maxthinkingtokens"),
    *("maxreasoningtokens", "reasoningbudget"),
)
"""Members that limit the tokens of an answer, or of its thoughts, in any known server."""
_ANSWERS = (
    *("n", "bestof", "candidatecount", "numcompletions", "numreturnsequences", "numcandidates"),
    *("numgenerations", "numoutputs", "numsamples", "samplecount", "numbeams", "beamwidth"),
    *("beamsize", "nbest", "numresponses", "parallelsamples"),
)
"""Members with the number of answers to a request."""
_NESTED = (
    *("thinking", "thinkingconfig", "reasoning", "options", "parameters", "samplingparams"),
    *("generationconfig", "chattemplatekwargs", "outputconfig"),
)
"""Members whose own members may also limit an answer."""
_USES = ("maxuses", "maxtoolcalls")
"""Members that limit how often the provider uses its tools."""
UNSTATED_SEARCHES = 20
"""The searches that are reserved for a call if the request does not limit them."""
_MAX_SHOWN = 80
_MOST_SHOWN = 3
_OUTSIDE = frozenset(Feature) - {Feature.SERVICE_TIERS, Feature.IMAGE_GENERATION}
"""Features with which a model reads more than the request contains."""


@lru_cache(maxsize=4096)
def _spelling(name: str) -> str:
    # Some readers end a name at a null byte.
    return name.partition("\0")[0].casefold().replace("_", "").replace("-", "")


class Members(dict[str, Any]):
    """The members of an object, with all names in one spelling."""

    __slots__ = ("_source",)

    def __init__(self, by_spelling: Mapping[str, Any], source: JsonObject) -> None:
        super().__init__(by_spelling)
        self._source = source

    def spelled(self, name: str) -> str:
        """Return the name of a member as the request spells it, cut to the shown length."""
        spelled = next((original for original in self._source if _spelling(original) == name), name)
        return spelled[:_MAX_SHOWN]


_NO_MEMBERS = Members({}, {})


def members(value: Any) -> Members:
    """Return the members of an object, with all names in one spelling; empty for other values.

    Raises `CallRefused` if it has one member in two spellings.
    """
    if not isinstance(value, dict):
        return _NO_MEMBERS
    by_spelling = {_spelling(name): member for name, member in value.items()}
    if len(by_spelling) != len(value):
        raise CallRefused(400, "ambiguous", "labledger: an object has one member in two spellings")
    return Members(by_spelling, value)


_CONTENT = frozenset({"content", "output"})
"""Members that hold blocks. Some readers accept a single block as a list of one."""
Hidden = Callable[[Mapping[str, Any]], frozenset[str]]
"""Returns the members of an object that hold no content for the model."""


@dataclass(frozen=True, slots=True)
class ContentPart:
    """An object in the content of a request."""

    members: Members
    is_item: bool
    """Whether it is in the place of a message block, such as an item of an array."""

    @property
    def kind(self) -> Any:
        """Its `type`."""
        return self.members.get("type")


def parts(value: Any, hidden: Hidden) -> Iterator[ContentPart]:
    """Yield all objects in a value, except in hidden members. Raises `CallRefused`."""
    pending: list[tuple[Any, bool]] = [(value, False)]
    while pending:
        value, is_item = pending.pop()
        if isinstance(value, dict):
            part = members(value)
            yield ContentPart(part, is_item)
            left_out = hidden(part)
            pending += [
                (member, name in _CONTENT) for name, member in part.items() if name not in left_out
            ]
        elif isinstance(value, list):
            pending += [(item, True) for item in value]


def is_in(value: Any, allowed: Collection[str | None]) -> bool:
    """Return whether a value is one of `allowed`, which are texts or None."""
    return (value is None or isinstance(value, str)) and value in allowed


def is_among(value: Any, *allowed: str | None) -> bool:
    """Return whether a value is one of `allowed`, which are texts or None."""
    return is_in(value, allowed)


def count(holder: Members, name: str, least: int = 0) -> int | None:
    """Return a count; None if it is null or absent. Raises `CallRefused` for anything else."""
    value = holder.get(name)
    if value is None:
        return None
    if type(value) is int and least <= value <= MAX_TOKENS:
        return value
    spelled = holder.spelled(name)
    message = f"labledger: `{spelled}` is not a whole number from {least} to {MAX_TOKENS:,}"
    raise CallRefused(400, "not_understood", message)


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """The largest answers that a request allows."""

    max_output: int | None
    """The most tokens of one answer; None if the request does not limit them."""
    least_output: int = 0
    """A lower bound of the tokens, used if `max_output` is None."""
    extra_output: int = 0
    """Additional tokens that may be charged as output."""
    answers: int = 1


def bounds(
    body: Members, api_members: tuple[str, ...], *, dynamic: tuple[str, ...] = ()
) -> AnswerBounds:
    """Return the bounds of an answer. `api_members` are the API's own members for them.

    The largest number counts, because servers read different members. A bound of 0 does not
    count, because some servers ignore it. A member of `dynamic` may be -1, which lets the model
    choose. Raises `CallRefused`.
    """
    most, answers = 0, 1
    for holder in (body, *(members(body.get(name)) for name in _NESTED)):
        for name in _OUTPUT:
            value = holder.get(name)
            if not (name in dynamic and type(value) is int and value == -1):
                most = max(most, count(holder, name) or 0)
        for name in _ANSWERS:
            answers = max(answers, count(holder, name, 1) or 1)
    # Only the API's own members limit an answer. All others can only raise the limit.
    named = [body[name] for name in api_members if body.get(name) is not None]
    is_bound = bool(named) and all(named)
    return AnswerBounds(most if is_bound else None, 0 if is_bound else most, answers=answers)


@dataclass(frozen=True, slots=True)
class UnknownKind:
    """An unknown part of a request, which may use any feature of the provider."""

    what: str


Need = Feature | UnknownKind
"""A feature that must be granted, or an unknown part, which needs `other_tools`."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The facts that the module of an API reads in a request."""

    bounds: AnswerBounds
    needs: tuple[Need, ...]
    media: tuple[HeldMedia, ...]
    own_tools: int = 0
    """How many of its tools the provider itself describes."""
    repeated_tokens: int = 0
    """The most tokens that replace its references."""
    stored: tuple[str, ...] = ()
    """The items that the provider stored, which the request names without their content."""
    samples: int = 1
    """How often the provider may read the request until it has answered."""
    other_prices: bool = False
    """Whether it asks for something without a text token price, such as sound or a higher tier."""
    turns: Turns | None = None
    """None if this request does not show the tokens of the next one."""

    @property
    def features(self) -> frozenset[Feature]:
        """The features that must be granted."""
        return frozenset(
            Feature.OTHER_TOOLS if isinstance(need, UnknownKind) else need for need in self.needs
        )

    @property
    def unknown(self) -> tuple[str, ...]:
        """The first unknown parts, cut to the shown length."""
        names = {need.what[:_MAX_SHOWN] for need in self.needs if isinstance(need, UnknownKind)}
        return tuple(sorted(names)[:_MOST_SHOWN])


def requested(endpoint: Endpoint, body: JsonObject, size: int, read: RequestFacts) -> Asked:
    """Return the facts of a request with `size` bytes. Raises `CallRefused`.

    Refuses a request that names no model or several, or that hides a second request.
    """
    top = members(body)
    model = endpoint.model if endpoint.model is not None else body.get("model")
    if not isinstance(model, str) or not model or len(model) > MAX_NAME:
        raise CallRefused(400, "no_model", "labledger: the body names no model")
    if any(top.get(name) for name in _MORE_MODELS):
        raise CallRefused(400, "model_not_granted", "labledger: the body names more than one model")
    for name in _SECOND_REQUESTS:
        if top.get(name) is not None:
            message = f"labledger: `{top.spelled(name)}` would change the request"
            raise CallRefused(400, "ambiguous", message)
    streamed = top.get("stream") is True if endpoint.streamed is None else endpoint.streamed
    limits = read.bounds
    largest = max(limits.max_output or 0, limits.least_output) + limits.extra_output
    if largest * limits.answers > MAX_TOKENS:
        raise CallRefused(
            400, "not_understood", f"labledger: it asks for over {MAX_TOKENS:,} tokens"
        )
    has_sound = any(medium.is_sound for medium in read.media)
    features = read.features
    is_outside = bool(features & _OUTSIDE)
    overhead = HIDDEN_TOKENS + TOOL_TOKENS * read.own_tools + (WINDOW if is_outside else 0)
    stored = min(len(read.stored) * STORED_ITEM_TOKENS, WINDOW)
    in_body = size + read.repeated_tokens + stored + media_tokens(read.media)
    turns = None if is_outside or read.samples > 1 else read.turns
    if turns is not None and not (read.media or read.stored or read.repeated_tokens):
        turns = replace(turns, more_tokens=_no_more)
    return Asked(
        model=model,
        streamed=streamed,
        request_tokens=(in_body + overhead) * read.samples,
        max_output=limits.max_output,
        answers=limits.answers * read.samples,
        features=features,
        unknown=read.unknown,
        counts_tokens=endpoint.counts_tokens,
        searches=_searches(top) if Feature.WEB_SEARCH in features else 0,
        least_output=limits.least_output,
        extra_output=limits.extra_output,
        other_prices=has_sound or read.other_prices or Feature.IMAGE_GENERATION in features,
        text_bytes=size - sum(medium.size for medium in read.media),
        overhead_tokens=overhead,
        has_file=any(medium.tokens >= WINDOW for medium in read.media),
        stored=read.stored,
        stored_tokens=stored,
        turns=turns,
    )


def _no_more(_: Any) -> int:
    return 0


def _searches(top: Members) -> int:
    """Return how many searches the provider may make, by the limits in the body."""
    holders = [top, *map(members, listed(top.get("tools")))]
    stated = [count(holder, name) for holder in holders for name in _USES]
    return max((number for number in stated if number), default=UNSTATED_SEARCHES)


def media_tokens(media: tuple[HeldMedia, ...]) -> int:
    """Return by how many tokens media exceed their bytes."""
    return sum(medium.tokens - medium.size for medium in media)


def unknown_members(body: Members, known: frozenset[str]) -> Iterator[UnknownKind]:
    """Yield the unknown members of a body that may hold more than a number."""
    for name, value in body.items():
        if name in known or value is None or value is False or type(value) in {int, float}:
            continue
        yield UnknownKind(f"the member `{body.spelled(name)}`")


def bytes_of(value: Any) -> int:
    """Return how many bytes a value has in canonical JSON."""
    return len(canonical_json.dump_bytes(value))


def listed(value: Any) -> list[Any]:
    """Return the items of an array, or a single value; empty for null."""
    return items(value) if isinstance(value, list) else [] if value is None else [value]
