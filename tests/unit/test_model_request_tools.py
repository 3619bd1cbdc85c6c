"""Every place where a request can name a provider's tool or stored content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labledger.gateway.families import FAMILIES
from labledger.gateway.families.family import Feature
from labledger.records.model_calls import Api

PATHS = {
    Api.ANTHROPIC_MESSAGES: "/v1/messages",
    Api.OPENAI_RESPONSES: "/v1/responses",
    Api.OPENAI_CHAT: "/v1/chat/completions",
    Api.GEMINI: "/v1beta/models/m-1:generateContent",
}
ANTHROPIC, RESPONSES, CHAT, GEMINI = PATHS


def features(api: Api, body: dict[str, Any]) -> set[Feature]:
    """Return the features that a body needs."""
    family = FAMILIES[api]
    endpoint = family.endpoint(PATHS[api])
    assert endpoint is not None
    document = body if api is Api.GEMINI else {"model": "m-1", **body}
    return set(family.read_request(endpoint, document, len(json.dumps(document))).features)


F = Feature
PROVIDER_TOOLS = [
    ({"type": "web_search"}, F.WEB_SEARCH),
    ({"type": "web_search_preview_2025_03_11"}, F.WEB_SEARCH),
    ({"type": "mcp", "server_url": "https://x"}, F.MCP),
    ({"type": "code_interpreter", "container": {"type": "auto"}}, F.CODE_EXECUTION),
    ({"type": "file_search", "vector_store_ids": ["v"]}, F.FILES),
    ({"type": "image_generation"}, F.IMAGE_GENERATION),
    ({"type": "shell", "environment": {"type": "container_auto"}}, F.CODE_EXECUTION),
    ({"type": "programmatic_tool_calling"}, F.OTHER_TOOLS),
    ({"type": "from_next_year"}, F.OTHER_TOOLS),
    ({"type": None}, F.OTHER_TOOLS),
    ({}, F.OTHER_TOOLS),
]


@pytest.mark.parametrize(("tool", "feature"), PROVIDER_TOOLS)
def test_tools_of_the_provider_are_seen_in_every_place_of_responses(
    tool: dict[str, Any], feature: Feature
) -> None:
    """Tools are found in `tools`, in items that add or find tools, namespaces and messages."""
    namespace = {"type": "namespace", "name": "n", "tools": [tool]}
    message = {"type": "message", "role": "developer", "content": [], "tools": [tool]}
    bodies: list[dict[str, Any]] = [
        {"tools": [tool]},
        {"tools": [namespace]},
        {"input": [{"type": "additional_tools", "role": "developer", "tools": [tool]}]},
        {"input": [{"type": "additional_tools", "role": "developer", "tools": [namespace]}]},
        {"input": [{"type": "tool_search_output", "execution": "client", "tools": [tool]}]},
        {"input": [{"type": "tool_search_output", "tools": [{**namespace, "tools": [namespace]}]}]},
        {"input": [{"type": "function_call_output", "output": [{"tools": [tool]}]}]},
        {"input": [message]},
        {"tool_choice": {"type": "allowed_tools", "tools": [tool]}},
    ]
    for body in bodies:
        assert features(RESPONSES, body) == {feature}, body


ANTHROPIC_TOOLS = [
    ({"type": "web_search_20260318", "name": "web_search"}, F.WEB_SEARCH),
    ({"type": "web_fetch_20260309"}, F.URL_INPUTS),
    ({"type": "code_execution_20260521"}, F.CODE_EXECUTION),
    ({"type": "mcp_toolset", "mcp_server_name": "s"}, F.MCP),
    ({"type": "advisor_20260301", "model": "other"}, F.OTHER_TOOLS),
    ({"type": "from_next_year"}, F.OTHER_TOOLS),
]


@pytest.mark.parametrize(("tool", "feature"), ANTHROPIC_TOOLS)
def test_tools_of_the_provider_are_seen_in_every_place_of_messages(
    tool: dict[str, Any], feature: Feature
) -> None:
    """Tools are found in `tools`, in blocks that add a tool, and in compacted content."""
    definition = {"type": "tool_definition", "definition": tool}
    added = {"type": "tool_addition", "tool": definition}
    directly = {"type": "tool_addition", "tool": tool}
    contents: list[list[Any]] = [
        [added],
        [directly],
        [{"type": "text", "text": "x", "tools": [tool]}],
        [{"type": "compaction", "content": "x", "tool_changes": [added]}],
        [{"type": "tool_result", "content": [added]}],
    ]
    bodies: list[dict[str, Any]] = [{"tools": [tool]}]
    bodies += [{"messages": [{"role": "system", "content": content}]} for content in contents]
    bodies += [{"system": content} for content in contents]
    for body in bodies:
        assert features(ANTHROPIC, body) == {feature}, body


CONTENT: list[tuple[Api, list[Any], Feature]] = [
    (RESPONSES, [{"type": "mcp_list_tools", "tools": [{"name": "t"}]}], F.MCP),
    (RESPONSES, [{"type": "mcp_approval_response", "approve": True}], F.MCP),
    (RESPONSES, [{"type": "mcp_call"}], F.MCP),
    (RESPONSES, [{"type": "web_search_call"}], F.WEB_SEARCH),
    (RESPONSES, [{"type": "file_search_call"}], F.FILES),
    (RESPONSES, [{"type": "code_interpreter_call"}], F.CODE_EXECUTION),
    (RESPONSES, [{"type": "image_generation_call"}], F.IMAGE_GENERATION),
    (RESPONSES, [{"type": "program"}], F.CODE_EXECUTION),
    (RESPONSES, [{"type": "multi_agent_call"}], F.OTHER_TOOLS),
    (RESPONSES, [{"type": "from_next_year"}], F.OTHER_TOOLS),
    (RESPONSES, [{"type": ["message"]}], F.OTHER_TOOLS),
    (RESPONSES, [{"id": "msg_1"}], F.STORED),
    (RESPONSES, [{"type": None, "id": "msg_1"}], F.STORED),
    (RESPONSES, [{"type": "item_reference", "id": "msg_1"}], F.STORED),
    (
        RESPONSES,
        [{"type": "shell_call", "environment": {"type": "container_reference"}}],
        F.CODE_EXECUTION,
    ),
    (ANTHROPIC, [{"type": "mcp_tool_use", "input": {}}], F.MCP),
    (ANTHROPIC, [{"type": "mcp_tool_listing", "tools": []}], F.MCP),
    (
        ANTHROPIC,
        [{"type": "tool_addition", "tool": {"type": "mcp_toolset_reference"}}],
        F.MCP,
    ),
    (ANTHROPIC, [{"type": "web_search_tool_result", "content": []}], F.WEB_SEARCH),
    (ANTHROPIC, [{"type": "code_execution_tool_result", "content": {}}], F.CODE_EXECUTION),
    (ANTHROPIC, [{"type": "container_upload", "file_id": "f"}], F.FILES),
    (ANTHROPIC, [{"type": "server_tool_use", "name": "advisor"}], F.OTHER_TOOLS),
    # The remains of a granted provider tool in the conversation need only that grant.
    (
        ANTHROPIC,
        [
            {"type": "server_tool_use", "name": "web_search", "input": {"query": "x"}},
            {
                "type": "web_search_tool_result",
                "content": [{"type": "web_search_result", "url": "https://x"}],
            },
            {
                "type": "web_search_tool_result",
                "content": {"type": "web_search_tool_result_error", "error_code": "x"},
            },
            {"type": "text", "citations": [{"type": "web_search_result_location", "url": "u"}]},
        ],
        F.WEB_SEARCH,
    ),
    (
        ANTHROPIC,
        [
            {"type": "server_tool_use", "name": "bash_code_execution", "input": {}},
            {
                "type": "bash_code_execution_tool_result",
                "content": {"type": "bash_code_execution_result", "content": []},
            },
        ],
        F.CODE_EXECUTION,
    ),
    (
        RESPONSES,
        [
            {
                "type": "web_search_call",
                "action": {"type": "search", "sources": [{"type": "url", "url": "https://x"}]},
            },
            {
                "type": "message",
                "content": [{"type": "output_text", "annotations": [{"type": "url_citation"}]}],
            },
        ],
        F.WEB_SEARCH,
    ),
    (
        RESPONSES,
        [{"type": "code_interpreter_call", "outputs": [{"type": "logs"}, {"type": "image"}]}],
        F.CODE_EXECUTION,
    ),
    (ANTHROPIC, [{"type": "from_next_year"}], F.OTHER_TOOLS),
    (ANTHROPIC, [{"type": "document", "source": {"type": "connector"}}], F.OTHER_TOOLS),
    (CHAT, [{"type": "from_next_year"}], F.OTHER_TOOLS),
    (CHAT, [{"type": "text", "tools": [{"type": "web_search"}]}], F.WEB_SEARCH),
    (CHAT, [{"type": "document_url", "document_url": "https://x"}], F.URL_INPUTS),
    (GEMINI, [{"from_next_year": {}}], F.OTHER_TOOLS),
]


@pytest.mark.parametrize(("api", "content", "feature"), CONTENT)
def test_content_that_asks_something_of_the_provider_is_seen(
    api: Api, content: list[Any], feature: Feature
) -> None:
    """Content about the provider's own actions, or of an unknown kind, needs a grant."""
    body: dict[str, Any] = {
        ANTHROPIC: {"messages": [{"role": "assistant", "content": content}]},
        RESPONSES: {"input": content},
        CHAT: {"messages": [{"role": "user", "content": content}]},
        GEMINI: {"contents": [{"role": "user", "parts": content}]},
    }[api]
    assert features(api, body) == {feature}


