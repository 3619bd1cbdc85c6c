"""The messages of Anthropic's Messages API."""

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
    if system := content_text(body.get("system")):
        yield Message("system", [system])
    for message in map(mapping, items(body.get("messages"))):
        parsed = Message(source_of(message.get("role")))
        content = message.get("content")
        if isinstance(content, str):
            parsed.texts.append(content)
        for block in objects(content):
            _take_block(parsed, block)
        yield parsed


def _take_block(target: Message, block: JsonObject) -> None:
    match block.get("type"):
        case "thinking" | "redacted_thinking":
            target.reasoning.append(content_text(block.get("thinking")))
        case "tool_use" | "server_tool_use":
            target.calls.append(
                TrajectoryCall(id_of(block.get("id")), block.get("name"), block.get("input"))
            )
        case "tool_result":
            target.returned.append(
                Returned(
                    id_of(block.get("tool_use_id")),
                    content_text(block.get("content")),
                    is_error=block.get("is_error") is True,
                )
            )
        case _:
            target.texts.append(content_text(block))


_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""The member of a delta that is a piece of a block, by the delta's type."""


class _Answer:
    def __init__(self) -> None:
        self._blocks: dict[int, JsonObject] = {}
        self._pieces: dict[int, list[str]] = {}

    def take_event(self, event: StreamEvent) -> None:
        document = mapping(event.document)
        index, delta = document.get("index"), mapping(document.get("delta"))
        if not isinstance(index, int):
            return
        if document.get("type") == "content_block_start":
            self._blocks[index] = dict(mapping(document.get("content_block")))
        piece = delta.get(_DELTAS.get(str(delta.get("type")), ""))
        if isinstance(piece, str):
            self._pieces.setdefault(index, []).append(piece)

    def take_whole(self, document: Any) -> None:
        self._blocks = dict(enumerate(objects(mapping(document).get("content"))))

    def message(self) -> Message:
        parsed = Message("agent")
        for index, block in sorted(self._blocks.items()):
            written = "".join(self._pieces.get(index, ()))
            for name in ("text", "thinking"):
                if block.get("type") == name and written:
                    block = {**block, name: f"{block.get(name) or ''}{written}"}
            if str(block.get("type")).endswith("tool_use") and written:
                block = {**block, "input": as_arguments(written)}
            _take_block(parsed, block)
        return parsed


READER = ApiReader(_messages, _Answer)
