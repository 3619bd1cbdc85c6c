"""The messages of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labledger.gateway.families.event_stream import Event
from labledger.gateway.families.family import items, mapping
from labledger.records import JsonObject
from labledger.trajectories.agent_logs.json_logs import as_arguments, objects
from labledger.trajectories.drafts import content_text
from labledger.trajectories.recorded.message import (
    ApiReader,
    Call,
    Message,
    Returned,
    id_of,
    source_of,
)


def _messages(body: JsonObject) -> Iterator[Message]:
    if system := content_text(body.get("system")):
        yield Message("system", [system])
    for message in map(mapping, items(body.get("messages"))):
        said = Message(source_of(message.get("role")))
        content = message.get("content")
        if isinstance(content, str):
            said.texts.append(content)
        for block in objects(content):
            _take_block(said, block)
        yield said


def _take_block(said: Message, block: JsonObject) -> None:
    match block.get("type"):
        case "thinking" | "redacted_thinking":
            said.reasoning.append(content_text(block.get("thinking")))
        case "tool_use" | "server_tool_use":
            said.calls.append(Call(id_of(block.get("id")), block.get("name"), block.get("input")))
        case "tool_result":
            said.returned.append(
                Returned(
                    id_of(block.get("tool_use_id")),
                    content_text(block.get("content")),
                    is_error=block.get("is_error") is True,
                )
            )
        case _:
            said.texts.append(content_text(block))


class _Answer:
    def __init__(self) -> None:
        self._blocks: dict[int, JsonObject] = {}
        self._json: dict[int, list[str]] = {}

    def take_event(self, event: Event) -> None:
        document = mapping(event.document)
        index = document.get("index")
        if not isinstance(index, int):
            return
        if document.get("type") == "content_block_start":
            self._blocks[index] = dict(mapping(document.get("content_block")))
        block, delta = self._blocks.get(index), mapping(document.get("delta"))
        if block is None:
            return
        for name in ("text", "thinking"):
            if delta.get("type") == f"{name}_delta" and isinstance(delta.get(name), str):
                block[name] = f"{block.get(name) or ''}{delta[name]}"
        if isinstance(delta.get("partial_json"), str):
            self._json.setdefault(index, []).append(delta["partial_json"])

    def take_whole(self, document: Any) -> None:
        self._blocks = dict(enumerate(objects(mapping(document).get("content"))))

    def message(self) -> Message:
        said = Message("agent")
        for index, block in sorted(self._blocks.items()):
            if written := "".join(self._json.get(index, ())):
                block = {**block, "input": as_arguments(written)}
            _take_block(said, block)
        return said


READER = ApiReader(_messages, _Answer)
