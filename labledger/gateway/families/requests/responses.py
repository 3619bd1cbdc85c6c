"""Read requests to OpenAI's Responses API.

Tools may be in `tools`, in items of the input that add tools or hold the results of a search for
tools, and in namespaces of either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from labledger.gateway.families.family import MAX_NAME, Asked, Endpoint, Feature, items
from labledger.gateway.families.request_trace import Turns
from labledger.gateway.families.requests.bodies import (
    ContentPart,
    Members,
    Need,
    RequestFacts,
    UnknownKind,
    bounds,
    is_among,
    is_in,
    listed,
    media_tokens,
    members,
    parts,
    requested,
    unknown_members,
)
from labledger.gateway.families.requests.media import (
    OPENAI_IMAGES,
    STORED_ITEM_TOKENS,
    WINDOW,
    HeldMedia,
    document,
    image,
    sound,
)
from labledger.records import JsonObject

_MEMBERS = frozenset(
    {
        *("model", "input", "instructions", "tools", "toolchoice", "stream", "maxoutputtokens"),
        *("metadata", "clientmetadata", "temperature", "topp", "toplogprobs", "maxtoolcalls"),
        *("reasoning", "text", "store", "include", "paralleltoolcalls", "user", "truncation"),
        *("promptcachekey", "promptcacheoptions", "promptcacheretention", "safetyidentifier"),
        *("servicetier", "streamoptions", "image", "accessprograms", "stop", "chattemplatekwargs"),
        *("background", "conversation", "previousresponseid", "prompt", "contextmanagement"),
        *("generate", "reasoningeffort", "responseformat", "skipspecialtokens", "guidedjson"),
    }
)
_TOOLS_OF_THE_AGENT = frozenset(
    {
        *("function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview"),
        *("namespace", "tool_search"),
    }
)
_DESCRIBED = ("function", "custom", "namespace")
"""Types of tools that the request itself describes."""
_TOOL_FEATURES = {
    "web_search": Feature.WEB_SEARCH,
    "web_search_preview": Feature.WEB_SEARCH,
    "code_interpreter": Feature.CODE_EXECUTION,
    "file_search": Feature.FILES,
    "image_generation": Feature.IMAGE_GENERATION,
    "mcp": Feature.MCP,
}
_ITEMS = frozenset(
    {
        *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call"),
        *("custom_tool_call_output", "local_shell_call", "local_shell_call_output"),
        *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
        *("computer_call", "computer_call_output", "tool_search_call", "tool_search_output"),
        *("additional_tools", "compaction", "compaction_summary", "compaction_trigger"),
        *("agent_message", "configuration_update"),
        # Parts of messages, outputs and reasoning.
        *("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"),
        *("input_image", "input_file", "input_audio", "encrypted_content", "computer_screenshot"),
        *("url_citation", "file_citation", "container_file_citation", "file_path"),
        # Results of the provider's tools.
        *("url", "logs", "image", "exit", "timeout"),
        # Actions on a screen.
        *("click", "double_click", "drag", "keypress", "move", "screenshot", "scroll", "type"),
        "wait",
    }
)
"""Types of items, and of parts in them, that need no feature of the provider."""
_ITEM_FEATURES = {
    "item_reference": Feature.STORED,
    "web_search_call": Feature.WEB_SEARCH,
    "file_search_call": Feature.FILES,
    "code_interpreter_call": Feature.CODE_EXECUTION,
    "image_generation_call": Feature.IMAGE_GENERATION,
    "mcp_list_tools": Feature.MCP,
    "mcp_approval_request": Feature.MCP,
    "mcp_approval_response": Feature.MCP,
    "mcp_call": Feature.MCP,
    "program": Feature.CODE_EXECUTION,
    "program_output": Feature.CODE_EXECUTION,
}
_TOOL_CHOICES = frozenset(
    {"function", "custom", "allowed_tools", "shell", "apply_patch", "local_shell", "tool_search"}
)
_HELD_IN = {
    "reasoning": "encryptedcontent",
    "compaction": "encryptedcontent",
    "compaction_summary": "encryptedcontent",
    "message": "content",
    "function_call": "arguments",
    "custom_tool_call": "input",
}
"""The member with the content of an item. Without it, the item's `id` names stored content."""
_NAMES_ALONE = frozenset({"id", "status", "summary"})
STANDARD_TIERS = (None, "auto", "default")
_HIDDEN = frozenset({"tools"})
_HIDDEN_OF_CALLS = _HIDDEN | {"arguments"}
_BY_MODEL = frozenset(
    {
        *("reasoning", "function_call", "custom_tool_call", "local_shell_call", "shell_call"),
        *("apply_patch_call", "computer_call", "tool_search_call"),
    }
)
_NO_TOKENS = frozenset(
    {
        *("model", "input", "instructions", "tools", "stream", "maxoutputtokens", "metadata"),
        *("clientmetadata", "temperature", "topp", "toplogprobs", "promptcachekey", "user"),
        *("promptcacheoptions", "promptcacheretention", "safetyidentifier", "servicetier"),
        *("streamoptions", "store", "include", "maxtoolcalls"),
    }
)
"""Members that do not change the tokens of a request, and members that are counted elsewhere."""


