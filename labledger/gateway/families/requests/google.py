"""Read requests to Google's Gemini API. Every member may be spelled in two ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labledger.gateway.families.family import Asked, CallRefused, Endpoint, Feature, items
from labledger.gateway.families.request_trace import Turns
from labledger.gateway.families.requests.bodies import (
    Members,
    Need,
    RequestFacts,
    UnknownKind,
    bounds,
    listed,
    media_tokens,
    members,
    parts,
    requested,
    unknown_members,
)
from labledger.gateway.families.requests.media import (
    GEMINI_IMAGES,
    HeldMedia,
    document,
    image,
    sound,
)
from labledger.records import JsonObject

_MEMBERS = frozenset(
    {
        *("model", "contents", "systeminstruction", "tools", "toolconfig", "safetysettings"),
        *("generationconfig", "cachedcontent", "labels", "servicetier", "store"),
        *("continuationtoken", "generatecontentrequest"),
    }
)
_TOOLS_OF_THE_AGENT = frozenset({"functiondeclarations", "computeruse"})
_TOOL_FEATURES = {
    "googlesearch": Feature.WEB_SEARCH,
    "googlesearchretrieval": Feature.WEB_SEARCH,
    "enterprisewebsearch": Feature.WEB_SEARCH,
    "googlemaps": Feature.WEB_SEARCH,
    "urlcontext": Feature.URL_INPUTS,
    "codeexecution": Feature.CODE_EXECUTION,
    "filesearch": Feature.FILES,
    "mcpservers": Feature.MCP,
}
_PARTS = frozenset(
    {
        *("text", "inlinedata", "filedata", "functioncall", "functionresponse", "thought"),
        *("thoughtsignature", "videometadata", "mediaresolution", "partmetadata"),
        *("executablecode", "codeexecutionresult", "toolcall", "toolresponse"),
        *("audiotranscription", "mediaprocessing", "speechmetadata", "documentmetadata"),
        *("spreadsheetmetadata", "audiometadata"),
    }
)
"""The members of a part."""
_CONTENT = frozenset({"role", "parts", "text"})
_HIDDEN = frozenset({"args", "response", "executablecode", "codeexecutionresult"})
"""Members with the arguments and results of tools."""
_OTHER_MODELS = ("routingconfig", "modelselectionconfig", "modelconfig")
_NO_TOKENS = frozenset(
    {"contents", "systeminstruction", "tools", "safetysettings", "labels", "servicetier", "model"}
)
_NO_TOKENS_OF_CONFIG = frozenset(
    {
        *("maxoutputtokens", "temperature", "topp", "topk", "candidatecount", "seed"),
        *("stopsequences", "frequencypenalty", "presencepenalty"),
    }
)
"""Members that do not change the tokens of a request, and members that are counted elsewhere."""


def read_request(endpoint: Endpoint, body: JsonObject, size: int) -> Asked:
    """Return the facts of a body. Raises `CallRefused`."""
    outer = members(body)
    inner = outer.get("generatecontentrequest") if endpoint.counts_tokens else None
    top = members(inner) if isinstance(inner, dict) else outer
    if not all(_is_named(endpoint.model, holder.get("model")) for holder in (outer, top)):
        message = "labledger: the body names another model than the path"
        raise CallRefused(400, "model_not_granted", message)
    config = members(top.get("generationconfig"))
    if not isinstance(top.get("generationconfig"), dict | None):
        raise CallRefused(400, "not_understood", "labledger: `generationConfig` is not an object")
    if any(config.get(name) is not None for name in _OTHER_MODELS):
        raise CallRefused(400, "model_not_granted", "labledger: the body lets another model answer")
    facts = RequestFacts(
        bounds=bounds(config, ("maxoutputtokens",), dynamic=("thinkingbudget",)),
        needs=tuple(_features(top, config)),
        media=tuple(_media(_content(top))),
        own_tools=sum(
            name != "functiondeclarations"
            for tool in listed(top.get("tools"))
            for name in members(tool)
        ),
        other_prices=_speaks(config),
        turns=_turns(top, config),
    )
    return requested(endpoint, body, size, facts)


def _is_named(model: str | None, named: Any) -> bool:
    """Return whether `named`, the body's model, is absent or is the model of the path."""
    return named is None or named in (model, f"models/{model}")


def _content(top: Mapping[str, Any]) -> list[Any]:
    return [top.get("contents"), top.get("systeminstruction")]


def _features(top: Members, config: Mapping[str, Any]) -> Iterator[Need]:
    tools = listed(top.get("tools"))
    if not all(isinstance(tool, dict) for tool in tools):
        yield UnknownKind("a tool that is not an object")
    named = {name: holder for holder in map(members, tools) for name in holder}
    for name in named.keys() - _TOOLS_OF_THE_AGENT:
        yield _TOOL_FEATURES.get(name) or UnknownKind(f"the tool `{named[name].spelled(name)}`")
    if any(top.get(name) for name in ("cachedcontent", "continuationtoken")):
        yield Feature.STORED
    if top.get("servicetier"):
        yield Feature.SERVICE_TIERS
    if "IMAGE" in _modalities(config) or config.get("imageconfig"):
        yield Feature.IMAGE_GENERATION
    yield from unknown_members(top, _MEMBERS)
    for content in [*listed(top.get("contents")), top.get("systeminstruction")]:
        yield from map(UnknownKind, _unknown(content))
    for part in parts(_content(top), _hidden):
        if part.members.get("filedata") is not None:
            yield Feature.URL_INPUTS


def _unknown(content: Any) -> Iterator[str]:
    """Yield the unknown members of content, which may hold anything."""
    named = members(content)
    for name in named.keys() - _CONTENT:
        yield f"the member `{named.spelled(name)}` of a content"
    for part in map(members, listed(named.get("parts"))):
        yield from (f"the part `{part.spelled(name)}`" for name in part.keys() - _PARTS)


def _modalities(config: Mapping[str, Any]) -> set[str]:
    return {str(kind).upper() for kind in listed(config.get("responsemodalities"))}


def _speaks(config: Mapping[str, Any]) -> bool:
    return "AUDIO" in _modalities(config) or config.get("speechconfig") is not None


def _hidden(_: Mapping[str, Any]) -> frozenset[str]:
    return _HIDDEN


def _media(content: Any) -> Iterator[HeldMedia]:
    for part in parts(content, _hidden):
        blob = members(part.members.get("inlinedata"))
        data, kind = blob.get("data"), str(blob.get("mimetype")).casefold()
        if not isinstance(data, str) or kind.startswith("text/"):
            continue
        if kind.startswith("image/"):
            yield image(data, GEMINI_IMAGES)
        elif kind.startswith(("audio/", "video/")):
            yield sound(data)
        else:
            yield document(data)


def _turns(top: Mapping[str, Any], config: Mapping[str, Any]) -> Turns:
    instruction = members(top.get("systeminstruction"))
    kept = {name: value for name, value in config.items() if name not in _NO_TOKENS_OF_CONFIG}
    setting = {name: value for name, value in top.items() if name not in _NO_TOKENS}
    return Turns(
        turns=listed(top.get("contents")),
        pieces=[*listed(top.get("tools")), *items(instruction.get("parts"))],
        setting={**setting, "generationconfig": kept},
        by_model=lambda turn: members(turn).get("role") == "model",
        more_tokens=lambda turn: media_tokens(tuple(_media(turn))),
    )
