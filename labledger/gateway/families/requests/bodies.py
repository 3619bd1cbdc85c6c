"""What the requests of all APIs have in common: members, counts, bounds, and the sum of tokens.

Members are read in any spelling: `maxTokens`, `max_tokens` and `MAX_TOKENS` are one member, because
some servers read all three. An object with one member in two spellings is refused. A count that is
not a JSON integer is refused, too, because one server ignores it, and another one believes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from labledger.gateway.families.family import (
    MAX_NAME,
    Asked,
    Endpoint,
    Feature,
    Refused,
    items,
)
from labledger.gateway.families.request_trace import Turns
from labledger.gateway.families.requests.media import STORED_ITEM_TOKENS, WINDOW, HeldMedia
from labledger.gateway.families.usage_numbers import MAX_TOKENS
from labledger.records import JsonObject, canonical_json

HIDDEN_TOKENS = 2_000
"""More tokens than a provider adds to a request, such as its instructions on tools."""
TOOL_TOKENS = 1_500
"""More tokens than a provider adds for a tool with a description of its own."""
_MORE_MODELS = ("models", "fallbacks", "fallbackmodels", "modellist", "fallbackmodel")
"""Members that tell providers to ask other models instead."""
_SECOND_REQUESTS = (
    *("extrabody", "extraheaders", "extraquery", "apibase", "baseurl", "apikey"),
    *("customllmprovider", "userconfig", "litellmparams"),
)
"""Members that tell a proxy to change what it sends."""
_OUTPUT = (
    *("maxtokens", "maxcompletiontokens", "maxoutputtokens", "maxnewtokens", "npredict"),
    *("maxtokenstosample", "maxgeneratedtokens", "maxlength", "numpredict", "maxgentokens"),
    *("mintokens", "minlength", "minnewtokens", "minoutputtokens", "mincompletiontokens"),
    *("budgettokens", "thinkingbudget", "thinkingtokenbudget", "maxthinkingtokens"),
    *("maxreasoningtokens", "reasoningbudget"),
)
"""Members that bound the tokens of an answer, or of its thoughts, in any known server."""
_ANSWERS = (
    *("n", "bestof", "candidatecount", "numcompletions", "numreturnsequences", "numcandidates"),
    *("numgenerations", "numoutputs", "numsamples", "samplecount", "numbeams", "beamwidth"),
    *("beamsize", "nbest", "numresponses", "parallelsamples"),
)
"""Members with the number of answers that are made at once."""
_NESTED = (
    *("thinking", "thinkingconfig", "reasoning", "options", "parameters", "samplingparams"),
    *("generationconfig", "chattemplatekwargs", "outputconfig"),
)
"""Members whose members may bound an answer, too."""
_USES = ("maxuses", "maxtoolcalls")
"""Members that bound how often the provider uses its tools."""
UNSTATED_SEARCHES = 20
"""How many searches of one call are reserved where the request does not limit them."""
_MAX_SHOWN = 80
_MOST_SHOWN = 3
_OUTSIDE = frozenset(Feature) - {Feature.SERVICE_TIERS, Feature.IMAGE_GENERATION}
"""Features that let a model read more than the request holds."""


@lru_cache(maxsize=4096)
def _spelling(name: str) -> str:
    # Some readers end a name at a zero.
    return name.partition("\0")[0].casefold().replace("_", "").replace("-", "")


class Members(dict[str, Any]):
    """The members of an object by names in one spelling."""

    __slots__ = ("_source",)

    def __init__(self, found: Mapping[str, Any], source: JsonObject) -> None:
        super().__init__(found)
        self._source = source

    def spelled(self, name: str) -> str:
        """Return the name of a member as the request spells it, cut to the shown length."""
        spelled = next((each for each in self._source if _spelling(each) == name), name)
        return spelled[:_MAX_SHOWN]


_NO_MEMBERS = Members({}, {})


def members(value: Any) -> Members:
    """Return the members of an object by names in one spelling; empty if it is not an object.

    Raises `Refused` if it has one member in two spellings.
    """
    if not isinstance(value, dict):
        return _NO_MEMBERS
    found = {_spelling(name): member for name, member in value.items()}
    if len(found) != len(value):
        raise Refused(400, "ambiguous", "labledger: an object has one member in two spellings")
    return Members(found, value)


_CONTENT = frozenset({"content", "output"})
"""Members that hold blocks. Some readers accept a single block as a list of one."""
Hidden = Callable[[Mapping[str, Any]], frozenset[str]]
"""Returns the members of an object that hold no content, whatever they look like."""


@dataclass(frozen=True, slots=True)
class ContentPart:
    """An object in the content of a request."""

    members: Members
    is_item: bool
    """Whether it stands where the blocks of messages do, as the items of arrays."""

    @property
    def kind(self) -> Any:
        """Its `type`."""
        return self.members.get("type")


def parts(value: Any, hidden: Hidden) -> Iterator[ContentPart]:
    """Yield all objects in a value, except in hidden members. Raises `Refused`."""
    pending: list[tuple[Any, bool]] = [(value, False)]
    while pending:
        found, is_item = pending.pop()
        if isinstance(found, dict):
            part = members(found)
            yield ContentPart(part, is_item)
            left_out = hidden(part)
            pending += [
                (member, name in _CONTENT) for name, member in part.items() if name not in left_out
            ]
        elif isinstance(found, list):
            pending += [(item, True) for item in found]


def is_in(value: Any, allowed: Collection[str | None]) -> bool:
    """Return whether a value is one of some texts, or None if None is among them."""
    return (value is None or isinstance(value, str)) and value in allowed


def is_among(value: Any, *allowed: str | None) -> bool:
    """Return whether a value is one of a few texts, or None if None is among them."""
    return is_in(value, allowed)


def count(holder: Members, name: str, least: int = 0) -> int | None:
    """Return a count; None if it is null or absent. Raises `Refused` for anything else."""
    value = holder.get(name)
    if value is None:
        return None
    if type(value) is int and least <= value <= MAX_TOKENS:
        return value
    spelled = holder.spelled(name)
    message = f"labledger: `{spelled}` is not a whole number from {least} to {MAX_TOKENS:,}"
    raise Refused(400, "not_understood", message)


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """The largest answers that a request allows."""

    max_output: int | None
    """The most tokens of one answer; None if the request does not say."""
    least_output: int = 0
    """A lower bound of the tokens, whatever is assumed if the request does not say."""
    extra_output: int = 0
    """Additional tokens that may be charged as output."""
    answers: int = 1


def bounds(body: Members, own: tuple[str, ...], *, dynamic: tuple[str, ...] = ()) -> AnswerBounds:
    """Return the bounds of an answer. `own` names the members by which the API itself bounds it.

    The largest number counts, because servers differ in which one they read. A bound of 0 is no
    bound, because some servers ignore it. A member of `dynamic` may be -1, which lets the model
    choose. Raises `Refused`.
    """
    most, answers = 0, 1
    for holder in (body, *(members(body.get(name)) for name in _NESTED)):
        for name in _OUTPUT:
            value = holder.get(name)
            if not (name in dynamic and type(value) is int and value == -1):
                most = max(most, count(holder, name) or 0)
        for name in _ANSWERS:
            answers = max(answers, count(holder, name, 1) or 1)
    # Only the API's own members bound an answer; all others can but raise the bound.
    named = [body[name] for name in own if body.get(name) is not None]
    is_bound = bool(named) and all(named)
    return AnswerBounds(most if is_bound else None, 0 if is_bound else most, answers=answers)


@dataclass(frozen=True, slots=True)
class UnknownKind:
    """An unknown part of a request, which may let the provider do anything."""

    what: str


Need = Feature | UnknownKind
"""The feature that must be granted."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The facts that an API's module read in a request."""

    bounds: AnswerBounds
    needs: tuple[Need, ...]
    media: tuple[HeldMedia, ...]
    own_tools: int = 0
    """How many tools it names that the provider describes."""
    repeated_tokens: int = 0
    """The most tokens that its short references stand for."""
    stored: tuple[str, ...] = ()
    """The items that the provider stored, which the request names without their content."""
    samples: int = 1
    """How often the provider may read the request before it has answered."""
    other_prices: bool = False
    """Whether it asks for something without a text token price, such as sound or a higher tier."""
    turns: Turns | None = None
    """None if this request does not show the tokens of the next one."""

    @property
    def features(self) -> frozenset[Feature]:
        """The features to be granted."""
        return frozenset(
            Feature.OTHER_TOOLS if isinstance(need, UnknownKind) else need for need in self.needs
        )

    @property
    def unknown(self) -> tuple[str, ...]:
        """The first unknown parts, cut to the shown length."""
        found = {need.what[:_MAX_SHOWN] for need in self.needs if isinstance(need, UnknownKind)}
        return tuple(sorted(found)[:_MOST_SHOWN])


