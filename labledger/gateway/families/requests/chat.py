"""Read requests to OpenAI's Chat Completions API, and to servers that speak it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from labledger.gateway.families.family import Asked, Endpoint, Feature, items
from labledger.gateway.families.request_trace import Turns
from labledger.gateway.families.requests.bodies import (
    AnswerBounds,
    ContentPart,
    Members,
    Need,
    RequestFacts,
    UnknownKind,
    bounds,
    bytes_of,
    is_among,
    is_in,
    listed,
    media_tokens,
    members,
    parts,
    requested,
    unknown_members,
)
from labledger.gateway.families.requests.media import OPENAI_IMAGES, HeldMedia, image, sound
from labledger.gateway.families.requests.responses import (
    STANDARD_TIERS,
    media_features,
    openai_media,
)
from labledger.records import JsonObject

_SEARCHES = (
    *("websearchoptions", "searchparameters", "plugins", "enablesearch", "websearch"),
    *("searchoptions", "forcedsearch"),
)
"""Members that ask this or a compatible provider for a search."""
_ELSEWHERE = {
    "datasources": Feature.FILES,
    "documents": Feature.OTHER_TOOLS,
    "connectors": Feature.OTHER_TOOLS,
    "agentid": Feature.STORED,
    "assistantid": Feature.STORED,
    "threadid": Feature.STORED,
    "conversationid": Feature.STORED,
    "previousresponseid": Feature.STORED,
    "promptid": Feature.STORED,
    "prompt": Feature.STORED,
    "deferred": Feature.STORED,
    "background": Feature.STORED,
    "mcpservers": Feature.MCP,
    "container": Feature.CODE_EXECUTION,
    "moderation": Feature.OTHER_TOOLS,
    "provider": Feature.SERVICE_TIERS,
    "preset": Feature.STORED,
    "imageconfig": Feature.IMAGE_GENERATION,
    "searchsettings": Feature.WEB_SEARCH,
    "sessionparams": Feature.STORED,
}
"""The features of members that ask a server for more than an answer."""
_MEMBERS = frozenset(
    {
        # OpenAI.
        *("model", "messages", "tools", "toolchoice", "functions", "functioncall", "stream"),
        *("streamoptions", "stop", "logitbias", "logprobs", "responseformat", "metadata", "user"),
        *("modalities", "audio", "prediction", "paralleltoolcalls", "reasoningeffort", "store"),
        *("servicetier", "verbosity", "safetyidentifier", "promptcachekey", "promptcacheoptions"),
        *("promptcacheretention", "clientmetadata"),
        # OpenRouter, and the providers behind it.
        *("reasoning", "includereasoning", "usage", "structuredoutputs", "cachecontrol", "trace"),
        *("sessionid", "thinking", "enablethinking", "thinkingbudget", "clearthinking"),
        *("preservethinking", "disablereasoning", "reasoningsplit", "partial", "dosample"),
        *("requestid", "userid", "toolstream", "safeprompt", "promptmode", "incrementaloutput"),
        *("resultformat", "citationoptions", "disabletoolvalidation", "rawoutput"),
        "vlhighresolutionimages",
        # vLLM, SGLang, llama.cpp, Ollama and LM Studio.
        *("stoptokenids", "badwords", "ignoreeos", "skipspecialtokens", "chattemplatekwargs"),
        *("chattemplateargs", "includestopstrinoutput", "spacesbetweenspecialtokens"),
        *("guidedjson", "guidedregex", "guidedchoice", "guidedgrammar", "guideddecodingbackend"),
        *("guidedwhitespacepattern", "structuraltag", "allowedtokenids", "usebeamsearch"),
        *("addgenerationprompt", "continuefinalmessage", "addspecialtokens", "cachesalt"),
        *("returntokenids", "returntokensastokenids", "regex", "ebnf", "separatereasoning"),
        *("streamreasoning", "nostoptrim", "cacheprompt", "samplers", "grammar", "jsonschema"),
        *("timingspertoken", "returnprogress", "reasoningformat", "parsetoolcalls"),
        *("drysequencebreakers", "thinkingforcedopen", "options", "keepalive", "format", "think"),
    }
)
"""Members that change only the answer, or only how it is sent."""
_PARTS = frozenset(
    {
        *(None, "text", "image_url", "input_audio", "file", "refusal", "video_url", "audio_url"),
        *("input_text", "output_text", "input_image", "input_file", "document_url", "image"),
        *("thinking", "redacted_thinking", "reasoning", "function", "custom", "url_citation"),
        *("video", "audio", "tool_use", "tool_result", "ephemeral", "json"),
    }
)
"""Types of items in messages that need no feature of the provider."""
_TEXT_TOOLS = (None, "function", "custom")
_NO_TOKENS = frozenset(
    {
        *("model", "messages", "tools", "stream", "streamoptions", "maxtokens", "metadata"),
        *("maxcompletiontokens", "temperature", "topp", "topk", "n", "bestof", "seed", "user"),
        *("stop", "frequencypenalty", "presencepenalty", "logitbias", "logprobs", "toplogprobs"),
        *("promptcachekey", "promptcacheretention", "safetyidentifier", "servicetier", "store"),
        "prediction",
    }
)
"""Members that do not change the tokens of a request, and members that are counted elsewhere."""
_HIDDEN = frozenset({"tools", "arguments"})
_HIDDEN_OF_USES = _HIDDEN | {"input"}
_SHORTENS = ("transforms", "truncation", "truncateprompttokens", "contextmanagement")
"""Members with which servers leave out a part of the conversation."""
_SHORTER = {"transforms": ([], ["middle-out"]), "truncation": ("auto", "disabled")}
"""Values of these members that need no feature."""
_KNOWN = _MEMBERS.union(_SEARCHES, _ELSEWHERE)


def read_request(endpoint: Endpoint, body: JsonObject, size: int) -> Asked:
    """Return the facts of a body. Raises `Refused`."""
    top = members(body)
    content = list(parts(top.get("messages"), _hidden))
    facts = RequestFacts(
        bounds=_bounds(top),
        needs=tuple(_features(top, content)),
        media=tuple(_media(content)),
        own_tools=sum(members(t).get("type") != "function" for t in listed(top.get("tools"))),
        other_prices=top.get("audio") is not None or "audio" in _modalities(top),
        turns=_turns(top),
    )
    return requested(endpoint, body, size, facts)


def _bounds(top: Members) -> AnswerBounds:
    limits = bounds(top, ("maxcompletiontokens", "maxtokens"))
    if top.get("prediction") is not None:
        # Predicted text that the answer does not contain is charged as output.
        limits = replace(limits, extra_output=bytes_of(top["prediction"]))
    thinks = top.get("enablethinking")
    thinks = thinks or members(top.get("chattemplatekwargs")).get("enablethinking")
    if thinks and limits.max_output is not None:
        # Some servers bound thoughts separately from the answer.
        limits = replace(limits, max_output=None, least_output=2 * limits.max_output)
    return limits


def _modalities(top: Mapping[str, Any]) -> set[str]:
    return {"text", *(str(kind).casefold() for kind in items(top.get("modalities")))}


def _features(top: Members, content: list[ContentPart]) -> Iterator[Need]:
    yield from _tool_features(top.get("tools"))
    choice = top.get("toolchoice")
    if isinstance(choice, dict):
        chosen = members(choice)
        if not is_among(chosen.get("type"), *_TEXT_TOOLS, "allowed_tools"):
            yield from _tool_features([choice])
        yield from _tool_features(members(chosen.get("allowedtools")).get("tools"))
    # An empty object asks for a search, too.
    if any(top.get(name) not in (None, False) for name in _SEARCHES):
        yield Feature.WEB_SEARCH
    for name, feature in _ELSEWHERE.items():
        if top.get(name) not in (None, False):
            yield feature
    shorter = {name for name, values in _SHORTER.items() if top.get(name) in values}
    yield from unknown_members(top, _KNOWN | shorter)
    if "image" in _modalities(top):
        yield Feature.IMAGE_GENERATION
    if not is_in(top.get("servicetier"), STANDARD_TIERS):
        yield Feature.SERVICE_TIERS
    for part in content:
        yield from _part_features(part)
        yield from media_features(part)


def _tool_features(tools: Any) -> Iterator[Need]:
    for tool in listed(tools):
        kind = members(tool).get("type") if isinstance(tool, dict) else "unknown"
        if not is_in(kind, _TEXT_TOOLS):
            searches = str(kind).startswith("web_search")
            yield Feature.WEB_SEARCH if searches else UnknownKind(f"the tool {kind}")
        yield from _tool_features(members(tool).get("tools"))


def _part_features(part: ContentPart) -> Iterator[Need]:
    yield from _tool_features(part.members.get("tools"))
    kind = part.kind
    if part.is_item and not is_in(kind, _PARTS) and not str(kind).startswith("reasoning."):
        yield UnknownKind(f"the part {kind}")
    if members(part.members.get("audio")).get("id"):
        yield Feature.STORED
    if any(held.startswith(("http:", "https:", "file:")) for held, _ in _bare(part)):
        yield Feature.URL_INPUTS


def _hidden(part: Mapping[str, Any]) -> frozenset[str]:
    return _HIDDEN_OF_USES if part.get("type") == "tool_use" else _HIDDEN


def _bare(part: ContentPart) -> Iterator[tuple[str, bool]]:
    """Yield members whose names some servers read as media, and whether each is an image."""
    for name in ("image", "images", "video", "audio"):
        for held in listed(part.members.get(name)):
            if isinstance(held, str):
                yield held, name.startswith("image")


def _media(content: Iterable[ContentPart]) -> Iterator[HeldMedia]:
    for part in content:
        yield from openai_media([part])
        for held, is_image in _bare(part):
            yield image(held, OPENAI_IMAGES) if is_image else sound(held)


def _turns(top: Mapping[str, Any]) -> Turns | None:
    if any(top.get(name) is not None for name in _SHORTENS):
        return None
    return Turns(
        turns=items(top.get("messages")),
        pieces=listed(top.get("tools")),
        setting={name: value for name, value in top.items() if name not in _NO_TOKENS},
        by_model=lambda turn: members(turn).get("role") == "assistant",
        more_tokens=lambda turn: media_tokens(tuple(_media(parts(turn, _hidden)))),
    )
