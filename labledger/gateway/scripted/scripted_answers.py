"""Answers of the scripted provider in the forms of the four APIs: whole, as events, and as errors.

Each form follows the provider's own servers, so that the provider's clients accept it. Usage is
stated as the provider counts it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labledger.gateway.scripted.agent_actions import Said
from labledger.records import JsonObject
from labledger.records.model_calls import Api, Usage

_CREATED = 1_700_000_000
_PIECE = 16
"""How many characters of text one event of a stream has."""
ENDLESS_TEXT = "and so on "


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, before it has the form of an API."""

    id: str
    """Text that is unique in its conversation."""
    model: str
    content: Said
    usage: Usage
    wants_usage: bool = True

    @property
    def arguments(self) -> str:
        """The arguments of the call as JSON text."""
        return json.dumps(self.content.call.arguments if self.content.call else {})

    @property
    def pieces(self) -> list[str]:
        """The text in the pieces of a stream."""
        text = self.content.text
        return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


@dataclass(frozen=True, slots=True)
class Form:
    """The forms of one API's answers."""

    whole: Callable[[Reply], JsonObject]
    events: Callable[[Reply], Iterator[bytes]]
    more_text: Callable[[str], bytes]
    """An event with more text, for a stream that never ends."""
    error: Callable[[int, str], JsonObject]
    error_event: Callable[[str], bytes]


def _event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


# -- Anthropic's messages


def _anthropic_usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write + usage.cache_write_1h,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write,
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        },
        "output_tokens": usage.output,
    }


def _anthropic_message(reply: Reply) -> JsonObject:
    content: list[JsonObject] = []
    if reply.content.text:
        content.append({"type": "text", "text": reply.content.text})
    if call := reply.content.call:
        use = {"type": "tool_use", "id": f"toolu_{reply.id}", "name": call.name}
        content.append({**use, "input": dict(call.arguments)})
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": "tool_use" if reply.content.call else "end_turn",
        "stop_sequence": None,
        "usage": _anthropic_usage(reply.usage),
    }


