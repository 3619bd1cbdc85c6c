"""The messages of OpenAI's Chat Completions API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labledger.gateway.families.event_stream import StreamEvent
from labledger.gateway.families.family import items, mapping
from labledger.records import JsonObject
from labledger.trajectories.drafts import content_text
from labledger.trajectories.json_reading import as_arguments, objects
from labledger.trajectories.recorded.message import (
    ApiReader,
    Message,
    Returned,
    TrajectoryCall,
    id_of,
    source_of,
)

_REASONING = ("reasoning_content", "reasoning")
"""The names of reasoning at different providers."""
_MAX_CALLS = 1000


def _messages(body: JsonObject) -> Iterator[Message]:
    for message in objects(body.get("messages")):
        yield _message(message)


def _message(message: JsonObject) -> Message:
    role, text = message.get("role"), content_text(message.get("content"))
    if role == "tool":
        return Message("user", returned=[Returned(id_of(message.get("tool_call_id")), text)])
    parsed = Message(source_of(role), [text] if text else [])
    parsed.reasoning += [content_text(message[name]) for name in _REASONING if message.get(name)][
        :1
    ]
    for call in objects(message.get("tool_calls")):
        function = mapping(call.get("function")) or mapping(call.get("custom"))
        arguments = as_arguments(function.get("arguments", function.get("input")))
        parsed.calls.append(TrajectoryCall(id_of(call.get("id")), function.get("name"), arguments))
    return parsed


class _Answer:
    def __init__(self) -> None:
        self._message: JsonObject = {"role": "assistant"}
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, JsonObject] = {}

    def take_event(self, event: StreamEvent) -> None:
        choices = map(mapping, items(mapping(event.document).get("choices")))
        choice = next((candidate for candidate in choices if candidate.get("index", 0) == 0), {})
        delta = mapping(choice.get("delta"))
        for name in ("content", *_REASONING):
            if isinstance(delta.get(name), str):
                self._texts.setdefault(name, []).append(delta[name])
        for call in objects(delta.get("tool_calls")):
            index = call.get("index", 0)
            if isinstance(index, int) and len(self._calls) < _MAX_CALLS:
                self._add_call(index, call)

    def _add_call(self, index: int, delta: JsonObject) -> None:
        call = self._calls.setdefault(index, {"id": None, "name": None, "arguments": []})
        function = mapping(delta.get("function"))
        call["id"] = call["id"] or delta.get("id")
        call["name"] = call["name"] or function.get("name")
        if isinstance(function.get("arguments"), str):
            call["arguments"].append(function["arguments"])

    def take_whole(self, document: Any) -> None:
        choices = objects(mapping(document).get("choices"))
        self._message = dict(mapping(choices[0].get("message"))) if choices else {}

    def message(self) -> Message:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        calls = [
            {
                "id": call["id"],
                "function": {"name": call["name"], "arguments": "".join(call["arguments"])},
            }
            for _, call in sorted(self._calls.items())
        ]
        streamed = {**texts, **({"tool_calls": calls} if calls else {})}
        return _message({**self._message, **streamed, "role": "assistant"})


READER = ApiReader(_messages, _Answer)