ODD_PLACES: list[tuple[Api, dict[str, Any], Feature]] = [
    (ANTHROPIC, {"messages": [{"role": "user", "content": {"type": "new"}}]}, F.OTHER_TOOLS),
    (ANTHROPIC, {"messages": {"content": [{"type": "container_upload"}]}}, F.FILES),
    (ANTHROPIC, {"messages": [{"tools": [{"type": "web_search_20250305"}]}]}, F.WEB_SEARCH),
    (ANTHROPIC, {"tools": ["web_search_20250305"]}, F.OTHER_TOOLS),
    (ANTHROPIC, {"tools": [{"name": "x", "tools": [{"type": "mcp_toolset"}]}]}, F.MCP),
    (ANTHROPIC, {"tools": [{"type": ["custom"]}]}, F.OTHER_TOOLS),
    (
        ANTHROPIC,
        {"messages": [{"content": [{"type": "text", "input": [{"type": "mcp_tool_use"}]}]}]},
        F.MCP,
    ),
    (RESPONSES, {"tools": "web_search"}, F.OTHER_TOOLS),
    (RESPONSES, {"input": {"type": "additional_tools", "tools": {"type": "mcp"}}}, F.MCP),
    (RESPONSES, {"input": [{"output": {"type": "new"}}]}, F.OTHER_TOOLS),
    (RESPONSES, {"instructions": [{"type": "x", "tools": [{"type": "mcp"}]}]}, F.MCP),
    (RESPONSES, {"tools": [{"type": "function", "tools": [{"type": "mcp"}]}]}, F.MCP),
    (CHAT, {"tools": ["web_search"]}, F.OTHER_TOOLS),
    (CHAT, {"tools": [{"type": "builtin_function"}]}, F.OTHER_TOOLS),
    (CHAT, {"messages": [{"content": {"image_url": {"url": "https://x"}}}]}, F.URL_INPUTS),
    (CHAT, {"messages": [{"content": [{"image_url": ["https://x"]}]}]}, F.URL_INPUTS),
    (CHAT, {"messages": [{"content": [{"image_url": {"url": {"u": 1}}}]}]}, F.URL_INPUTS),
    (CHAT, {"messages": [{"content": [{"type": "image", "image": "https://x"}]}]}, F.URL_INPUTS),
    (GEMINI, {"tools": ["googleSearch"]}, F.OTHER_TOOLS),
    (GEMINI, {"tools": [[{"googleSearch": {}}]]}, F.OTHER_TOOLS),
    (GEMINI, {"systemInstruction": {"parts": [{"new": {}}]}}, F.OTHER_TOOLS),
    (GEMINI, {"contents": {"parts": {"fileData": {}}}}, F.URL_INPUTS),
    (GEMINI, {"contents": [{"tools": [{"googleSearch": {}}]}]}, F.OTHER_TOOLS),
]


