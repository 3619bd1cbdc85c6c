"""Read requests to Anthropic's Messages API.

Tools may be in `tools`, in blocks of messages that add a tool, and in the result of a compaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from labledger.gateway.families.family import Asked, Endpoint, Feature, items
from labledger.gateway.families.request_trace import Turns
from labledger.gateway.families.requests.bodies import (
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
from labledger.gateway.families.requests.media import (
    ANTHROPIC_IMAGES,
    WINDOW,
    HeldMedia,
    document,
    image,
)
from labledger.records import JsonObject

_MEMBERS = frozenset(
    {
        *("model", "messages", "maxtokens", "system", "tools", "toolchoice", "stream", "metadata"),
        *("stopsequences", "temperature", "topp", "topk", "thinking", "outputconfig", "betas"),
        *("outputformat", "cachecontrol", "contextmanagement", "compaction", "anthropicbeta"),
        *("anthropicversion", "servicetier", "speed", "inferencegeo", "container", "mcpservers"),
        *("thread", "diagnostics", "fallbacks", "fallbackcredittoken", "userprofileid"),
        *("workspaceid", "billingpolicy", "reasoningeffort", "chattemplatekwargs"),
    }
)
_TOOLS_OF_THE_AGENT = re.compile(r"custom|(bash|text_editor|computer|memory)(_\d{8})?")
"""Types of tools that the agent runs."""
_TOOL_SEARCH = re.compile(r"tool_search_tool_(bm25|regex)(_\d{8})?")
"""Types of tools with which the provider searches among the request's own tools."""
_TOOL_FEATURES = (
    (re.compile(r"web_search_\d{8}"), Feature.WEB_SEARCH),
    (re.compile(r"web_fetch_\d{8}"), Feature.URL_INPUTS),
    (re.compile(r"code_execution_\d{8}"), Feature.CODE_EXECUTION),
    (re.compile(r"mcp_toolset"), Feature.MCP),
)
_BLOCKS = frozenset(
    {
        *(None, "text", "image", "document", "search_result", "tool_use", "tool_result"),
        *("thinking", "redacted_thinking", "compaction", "tool_reference", "fallback"),
        *("tool_addition", "tool_removal", "server_tool_use", "tool_search_tool_result"),
        *("tool_search_tool_search_result", "tool_search_tool_result_error"),
        *("char_location", "page_location", "content_block_location", "ephemeral"),
        *("search_result_location", "web_search_result_location", "web_search_result"),
        *("web_search_tool_result_error", "web_fetch_result", "web_fetch_tool_result_error"),
        *("code_execution_result", "encrypted_code_execution_result", "code_execution_output"),
        *("code_execution_tool_result_error", "bash_code_execution_result"),
        *("bash_code_execution_output", "bash_code_execution_tool_result_error"),
        *("text_editor_code_execution_view_result", "text_editor_code_execution_create_result"),
        *("text_editor_code_execution_str_replace_result",),
        *("text_editor_code_execution_tool_result_error",),
    }
)
"""Types of blocks, and of items in them, that need no feature of the provider."""
_BLOCK_FEATURES = {
    "web_search_tool_result": Feature.WEB_SEARCH,
    "web_fetch_tool_result": Feature.URL_INPUTS,
    "code_execution_tool_result": Feature.CODE_EXECUTION,
    "bash_code_execution_tool_result": Feature.CODE_EXECUTION,
    "text_editor_code_execution_tool_result": Feature.CODE_EXECUTION,
    "mcp_tool_use": Feature.MCP,
    "mcp_tool_result": Feature.MCP,
    "mcp_tool_listing": Feature.MCP,
    "mcp_tool_reference": Feature.MCP,
    "mcp_toolset_reference": Feature.MCP,
    "container_upload": Feature.FILES,
}
_SERVER_TOOLS = {
    "web_search": Feature.WEB_SEARCH,
    "web_fetch": Feature.URL_INPUTS,
    "code_execution": Feature.CODE_EXECUTION,
    "bash_code_execution": Feature.CODE_EXECUTION,
    "text_editor_code_execution": Feature.CODE_EXECUTION,
}
"""The features of tools that the provider ran, by the tools' names."""
_NAMES = (*("tool_reference", "tool_definition", "mcp_tool_reference", "mcp_toolset_reference"),)
"""Types of objects that name or hold a tool, but are not tools."""
_USES = ("tool_use", "server_tool_use", "mcp_tool_use")
_HIDDEN = frozenset({"inputschema", "tools"})
_HIDDEN_OF_USES = _HIDDEN | {"input"}
_TOOL_CHOICES = (None, "auto", "any", "tool", "none")
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
"""The only context management that does not change the length of a request."""
_NO_TOKENS = frozenset(
    {
        *("model", "messages", "maxtokens", "stream", "metadata", "stopsequences", "temperature"),
        *("topp", "topk", "tools", "system", "cachecontrol", "servicetier", "diagnostics"),
    }
)
"""Members that do not change the tokens of a request, and members that are counted elsewhere."""


