"""The items of OpenAI's Responses API."""

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


def _messages(body: JsonObject) -> Iterator[Message]:
    if instructions := content_text(body.get("instructions")):
        yield Message("system", [instructions])
    given = body.get("input")
    if isinstance(given, str):
        yield Message("user", [given])
    for item in map(mapping, items(given)):
        yield _message(dict(item))


def _message(item: JsonObject) -> Message:
    kind = item.get("type")
    if kind is None or kind == "message":
        text = content_text(item.get("content"))
        return Message(source_of(item.get("role")), [text] if text else [])
    if kind == "reasoning":
        texts = [content_text(item.get(name)) for name in ("summary", "content")]
        return Message("agent", reasoning=[text for text in texts if text])
    call = id_of(item.get("call_id") or item.get("id"))
    if str(kind).endswith("_output"):
        output = item.get("output", item.get("content"))
        return Message("user", returned=[Returned(call, content_text(output))])
    if str(kind).endswith("_call"):
        name = item.get("name") or str(kind)
        given = item.get("arguments", item.get("input", item.get("action")))
        return Message("agent", calls=[TrajectoryCall(call, name, as_arguments(given))])
    return Message("user", [content_text(item)])


class _Answer:
    def __init__(self) -> None:
        self._items: list[JsonObject] = []

    def take_event(self, event: StreamEvent) -> None:
        document = mapping(event.document)
        kind = document.get("type", event.name)
        if kind == "response.output_item.done" and isinstance(document.get("item"), dict):
            self._items.append(document["item"])
        elif kind in ("response.completed", "response.incomplete") and not self._items:
            self.take_whole(document.get("response"))

    def take_whole(self, document: Any) -> None:
        self._items = objects(mapping(document).get("output"))

    def message(self) -> Message:
        parsed = Message("agent")
        for item in self._items:
            part = _message(item)
            parsed.texts += part.texts
            parsed.reasoning += part.reasoning
            parsed.calls += part.calls
        return parsed


READER = ApiReader(_messages, _Answer)