def _anthropic_events(reply: Reply) -> Iterator[bytes]:
    message = _anthropic_message(reply)
    start = {**message, "content": [], "stop_reason": None}
    start["usage"] = {**message["usage"], "output_tokens": min(1, reply.usage.output)}
    yield _typed({"type": "message_start", "message": start})
    yield _typed({"type": "ping"})
    for index, block in enumerate(message["content"]):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        yield _typed({"type": "content_block_start", "index": index, "content_block": empty})
        deltas: list[JsonObject] = (
            [{"type": "text_delta", "text": piece} for piece in reply.pieces]
            if is_text
            else [{"type": "input_json_delta", "partial_json": reply.arguments}]
        )
        for delta in deltas:
            yield _typed({"type": "content_block_delta", "index": index, "delta": delta})
        yield _typed({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": reply.usage.output}
    yield _typed({"type": "message_delta", "delta": delta, "usage": usage})
    yield _typed({"type": "message_stop"})


def _typed(data: JsonObject) -> bytes:
    """Return an event that is named after the type of its data, as Anthropic and OpenAI do."""
    return _event(data, data["type"])


def _anthropic_more(text: str) -> bytes:
    delta = {"type": "text_delta", "text": text}
    return _typed({"type": "content_block_delta", "index": 0, "delta": delta})


_ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _anthropic_error(status: int, message: str) -> JsonObject:
    kind = _ANTHROPIC_ERRORS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


# -- OpenAI's Responses


def _responses_usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.request,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def _response(reply: Reply) -> JsonObject:
    output: list[JsonObject] = []
    if reply.content.text:
        content = [{"type": "output_text", "text": reply.content.text, "annotations": []}]
        message = {"type": "message", "id": f"msg_{reply.id}", "status": "completed"}
        output.append({**message, "role": "assistant", "content": content})
    if call := reply.content.call:
        kind, member = "function_call", {"arguments": reply.arguments}
        if call.text is not None:
            kind, member = "custom_tool_call", {"input": call.text}
        item = {"type": kind, "id": f"fc_{reply.id}", "call_id": f"call_{reply.id}"}
        item |= {"name": call.name, **member, "status": "completed"}
        if call.namespace is not None:
            item["namespace"] = call.namespace
        output.append(item)
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": _CREATED,
        "status": "completed",
        "model": reply.model,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "usage": _responses_usage(reply.usage),
    }


def _response_events(reply: Reply) -> Iterator[bytes]:
    for number, event in enumerate(_response_steps(reply)):
        yield _typed({**event, "sequence_number": number})


def _response_steps(reply: Reply) -> Iterator[JsonObject]:
    response = _response(reply)
    started = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": started}
    for index, item in enumerate(response["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        is_text = item["type"] == "message"
        empty = {**item, "status": "in_progress", **({"content": []} if is_text else {})}
        member, delta = "arguments", "function_call_arguments"
        if item["type"] == "custom_tool_call":
            member, delta = "input", "custom_tool_call_input"
        if not is_text:
            empty[member] = ""
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        if is_text:
            place["content_index"] = 0
            part = item["content"][0]
            empty_part = {**part, "text": ""}
            yield {"type": "response.content_part.added", **place, "part": empty_part}
            for piece in reply.pieces:
                yield {"type": "response.output_text.delta", **place, "delta": piece}
            yield {"type": "response.output_text.done", **place, "text": part["text"]}
            yield {"type": "response.content_part.done", **place, "part": part}
        else:
            text = item[member]
            yield {"type": f"response.{delta}.delta", **place, "delta": text}
            yield {"type": f"response.{delta}.done", **place, member: text}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": response}


def _response_more(text: str) -> bytes:
    place = {"output_index": 0, "item_id": "msg", "content_index": 0}
    return _typed({"type": "response.output_text.delta", **place, "delta": text})


def _openai_error(status: int, message: str) -> JsonObject:
    kind = "rate_limit_exceeded" if status == 429 else "server_error"
    if status < 429:
        kind = "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}


def _response_failed(message: str) -> bytes:
    error = {"code": "server_error", "message": message}
    response = {"id": "resp_failed", "object": "response", "status": "failed", "error": error}
    return _typed({"type": "response.failed", "response": response, "sequence_number": 999})


# -- OpenAI's chat completions


def _chat_usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.request,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens": usage.output,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def _chat_message(reply: Reply) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": reply.content.text or None}
    if call := reply.content.call:
        function = {"name": call.name, "arguments": reply.arguments}
        message["tool_calls"] = [
            {"id": f"call_{reply.id}", "type": "function", "function": function}
        ]
    return message


def _chat_whole(reply: Reply) -> JsonObject:
    reason = "tool_calls" if reply.content.call else "stop"
    choice = {"index": 0, "message": _chat_message(reply), "finish_reason": reason}
    head = _chat_head(f"chatcmpl-{reply.id}", reply.model, "chat.completion")
    return {**head, "choices": [choice], "usage": _chat_usage(reply.usage)}


def _chat_head(name: str, model: str, kind: str) -> JsonObject:
    return {"id": name, "object": kind, "created": _CREATED, "model": model}


def _chat_events(reply: Reply) -> Iterator[bytes]:
    head = _chat_head(f"chatcmpl-{reply.id}", reply.model, "chat.completion.chunk")
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in reply.pieces]
    for call in _chat_message(reply).get("tool_calls", []):
        deltas.append({"tool_calls": [{"index": 0, **call}]})
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        yield _event({**head, "choices": [choice]})
    reason = "tool_calls" if reply.content.call else "stop"
    yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    if reply.wants_usage:
        yield _event({**head, "choices": [], "usage": _chat_usage(reply.usage)})
    yield b"data: [DONE]\n\n"


def _chat_more(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    head = _chat_head("chatcmpl-endless", "scripted", "chat.completion.chunk")
    return _event({**head, "choices": [choice]})


# -- Google's Gemini


def _gemini_whole(reply: Reply) -> JsonObject:
    parts: list[JsonObject] = [{"text": reply.content.text}] if reply.content.text else []
    if call := reply.content.call:
        parts.append({"functionCall": {"name": call.name, "args": dict(call.arguments)}})
    usage = reply.usage
    return _gemini_chunk(parts, "STOP") | {
        "usageMetadata": {
            "promptTokenCount": usage.request,
            "cachedContentTokenCount": usage.cache_read,
            "candidatesTokenCount": usage.output - usage.reasoning,
            "thoughtsTokenCount": usage.reasoning,
            "totalTokenCount": usage.total,
        },
        "modelVersion": reply.model,
        "responseId": reply.id,
    }


def _gemini_chunk(parts: list[JsonObject], reason: str | None = None) -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": parts}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    return {"candidates": [candidate]}


def _gemini_events(reply: Reply) -> Iterator[bytes]:
    whole = _gemini_whole(reply)
    texts: list[list[JsonObject]] = [[{"text": piece}] for piece in reply.pieces]
    texts.append([])
    *earlier, last = texts
    prompt = {"promptTokenCount": reply.usage.request, "totalTokenCount": reply.usage.request}
    for parts in earlier:
        chunk = _gemini_chunk(parts) | {"usageMetadata": prompt, "modelVersion": reply.model}
        yield _event(chunk)
    calls = [part for part in whole["candidates"][0]["content"]["parts"] if "functionCall" in part]
    yield _event(whole | _gemini_chunk(last + calls, "STOP"))


def _gemini_more(text: str) -> bytes:
    return _event(_gemini_chunk([{"text": text}]))


_GEMINI_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}


def _gemini_error(status: int, message: str) -> JsonObject:
    name = _GEMINI_STATUS.get(status, "UNAVAILABLE")
    return {"error": {"code": status, "message": message, "status": name}}


FORMS: Mapping[Api, Form] = {
    Api.ANTHROPIC_MESSAGES: Form(
        _anthropic_message,
        _anthropic_events,
        _anthropic_more,
        _anthropic_error,
        lambda message: _typed(_anthropic_error(529, message)),
    ),
    Api.OPENAI_RESPONSES: Form(
        _response, _response_events, _response_more, _openai_error, _response_failed
    ),
    Api.OPENAI_CHAT: Form(
        _chat_whole,
        _chat_events,
        _chat_more,
        _openai_error,
        lambda message: _event(_openai_error(500, message)),
    ),
    Api.GEMINI: Form(
        _gemini_whole,
        _gemini_events,
        _gemini_more,
        _gemini_error,
        lambda message: _event(_gemini_error(503, message)),
    ),
}