def read_request(endpoint: Endpoint, body: JsonObject, size: int) -> Asked:
    """Return the facts of a body. Raises `Refused`."""
    top = members(body)
    content = listed(top.get("input"))
    content_parts = list(parts([*content, *listed(top.get("instructions"))], _hidden))
    tools = [*_tools(top.get("tools")), *_tools_in(content_parts)]
    searches = any(_searches(tool) for tool in tools)
    facts = RequestFacts(
        bounds=bounds(top, ("maxoutputtokens",)),
        needs=tuple(_features(top, tools, content_parts)),
        media=tuple(openai_media(content_parts)),
        own_tools=sum(not is_in(t.get("type"), _DESCRIBED) for t in tools),
        repeated_tokens=WINDOW if searches else 0,
        stored=tuple(filter(None, map(_stored, content))),
        samples=2 if _compacts(top, content) else 1,
        turns=None if searches else _turns(top),
    )
    return requested(endpoint, body, size, facts)


def _features(
    top: Members, tools: list[Mapping[str, Any]], content: list[ContentPart]
) -> Iterator[Need]:
    for tool in tools:
        yield from _tool_features(tool)
    choice = top.get("toolchoice")
    if isinstance(choice, dict):
        yield from _choice_features(members(choice))
    if any(top.get(name) for name in ("previousresponseid", "conversation", "background")):
        yield Feature.STORED
    if top.get("prompt") is not None:
        yield Feature.STORED
    if not is_in(top.get("servicetier"), STANDARD_TIERS):
        yield Feature.SERVICE_TIERS
    mode = members(top.get("reasoning")).get("mode")
    if not is_among(mode, None, "standard"):
        yield UnknownKind(f"the mode of reasoning {mode}")
    yield from unknown_members(top, _MEMBERS)
    for part in content:
        yield from _item_features(part)
        yield from media_features(part)


def _choice_features(choice: Mapping[str, Any]) -> Iterator[Need]:
    if not is_in(choice.get("type"), _TOOL_CHOICES):
        yield from _tool_features(choice)
    for tool in items(choice.get("tools")):
        yield from _tool_features(members(tool))


