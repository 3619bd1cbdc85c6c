"""The lines that Claude Code and Qwen Code print with `--output-format stream-json`.

An answer of the model has several lines with one message id: reasoning, text and each call. Claude
Code prints the usage from the beginning of an answer, which does not count the answer's tokens.
They are left out unless the line says why the answer ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from labledger.records import JsonObject
from labledger.trajectories.atif import FinalMetrics, Metrics, Step
from labledger.trajectories.drafts import Draft, OpenDrafts, content_text, name_of
from labledger.trajectories.json_reading import (
    LogFacts,
    member,
    money,
    objects,
    read_lines,
    text_time,
    whole,
)


def read(file: BinaryIO, facts: LogFacts) -> Iterator[Step]:
    """Yield the steps of a log."""
    drafts = OpenDrafts()
    for line in read_lines(file, facts):
        match line.get("type"):
            case "assistant":
                yield from _take_answer(line, drafts)
            case "user":
                yield from _take_user(line, drafts)
            case "system" if line.get("subtype") == "init":
                facts.session_id = name_of(line.get("session_id"))
                facts.model = name_of(line.get("model"))
                version = line.get("claude_code_version") or line.get("qwen_code_version")
                facts.version = name_of(version)
            case "system" if line.get("subtype") == "task_notification":
                yield from _take_task(line, drafts)
            case "result":
                _take_result(line, facts)
            case kind:
                facts.unread[str(kind)[:60]] += 1
    yield from drafts.end()


def _take_answer(line: JsonObject, drafts: OpenDrafts) -> Iterator[Step]:
    message = member(line, "message")
    key = name_of(member(message, "id"))
    draft = drafts.with_key(key)
    if draft is None:
        draft = Draft("agent", key, text_time(line.get("timestamp")), llm_call_count=1)
        draft.model_name = name_of(member(message, "model"))
        draft.extra = _names(line, "request_id", "parent_tool_use_id")
        yield from drafts.add(draft)
    draft.metrics = _metrics(message) or draft.metrics
    content = member(message, "content")
    if isinstance(content, str):
        draft.say(content)
    for block in objects(content):
        match block.get("type"):
            case "thinking" | "redacted_thinking":
                draft.think(block.get("thinking", ""))
            case "tool_use" | "server_tool_use":
                draft.call(block.get("id"), block.get("name"), block.get("input"))
            case _:
                draft.say(content_text(block))


def _take_user(line: JsonObject, drafts: OpenDrafts) -> Iterator[Step]:
    content = member(line, "message", "content")
    draft = Draft("user", timestamp=text_time(line.get("timestamp")))
    draft.extra = _names(line, "parent_tool_use_id")
    if isinstance(content, str):
        draft.say(content)
    for block in objects(content):
        if block.get("type") != "tool_result":
            draft.say(content_text(block))
            continue
        extra = {"is_error": True} if block.get("is_error") is True else {}
        call, text = block.get("tool_use_id"), content_text(block.get("content"))
        if not drafts.result(call, text, extra):
            draft.result(call, text, extra)
    if not draft.is_empty:
        yield from drafts.add(draft)


def _take_task(line: JsonObject, drafts: OpenDrafts) -> Iterator[Step]:
    """Add the answer of a background subagent, whose call has already returned."""
    call, status = name_of(line.get("tool_use_id")), name_of(line.get("status"))
    answer = content_text(line.get("result")) or content_text(line.get("summary"))
    extra: JsonObject = {} if status in (None, "completed") else {"status": status}
    if not drafts.result(call, answer, extra):
        draft = Draft("system", timestamp=text_time(line.get("timestamp")))
        draft.result(call, answer, extra)
        yield from drafts.add(draft)


def _metrics(message: Any) -> Metrics | None:
    usage = member(message, "usage")
    request = whole(member(usage, "input_tokens"))
    if request is None:
        return None
    cached = whole(member(usage, "cache_read_input_tokens")) or 0
    written = whole(member(usage, "cache_creation_input_tokens")) or 0
    output = whole(member(usage, "output_tokens"))
    # Qwen Code counts like OpenAI: cached tokens included, after the answer has ended.
    if whole(member(usage, "total_tokens")) is None:
        request += cached + written
        output = output if member(message, "stop_reason") else None
    return Metrics(request, output, cached, extra={"cache_write": written} if written else None)


def _take_result(line: JsonObject, facts: LogFacts) -> None:
    metrics = _metrics({**line, "stop_reason": "ended"}) or Metrics()
    facts.claimed = FinalMetrics(
        total_prompt_tokens=metrics.prompt_tokens,
        total_completion_tokens=metrics.completion_tokens,
        total_cached_tokens=metrics.cached_tokens,
        total_cost_usd=money(line.get("total_cost_usd")),
    )
    if line.get("is_error") is True:
        facts.failure = name_of(line.get("result")) or name_of(line.get("subtype"))


def _names(line: JsonObject, *names: str) -> JsonObject:
    names_found = {name: name_of(line.get(name)) for name in names}
    return {name: value for name, value in names_found.items() if value is not None}