@pytest.mark.parametrize(("api", "body", "feature"), ODD_PLACES)
def test_lenient_readers_find_no_tool_that_the_gateway_does_not(
    api: Api, body: dict[str, Any], feature: Feature
) -> None:
    """Objects in place of lists, texts in place of objects, and nested groups hide no tool."""
    assert feature in features(api, body)


MEMBERS: list[tuple[Api, dict[str, Any], Feature]] = [
    (ANTHROPIC, {"thread": {"type": "continue", "previous_message_id": "m"}}, F.STORED),
    (ANTHROPIC, {"tool_choice": {"type": "web_search"}}, F.OTHER_TOOLS),
    (ANTHROPIC, {"billing_policy": {"bill_to": "user_profile"}}, F.SERVICE_TIERS),
    (ANTHROPIC, {"from_next_year": {"enabled": True}}, F.OTHER_TOOLS),
    (ANTHROPIC, {"from_next_year": "on"}, F.OTHER_TOOLS),
    (RESPONSES, {"multi_agent": {"enabled": True}}, F.OTHER_TOOLS),
    (RESPONSES, {"moderation": {"model": "other"}}, F.OTHER_TOOLS),
    (RESPONSES, {"background_options": {"continuation_id": "c"}}, F.OTHER_TOOLS),
    (RESPONSES, {"reasoning": {"mode": "pro"}}, F.OTHER_TOOLS),
    (RESPONSES, {"tool_choice": {"type": "web_search_preview"}}, F.WEB_SEARCH),
    (RESPONSES, {"prompt": "pmpt_1"}, F.STORED),
    (CHAT, {"tool_choice": {"type": "web_search"}}, F.WEB_SEARCH),
    (CHAT, {"data_sources": [{"type": "azure_search"}]}, F.FILES),
    (CHAT, {"deferred": True}, F.STORED),
    (CHAT, {"modalities": ["text", "image"]}, F.IMAGE_GENERATION),
    (CHAT, {"messages": [{"role": "system", "tools": [{"type": "retrieval"}]}]}, F.OTHER_TOOLS),
    (CHAT, {"provider": {"order": ["dear"]}}, F.SERVICE_TIERS),
    (CHAT, {"preset": "dear"}, F.STORED),
    (CHAT, {"route": "fallback"}, F.OTHER_TOOLS),
    (CHAT, {"transforms": ["from-next-year"]}, F.OTHER_TOOLS),
    (CHAT, {"plugins": [{"id": "web"}]}, F.WEB_SEARCH),
    (CHAT, {"chat_template": "{% for i in range(9) %}"}, F.OTHER_TOOLS),
    (CHAT, {"mm_processor_kwargs": {"max_pixels": 10**9}}, F.OTHER_TOOLS),
    (CHAT, {"safety_model": "other"}, F.OTHER_TOOLS),
    (CHAT, {"draft_model": "other"}, F.OTHER_TOOLS),
    (CHAT, {"lora_path": "other"}, F.OTHER_TOOLS),
    (CHAT, {"providerOptions": {"gateway": {"order": ["dear"]}}}, F.OTHER_TOOLS),
    (CHAT, {"enable_code_interpreter": True}, F.OTHER_TOOLS),
    (RESPONSES, {"input": [{"id": "rs_1", "summary": []}]}, F.STORED),
    (GEMINI, {"tools": [{"functionDeclarations": [], "googleSearch": {}}]}, F.WEB_SEARCH),
    (GEMINI, {"tools": [{"function_declarations": [], "google_maps": {}}]}, F.WEB_SEARCH),
    (GEMINI, {"tools": [{"exaAiSearch": {}}]}, F.OTHER_TOOLS),
    (GEMINI, {"generationConfig": {"response_modalities": ["image"]}}, F.IMAGE_GENERATION),
    (GEMINI, {"automaticContinuation": {}}, F.OTHER_TOOLS),
    (GEMINI, {"continuation_token": "c"}, F.STORED),
]


