"""Read the requests of agents to the scripted provider, in the same way for all four APIs.

The number of answers in a conversation shows its progress. A run of items from the model, with its
reasoning and calls, is one answer. So the provider needs no state for each trial.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from labledger.records.model_calls import Api

_GEMINI_PATH = re.compile(r"/models/([^/]+):(generateContent|streamGenerateContent)$")
_BY_MODEL = {
    "function_call",
    "reasoning",
    "custom_tool_call",
    "local_shell_call",
    "web_search_call",
}
"""Types of items of OpenAI's Responses that come from the model."""


_NAMES_TOOLS = {
    # OpenAI's Responses
    "additional_tools": "tools",
    "tool_search_output": "tools",
    # Anthropic's Messages
    "tool_addition": "tool",
}
"""The member with tools, for each type of item or block that declares some."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the agent offers."""

    name: str
    schema: Mapping[str, Any]
    """The JSON schema of its arguments; empty if it takes plain text."""
    namespace: str | None = None
    """The group that declares it, which a call must name; None without a group."""
    takes_text: bool = False
    """Whether its input is plain text, such as a program, instead of arguments."""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request for an answer of a model."""

    api: Api
    model: str
    streamed: bool
    answers: int
    """The number of the model's answers in it."""
    text: str
    """All text in it, one string per line."""
    tools: tuple[Tool, ...]
    answer_schema: Mapping[str, Any] | None
    """The JSON schema that the answer must match; None for free text."""
    wants_usage: bool
    """Whether a stream ends with usage. OpenAI's chat states it only on request."""


def api_of(path: str) -> Api | None:
    """Return the API of a path with any prefix; None if the path asks no model."""
    if path.endswith("/messages"):
        return Api.ANTHROPIC_MESSAGES
    if path.endswith("/responses"):
        return Api.OPENAI_RESPONSES
    if path.endswith("/chat/completions"):
        return Api.OPENAI_CHAT
    return Api.GEMINI if _GEMINI_PATH.search(path) else None


def read_conversation(api: Api, path: str, body: Mapping[str, Any]) -> Conversation:
    """Return the conversation of a request to `path`. `body` may hold anything."""
    gemini = _GEMINI_PATH.search(path)
    if api is Api.GEMINI and gemini:
        model, streamed = gemini[1], gemini[2] == "streamGenerateContent"
    else:
        model, streamed = str(body.get("model", "")), body.get("stream") is True
    options = _mapping(body.get("stream_options"))
    return Conversation(
        api=api,
        model=model,
        streamed=streamed,
        answers=_count_answers(api, body),
        text="\n".join(_texts({k: v for k, v in body.items() if k != "tools"})),
        tools=tuple(_tools(_declarations(body))),
        answer_schema=_answer_schema(body),
        wants_usage=api is not Api.OPENAI_CHAT or options.get("include_usage") is True,
    )


def _count_answers(api: Api, body: Mapping[str, Any]) -> int:
    items = body.get({Api.OPENAI_RESPONSES: "input", Api.GEMINI: "contents"}.get(api, "messages"))
    by_model = [False, *(_is_by_model(_mapping(item)) for item in _list(items))]
    return sum(now and not before for before, now in pairwise(by_model))


def _is_by_model(item: Mapping[str, Any]) -> bool:
    role, kind = item.get("role"), item.get("type")
    return role in ("assistant", "model") or (isinstance(kind, str) and kind in _BY_MODEL)


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings in a value, except in declarations of tools."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        left_out = _NAMES_TOOLS.get(str(value.get("type")))
        for key, item in value.items():
            if key != left_out:
                yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _declarations(body: Mapping[str, Any]) -> list[Any]:
    """Return all declarations of tools in a body of any API."""
    return [*_list(body.get("tools")), *_declared_in(body.get("input") or body.get("messages"))]


def _declared_in(value: Any) -> Iterator[Any]:
    """Yield the declarations of tools in the items or messages of a conversation."""
    for item in map(_mapping, _list(value)):
        member = _NAMES_TOOLS.get(str(item.get("type")))
        if member is not None:
            declared = item.get(member)
            yield from declared if isinstance(declared, list) else [declared]
        yield from _declared_in(item.get("content"))


def _tools(tools: Any, namespace: str | None = None) -> Iterator[Tool]:
    """Yield the functions in any API's declarations, without the provider's own tools."""
    for declared in map(_mapping, _list(tools)):
        if declared.get("type") == "namespace":
            yield from _tools(declared.get("tools"), str(declared.get("name")))
            continue
        nested = declared.get("functionDeclarations") or declared.get("function_declarations")
        for item in map(_mapping, _list(nested)) if nested else [declared]:
            # `definition` is Anthropic's form for a tool that is added later.
            function = _mapping(item.get("function")) or _mapping(item.get("definition")) or item
            schema: Mapping[str, Any] | None = next(
                (
                    function[key]
                    for key in ("input_schema", "parameters", "parametersJsonSchema")
                    if isinstance(function.get(key), dict)
                ),
                None,
            )
            # Anthropic's tools may have this type, too, with a schema.
            takes_text = schema is None and function.get("type") == "custom"
            name = function.get("name")
            if isinstance(name, str) and (schema is not None or takes_text):
                description = str(function.get("description", ""))
                yield Tool(name, schema or {}, namespace, takes_text, description)


def _answer_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    chat = _mapping(_mapping(body.get("response_format")).get("json_schema"))
    responses = _mapping(_mapping(body.get("text")).get("format"))
    messages = _mapping(_mapping(body.get("output_config")).get("format"))
    gemini = _mapping(body.get("generationConfig"))
    for holder in (chat, responses, messages, gemini):
        for key in ("schema", "responseJsonSchema", "responseSchema"):
            if isinstance(holder.get(key), dict):
                schema: Mapping[str, Any] = holder[key]
                return schema
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