def requested(endpoint: Endpoint, body: JsonObject, size: int, read: RequestFacts) -> Asked:
    """Return what a request with this many bytes asks for. Raises `Refused`.

    Refuses a request that names no model or several, or that hides a second request.
    """
    top = members(body)
    model = endpoint.model if endpoint.model is not None else body.get("model")
    if not isinstance(model, str) or not model or len(model) > MAX_NAME:
        raise Refused(400, "no_model", "labledger: the body names no model")
    if any(top.get(name) for name in _MORE_MODELS):
        raise Refused(400, "model_not_granted", "labledger: the body names more than one model")
    for name in _SECOND_REQUESTS:
        if top.get(name) is not None:
            message = f"labledger: `{top.spelled(name)}` would change the request"
            raise Refused(400, "ambiguous", message)
    streamed = top.get("stream") is True if endpoint.streamed is None else endpoint.streamed
    limits = read.bounds
    largest = max(limits.max_output or 0, limits.least_output) + limits.extra_output
    if largest * limits.answers > MAX_TOKENS:
        raise Refused(400, "not_understood", f"labledger: it asks for over {MAX_TOKENS:,} tokens")
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
    """Return how many searches the provider may make, by what the body says of its tools."""
    holders = [top, *map(members, listed(top.get("tools")))]
    stated = [count(each, name) for each in holders for name in _USES]
    return max((number for number in stated if number), default=UNSTATED_SEARCHES)


def media_tokens(media: tuple[HeldMedia, ...]) -> int:
    """Return how many tokens more than their bytes media count."""
    return sum(medium.tokens - medium.size for medium in media)


def unknown_members(body: Members, known: frozenset[str]) -> Iterator[UnknownKind]:
    """Yield the unknown members of a body that may hold more than a number."""
    for name, value in body.items():
        if name in known or value is None or value is False or type(value) in {int, float}:
            continue
        yield UnknownKind(f"the member `{body.spelled(name)}`")


def bytes_of(value: Any) -> int:
    """Return how many bytes a value has at least."""
    return len(canonical_json.dump_bytes(value))


def listed(value: Any) -> list[Any]:
    """Return the items of an array, or a single value; empty for null."""
    return items(value) if isinstance(value, list) else [] if value is None else [value]
