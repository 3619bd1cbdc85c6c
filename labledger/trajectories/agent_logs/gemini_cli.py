"""The lines that Gemini CLI prints with `--output-format stream-json`.

Text comes in pieces. All text and calls up to the next result of a tool are one answer. Usage is
known only for all answers together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from labledger.records import JsonObject
from labledger.trajectories.atif import FinalMetrics, Step
from labledger.trajectories.drafts import Draft, OpenDrafts, content_text, name_of
from labledger.trajectories.json_reading import (
    LogFacts,
    member,
    read_lines,
    text_time,
    whole,
)


def read(file: BinaryIO, facts: LogFacts) -> Iterator[Step]:
    """Yield the steps of a log."""
    drafts = OpenDrafts()
    answer = 0
    """The number of the current answer, which joins its lines."""
    for line in read_lines(file, facts):
        at = text_time(line.get("timestamp"))
        match line.get("type"):
            case "message" if line.get("role") == "assistant":
                draft = drafts.with_key(answer) or Draft("agent", answer, at)
                draft.say(line.get("content"), joined=line.get("delta") is True)
                yield from _opened(draft, drafts)
            case "tool_use":
                draft = drafts.with_key(answer) or Draft("agent", answer, at)
                draft.call(line.get("tool_id"), line.get("tool_name"), line.get("parameters"))
                yield from _opened(draft, drafts)
            case "tool_result":
                answer += 1
                yield from _take_result(line, drafts)
            case "message":
                answer += 1
                draft = Draft("user", timestamp=at)
                draft.say(line.get("content"))
                yield from drafts.add(draft)
            case "error":
                draft = Draft("system", timestamp=at)
                draft.say(line.get("message"))
                yield from drafts.add(draft)
            case "init":
                facts.session_id, facts.model = name_of(line.get("session_id")), None
                facts.model = name_of(line.get("model"))
            case "result":
                _take_end(line, facts)
            case kind:
                facts.unread[str(kind)[:60]] += 1
    yield from drafts.end()


def _opened(draft: Draft, drafts: OpenDrafts) -> Iterator[Step]:
    if drafts.with_key(draft.key) is not draft:
        yield from drafts.add(draft)


def _take_result(line: JsonObject, drafts: OpenDrafts) -> Iterator[Step]:
    status, failure = line.get("status"), member(line, "error", "message")
    extra = {} if status == "success" else {"status": str(status)[:60]}
    content = content_text(line.get("output")) or content_text(failure)
    if not drafts.result(line.get("tool_id"), content, extra):
        draft = Draft("system", timestamp=text_time(line.get("timestamp")))
        draft.result(line.get("tool_id"), content, extra)
        yield from drafts.add(draft)


def _take_end(line: JsonObject, facts: LogFacts) -> None:
    stats = line.get("stats")
    facts.claimed = FinalMetrics(
        total_prompt_tokens=whole(member(stats, "input_tokens")),
        total_completion_tokens=whole(member(stats, "output_tokens")),
        total_cached_tokens=whole(member(stats, "cached")),
    )
    if line.get("status") != "success":
        facts.failure = name_of(member(line, "error", "message")) or name_of(line.get("status"))