def _tools(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield tools and the tools that they group."""
    for tool in map(members, listed(value)):
        yield tool
        # Everything that a tool groups is itself a tool.
        yield from _tools(tool.get("tools"))


def _tools_in(content: Iterable[ContentPart]) -> Iterator[Mapping[str, Any]]:
    """Yield the tools that items of the input name, wherever they are."""
    for part in content:
        if part.kind == "mcp_list_tools":
            continue  # These belong to a server, which is itself a feature.
        yield from _tools(part.members.get("tools"))


def _tool_features(tool: Mapping[str, Any]) -> Iterator[Need]:
    kind = tool.get("type")
    if kind == "shell":
        # Without an environment, or with the agent's, the agent runs the commands.
        if not is_among(members(tool.get("environment")).get("type"), None, "local"):
            yield Feature.CODE_EXECUTION
    elif not isinstance(kind, str) or kind not in _TOOLS_OF_THE_AGENT:
        # Versions of a tool end with a date.
        name = "_".join(part for part in str(kind).split("_") if not part.isdigit())
        yield _TOOL_FEATURES.get(name) or UnknownKind(f"the tool {kind}")


def _searches(tool: Mapping[str, Any]) -> bool:
    """Return whether the provider searches among the request's tools, and rereads the request."""
    return tool.get("type") == "tool_search" and tool.get("execution") != "client"


def _item_features(part: ContentPart) -> Iterator[Need]:
    kind = part.kind
    if kind is None:
        # An item with only a name is a reference, even with `"type": null`.
        named = {name for name, value in part.members.items() if value is not None}
        if part.is_item and "id" in named and named <= _NAMES_ALONE:
            yield Feature.STORED
    elif isinstance(kind, str) and kind in _ITEM_FEATURES:
        yield _ITEM_FEATURES[kind]
    elif part.is_item and not is_in(kind, _ITEMS):
        yield _TOOL_FEATURES.get(str(kind)) or UnknownKind(f"the item {kind}")
    environment = members(part.members.get("environment")).get("type")
    if kind == "shell_call" and not is_among(environment, None, "local"):
        yield Feature.CODE_EXECUTION


def _stored(item: Any) -> str | None:
    """Return the `id` of an item that names stored content; None if it has its content."""
    held = members(item)
    name, kind = held.get("id"), held.get("type", "message" if "role" in held else None)
    if not (name and isinstance(kind, str) and kind in _HELD_IN):
        return None
    content = held.get(_HELD_IN[kind])
    is_held = content is not None
    if _HELD_IN[kind] == "encryptedcontent":
        is_held = isinstance(content, str) and bool(content.strip())
    return None if is_held else str(name)[:MAX_NAME]


def _more_tokens(turn: Any) -> int:
    stored = STORED_ITEM_TOKENS if _stored(turn) is not None else 0
    return stored + media_tokens(tuple(openai_media(parts(turn, _hidden))))


def _hidden(part: Mapping[str, Any]) -> frozenset[str]:
    """Return the members that hold no content: arguments of tools, and tools themselves."""
    called = is_among(part.get("type"), "tool_search_call", "function_call", "custom_tool_call")
    return _HIDDEN_OF_CALLS if called else _HIDDEN


def media_features(part: ContentPart) -> Iterator[Need]:
    """Yield the features that an image or file of OpenAI's messages needs."""
    for name in _ADDRESSES & part.members.keys():
        url = _address(part.members[name])
        # An address of an unknown form may name something outside the request.
        if not _is_data(url) if url is not None else part.members[name]:
            yield Feature.URL_INPUTS
    if part.members.get("fileid") or members(part.members.get("file")).get("fileid"):
        yield Feature.FILES


def openai_media(content: Iterable[ContentPart]) -> Iterator[HeldMedia]:
    """Yield the images, files and recordings within OpenAI's messages."""
    for part in content:
        for name in _MEDIA.keys() & part.members.keys():
            data = _address(part.members[name])
            if data is not None and (name not in _ADDRESSES or _is_data(data)):
                yield _MEDIA[name](data)


def _is_data(address: str) -> bool:
    return address[:5].lower() == "data:"


def _address(value: Any) -> str | None:
    """Return an address or data, either plain or in an object."""
    if isinstance(value, dict):
        nested = members(value)
        value = nested.get("url", nested.get("data"))
    return value if isinstance(value, str) else None


_ADDRESSES = frozenset({"imageurl", "fileurl", "documenturl", "videourl", "audiourl"})
_MEDIA = {
    "imageurl": lambda data: image(data, OPENAI_IMAGES),
    "filedata": document,
    "fileurl": document,
    "documenturl": document,
    "videourl": sound,
    "audiourl": sound,
    "inputaudio": sound,
}
"""The readers of members with media."""


def _compacts(top: Mapping[str, Any], content: list[Any]) -> bool:
    """Return whether the provider may read the request twice, because it shortens it first."""
    triggers = any(members(item).get("type") == "compaction_trigger" for item in content)
    return triggers or bool(top.get("contextmanagement"))


def _turns(top: Mapping[str, Any]) -> Turns | None:
    if not is_among(top.get("truncation"), None, "disabled"):
        return None
    return Turns(
        turns=listed(top.get("input")),
        pieces=[*listed(top.get("tools")), *listed(top.get("instructions"))],
        setting={name: value for name, value in top.items() if name not in _NO_TOKENS},
        by_model=_is_by_model,
        more_tokens=_more_tokens,
        stored=_stored,
    )


def _is_by_model(item: Any) -> bool:
    item_members = members(item)
    return item_members.get("role") == "assistant" or is_in(item_members.get("type"), _BY_MODEL)