def read_request(endpoint: Endpoint, body: JsonObject, size: int) -> Asked:
    """Return the facts of a body. Raises `Refused`."""
    top = members(body)
    content = [*listed(top.get("system")), *listed(top.get("messages"))]
    content_parts = list(parts(content, _hidden))
    tools = list(_tools(top.get("tools")))
    references = _references(content_parts)
    largest = _largest(tools, content_parts) if references else 0
    # With such tools, the provider reads the request again for each search.
    searches = any(_TOOL_SEARCH.fullmatch(str(tool.get("type"))) for tool in tools)
    facts = RequestFacts(
        bounds=bounds(top, ("maxtokens",)),
        needs=tuple(_features(top, tools, content_parts)),
        media=tuple(_media(content_parts)),
        own_tools=sum(not is_among(tool.get("type"), None, "custom") for tool in tools),
        repeated_tokens=references * largest + (WINDOW if searches else 0),
        samples=2 if _compacts(top) else 1,
        turns=None if searches else _turns(top, tools, largest),
    )
    return requested(endpoint, body, size, facts)


def _tools(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield tools and the tools that they group. Anything but an object has an unknown type."""
    for tool in listed(value):
        yield members(tool) if isinstance(tool, dict) else {"type": "unknown"}
        yield from _tools(members(tool).get("tools"))


def _features(
    top: Members, tools: list[Mapping[str, Any]], content: list[ContentPart]
) -> Iterator[Need]:
    for tool in tools:
        yield from _tool_features(tool.get("type"))
    choice = members(top.get("toolchoice")).get("type")
    if not is_in(choice, _TOOL_CHOICES):
        yield UnknownKind(f"the choice of tools {choice}")
    if top.get("mcpservers"):
        yield Feature.MCP
    if top.get("container"):
        yield Feature.CODE_EXECUTION
    if top.get("thread"):
        yield Feature.STORED
    if _has_other_prices(top):
        yield Feature.SERVICE_TIERS
    yield from unknown_members(top, _MEMBERS)
    for part in content:
        yield from _part_features(part)


def _has_other_prices(top: Mapping[str, Any]) -> bool:
    return (
        not is_among(top.get("servicetier"), None, "auto", "standard_only")
        or not is_among(top.get("speed"), None, "standard")
        or bool(top.get("inferencegeo"))
        or bool(top.get("billingpolicy"))
    )


def _tool_features(kind: Any) -> Iterator[Need]:
    if kind is None or (isinstance(kind, str) and _TOOLS_OF_THE_AGENT.fullmatch(kind)):
        return
    if isinstance(kind, str) and _TOOL_SEARCH.fullmatch(kind):
        return
    for pattern, feature in _TOOL_FEATURES:
        if isinstance(kind, str) and pattern.fullmatch(kind):
            yield feature
            return
    yield UnknownKind(f"the tool {kind}")


def _part_features(part: ContentPart) -> Iterator[Need]:
    kind = part.kind
    if part.is_item and not is_in(kind, _BLOCKS):
        yield _BLOCK_FEATURES.get(str(kind)) or UnknownKind(f"the block {kind}")
    elif isinstance(kind, str) and kind in _BLOCK_FEATURES:
        yield _BLOCK_FEATURES[kind]
    for name in ("definition", "tool"):
        # A reference names a tool that is declared elsewhere. A definition holds one.
        held = members(part.members.get(name))
        if held and not is_in(held.get("type"), _NAMES):
            yield from _tool_features(held.get("type"))
    for tool in _tools(part.members.get("tools")):
        yield from _tool_features(tool.get("type"))
    name = str(part.members.get("name"))
    if kind == "server_tool_use" and not name.startswith("tool_search"):
        yield _SERVER_TOOLS.get(name) or UnknownKind(f"the use of {name}")
    source = members(part.members.get("source"))
    if source.get("type") == "url":
        yield Feature.URL_INPUTS
    elif source.get("type") == "file":
        yield Feature.FILES
    elif source and not is_among(source.get("type"), "base64", "text", "content"):
        yield UnknownKind(f"the source {source.get('type')}")


def _hidden(part: Mapping[str, Any]) -> frozenset[str]:
    """Return the members that hold no content: arguments and schemas of tools."""
    return _HIDDEN_OF_USES if is_in(part.get("type"), _USES) else _HIDDEN


def _media(content: Iterable[ContentPart]) -> Iterator[HeldMedia]:
    for part in content:
        source = part.members.get("source")
        if isinstance(source, dict):
            named = members(source)
            data = named.get("data")
            if isinstance(data, str) and named.get("type") == "base64":
                yield image(data, ANTHROPIC_IMAGES) if part.kind == "image" else document(data)


def _references(content: Iterable[ContentPart]) -> int:
    """Return how many references the provider replaces by the description of a tool."""
    return sum(part.kind == "tool_reference" for part in content)


def _largest(tools: list[Mapping[str, Any]], content: Iterable[ContentPart]) -> int:
    """Return the most tokens of the longest description of a tool."""
    inline = (part.members.get("definition") for part in content)
    described = (*tools, *(tool for tool in inline if isinstance(tool, dict)))
    return max(map(bytes_of, described), default=0)


def _compacts(top: Mapping[str, Any]) -> bool:
    """Return whether the provider may read the request twice, because it shortens it first."""
    if top.get("compaction") is not None:
        return True
    edits = members(top.get("contextmanagement")).get("edits")
    kinds = [str(members(edit).get("type")) for edit in listed(edits)]
    return any(not kind.startswith("clear_") for kind in kinds)


def _turns(top: Mapping[str, Any], tools: list[Mapping[str, Any]], largest: int) -> Turns | None:
    """Return the turns for a trace; None if the provider may shorten the conversation.

    `largest` is 0 without references to tools.
    """
    if top.get("contextmanagement") not in (None, {}, _KEEPS_ALL):
        return None
    setting = {name: value for name, value in top.items() if name not in _NO_TOKENS}
    # Tools that are loaded late have no tokens before a message names them.
    late = [tool for tool in tools if largest or tool.get("deferloading")]
    at_once = [tool for tool in tools if not (largest or tool.get("deferloading"))]

    def more_tokens(turn: Any) -> int:
        content = list(parts(turn, _hidden))
        return media_tokens(tuple(_media(content))) + _references(content) * largest

    return Turns(
        turns=items(top.get("messages")),
        pieces=[*at_once, *listed(top.get("system"))],
        setting={**setting, "late": late},
        by_model=lambda turn: members(turn).get("role") == "assistant",
        more_tokens=more_tokens,
    )
