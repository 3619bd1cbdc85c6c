"""The events that OpenHands prints with `openhands --headless --json`, among lines for a terminal.

Each call of a tool is an event. The calls of one answer have the same response id. The log has no
usage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from labledger.records import JsonObject
from labledger.trajectories.atif import Step
from labledger.trajectories.drafts import Draft, OpenDrafts, content_text, name_of
from labledger.trajectories.json_reading import (
    NO_OBJECT,
    LogFacts,
    as_arguments,
    member,
    read_lines,
    text_time,
)

_SILENT = ("ConversationStateUpdateEvent", "PauseEvent", "TokenEvent", "LLMCompletionLogEvent")
"""Events about the program itself."""


def read(file: BinaryIO, facts: LogFacts) -> Iterator[Step]:
    """Yield the steps of a log."""
    drafts = OpenDrafts()
    for line in read_lines(file, facts):
        match line.get("kind"):
            case "MessageEvent" | "SystemPromptEvent":
                yield from drafts.add(_message(line))
            case "ActionEvent":
                yield from _take_action(line, drafts)
            case "ObservationEvent" | "UserRejectObservation" | "AgentErrorEvent":
                yield from _take_observation(line, drafts)
            case "ConversationErrorEvent":
                facts.failure = name_of(line.get("detail")) or name_of(line.get("code"))
            case kind if kind not in _SILENT:
                facts.unread[str(kind)[:60]] += 1
    # Ignore its lines for a terminal.
    facts.unread.pop(NO_OBJECT, None)
    yield from drafts.end()


def _message(line: JsonObject) -> Draft:
    source = line.get("source")
    draft = Draft(
        "agent" if source == "agent" else "user", timestamp=text_time(line.get("timestamp"))
    )
    if line.get("kind") == "SystemPromptEvent":
        draft.source = "system"
        draft.say(content_text(line.get("system_prompt")))
    message = line.get("llm_message")
    draft.think(member(message, "reasoning_content"))
    draft.say(content_text(member(message, "content")))
    return draft


def _take_action(line: JsonObject, drafts: OpenDrafts) -> Iterator[Step]:
    key = name_of(line.get("llm_response_id"))
    draft = drafts.with_key(key)
    if draft is None:
        draft = Draft("agent", key, text_time(line.get("timestamp")), llm_call_count=1)
        yield from drafts.add(draft)
    draft.think(line.get("reasoning_content"))
    draft.say(content_text(line.get("thought")))
    call = line.get("tool_call")
    arguments = as_arguments(member(call, "arguments"))
    draft.call(line.get("tool_call_id"), line.get("tool_name"), arguments)


def _take_observation(line: JsonObject, drafts: OpenDrafts) -> Iterator[Step]:
    observation = line.get("observation")
    content = content_text(member(observation, "content")) or content_text(line.get("error"))
    content = content or content_text(line.get("rejection_reason"))
    extra: JsonObject = {}
    if member(observation, "is_error") is True or line.get("kind") == "AgentErrorEvent":
        extra["is_error"] = True
    if isinstance(status := member(observation, "exit_code"), int):
        extra["exit_code"] = status
    if not drafts.result(line.get("tool_call_id"), content, extra):
        draft = Draft("system", timestamp=text_time(line.get("timestamp")))
        draft.result(line.get("tool_call_id"), content, extra)
        yield from drafts.add(draft)