@pytest.mark.parametrize(("api", "body", "feature"), MEMBERS)
def test_a_member_that_asks_something_of_the_provider_is_seen(
    api: Api, body: dict[str, Any], feature: Feature
) -> None:
    """A member that keeps state, lets others answer, or is unknown needs a grant."""
    assert features(api, body) == {feature}


CODEX_TOOLS = {
    "type": "additional_tools",
    "id": "at_1",
    "role": "developer",
    "tools": [
        {
            "type": "namespace",
            "name": "functions",
            "description": "",
            "tools": [
                {"type": "custom", "name": "exec", "format": {"type": "grammar"}},
                {"type": "function", "name": "wait", "parameters": {"type": "object"}},
            ],
        }
    ],
}
ORDINARY: list[tuple[Api, dict[str, Any]]] = [
    (
        RESPONSES,
        {
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "low", "context": "all_turns"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
            "text": {"verbosity": "low"},
            "client_metadata": {"turn_id": "t"},
            "input": [
                CODEX_TOOLS,
                {"type": "message", "role": "user", "content": [{"type": "input_text"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text"}]},
                {"type": "custom_tool_call", "name": "exec", "input": "tools"},
                {"type": "custom_tool_call_output", "output": [{"type": "input_text"}]},
                {"type": "tool_search_call", "execution": "client", "arguments": {"tools": [1]}},
                {"type": "tool_search_output", "tools": [{"type": "function", "name": "f"}]},
                {"role": "assistant", "content": [{"type": "output_text", "annotations": []}]},
            ],
        },
    ),
    (RESPONSES, {"input": "Hello", "tools": [{"type": "tool_search", "execution": "client"}]}),
    (
        ANTHROPIC,
        {
            "tools": [{"name": "Bash", "input_schema": {"type": "web_search_20250305"}}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "metadata": {"user_id": "u"},
            "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "Hello"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "", "signature": "s"},
                        {"type": "tool_use", "input": {"tools": [{"type": "web_search_20250305"}]}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "content": [{"type": "tool_reference"}]},
                        {"type": "tool_addition", "tool": {"type": "tool_reference"}},
                        {
                            "type": "tool_addition",
                            "tool": {"type": "tool_definition", "definition": {"name": "Bash"}},
                        },
                    ],
                },
            ],
        },
    ),
    (
        CHAT,
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"thinking": False},
            "reasoning": {"effort": "low"},
            "transforms": ["middle-out"],
            "usage": {"include": True},
            "thinking": {"type": "enabled"},
            "reasoning_effort": "high",
            "response_format": {"type": "json_object"},
            "prompt_cache_key": "k",
            "parallel_tool_calls": True,
            "stop": ["x"],
            "metadata": {"sessionId": "s"},
            "min_p": 0.1,
            "messages": [
                {"role": "assistant", "tool_calls": [{"type": "function", "function": {}}]},
                {"role": "tool", "content": [{"type": "text", "text": "x"}]},
                {"role": "assistant", "reasoning_details": [{"type": "reasoning.text"}]},
            ],
        },
    ),
    (
        GEMINI,
        {
            "tools": [{"functionDeclarations": [{"name": "f"}]}],
            "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
            "systemInstruction": {"parts": [{"text": "x"}]},
            "generationConfig": {"thinkingConfig": {"thinkingBudget": -1}},
            "contents": [
                {"role": "model", "parts": [{"functionCall": {}, "thoughtSignature": "s"}]},
                {"role": "user", "parts": [{"functionResponse": {"response": {"type": 1}}}]},
            ],
        },
    ),
]


@pytest.mark.parametrize(("api", "body"), ORDINARY)
def test_what_ordinary_agents_send_needs_no_grant(api: Api, body: dict[str, Any]) -> None:
    """Tools that the agent runs pass wherever the newest Codex sends them."""
    assert features(api, body) == set()
