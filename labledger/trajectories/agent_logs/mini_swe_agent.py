"""The trajectory file of mini-swe-agent, formats `mini-swe-agent-1` and `-1.1`.

It is one document with the messages of the conversation, in the form of OpenAI's chats. Each answer
has the provider's answer beside it, with its usage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from labledger.errors import MalformedJson
from labledger.records import JsonObject
from labledger.trajectories.atif import FinalMetrics, Metrics, Step
from labledger.trajectories.drafts import Draft, OpenDrafts, content_text, name_of
from labledger.trajectories.json_reading import (
    LogFacts,
    as_arguments,
    member,
    money,
    objects,
    read_members,
    text_time,
    whole,
)


def read(file: BinaryIO, facts: LogFacts) -> Iterator[Step]:
    """Yield the steps of a trajectory file."""
    drafts = OpenDrafts()
    try:
        for name, value in read_members(file, "messages"):
            if name == "messages" and isinstance(value, dict):
                yield from _take_message(value, drafts, facts)
            elif name == "info":
                _take_info(value, facts)
    except MalformedJson as error:
        facts.cuts.append(f"the rest was not read: the log {error}"[:200])
    yield from drafts.end()


def _take_message(message: JsonObject, drafts: OpenDrafts, facts: LogFacts) -> Iterator[Step]:
    role, at = message.get("role"), text_time(member(message, "extra", "timestamp"))
    match role:
        case "assistant":
            yield from drafts.add(_answer(message, at))
        case "tool":
            call, content = message.get("tool_call_id"), content_text(message.get("content"))
            status = member(message, "extra", "returncode")
            extra = {"exit_code": status} if isinstance(status, int) else {}
            if not drafts.result(call, content, extra):
                draft = Draft("system", timestamp=at)
                draft.result(call, content, extra)
                yield from drafts.add(draft)
        case "user" | "system":
            draft = Draft(str(role), timestamp=at)
            draft.say(content_text(message.get("content")))
            yield from drafts.add(draft)
        case "exit":
            pass
        case _:
            facts.unread[f"the role {str(role)[:60]}"] += 1


def _answer(message: JsonObject, at: str | None) -> Draft:
    response = member(message, "extra", "response")
    draft = Draft("agent", timestamp=at, llm_call_count=1)
    draft.model_name = name_of(member(response, "model"))
    draft.think(message.get("reasoning_content"))
    draft.say(content_text(message.get("content")))
    calls = objects(message.get("tool_calls"))
    for call in calls:
        function = call.get("function")
        arguments = as_arguments(member(function, "arguments"))
        draft.call(call.get("id"), member(function, "name"), arguments)
    if not calls:
        # Without tools, its commands are in the text.
        for action in objects(member(message, "extra", "actions")):
            draft.call(None, "bash", {"command": action.get("command")})
    usage = member(response, "usage")
    draft.metrics = Metrics(
        prompt_tokens=whole(member(usage, "prompt_tokens")),
        completion_tokens=whole(member(usage, "completion_tokens")),
        cached_tokens=whole(member(usage, "prompt_tokens_details", "cached_tokens")),
        cost_usd=money(member(message, "extra", "cost")),
    )
    return draft


def _take_info(info: Any, facts: LogFacts) -> None:
    facts.version = name_of(member(info, "mini_version"))
    facts.model = name_of(member(info, "config", "model", "model_name"))
    cost = money(member(info, "model_stats", "instance_cost"))
    facts.claimed = FinalMetrics(total_cost_usd=cost)
    status = name_of(member(info, "exit_status"))
    facts.failure = None if status == "Submitted" else status
