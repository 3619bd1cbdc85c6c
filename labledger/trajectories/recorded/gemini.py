"""The contents of Google's Gemini API, whose calls often have no ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labledger.gateway.families.event_stream import StreamEvent
from labledger.gateway.families.family import items, mapping
from labledger.records import JsonObject
from labledger.trajectories.drafts import content_text, name_of
from labledger.trajectories.json_reading import objects
from labledger.trajectories.recorded.message import (
    ApiReader,
    Message,
    Returned,
    TrajectoryCall,
    id_of,
    source_of,
)


def _messages(body: JsonObject) -> Iterator[Message]:
    system = mapping(body.get("systemInstruction", body.get("system_instruction")))
    if parts := objects(system.get("parts")):
        yield Message("system", [content_text(parts)])
    contents = body.get("contents")
    for content in map(mapping, contents if isinstance(contents, list) else [contents]):
        parsed = Message(source_of(content.get("role")))
        _take_parts(parsed, content.get("parts"))
        yield parsed


def _take_parts(target: Message, parts: Any) -> None:
    for part in objects(parts):
        call = mapping(part.get("functionCall", part.get("function_call")))
        response = mapping(part.get("functionResponse", part.get("function_response")))
        if call:
            target.calls.append(
                TrajectoryCall(id_of(call.get("id")), call.get("name"), call.get("args"))
            )
        elif response:
            target.returned.append(_returned(dict(response)))
        elif isinstance(part.get("text"), str):
            texts = target.reasoning if part.get("thought") is True else target.texts
            texts += [part["text"]] if part["text"] else []
        else:
            target.texts.append(content_text(part))


def _returned(response: JsonObject) -> Returned:
    value = response.get("response")
    output = mapping(value)
    content = output.get("output", output.get("error", value))
    return Returned(
        id_of(response.get("id")),
        content_text(content),
        name_of(response.get("name")),
        is_error="error" in output,
    )


class _Answer:
    def __init__(self) -> None:
        self._said = Message("agent")

    def take_event(self, event: StreamEvent) -> None:
        self.take_whole(event.document)

    def take_whole(self, document: Any) -> None:
        for chunk in map(mapping, document if isinstance(document, list) else [document]):
            candidates = map(mapping, items(chunk.get("candidates")))
            first = next(
                (candidate for candidate in candidates if candidate.get("index", 0) == 0), {}
            )
            _take_parts(self._said, mapping(first.get("content")).get("parts"))

    def message(self) -> Message:
        # A stream has a text in several parts.
        for texts in (self._said.texts, self._said.reasoning):
            texts[:] = ["".join(texts)] if texts else []
        return self._said


READER = ApiReader(_messages, _Answer)
