"""The lines that opencode prints with `opencode run --format=json`.

The parts of one answer have one message id. `step_finish` has its usage: the request's tokens
without cached ones, and the answer's tokens without reasoning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from labledger.trajectories.atif import FinalMetrics, Metrics, Step
from labledger.trajectories.drafts import Draft, OpenDrafts, content_text, name_of
from labledger.trajectories.json_reading import (
    LogFacts,
    member,
    money,
    read_lines,
    text_time,
    whole,
)

_PARTS = ("step_start", "text", "reasoning", "tool_use", "step_finish")


def read(file: BinaryIO, facts: LogFacts) -> Iterator[Step]:
    """Yield the steps of a log."""
    drafts = OpenDrafts()
    totals: list[Metrics] = []
    for line in read_lines(file, facts):
        kind, part = line.get("type"), line.get("part")
        if kind == "error":
            failure = member(line, "error", "data", "message") or member(line, "error", "name")
            facts.failure = name_of(failure)
            continue
        if kind not in _PARTS:
            facts.unread[str(kind)[:60]] += 1
            continue
        facts.session_id = facts.session_id or name_of(line.get("sessionID"))
        key = name_of(member(part, "messageID"))
        draft = drafts.with_key(key)
        if draft is None:
            draft = Draft("agent", key, text_time(line.get("timestamp")), llm_call_count=1)
            yield from drafts.add(draft)
        _take_part(str(kind), part, draft)
        if kind == "step_finish" and draft.metrics is not None:
            totals = [_together([*totals, draft.metrics])]
    if totals:
        [total] = totals
        facts.claimed = FinalMetrics(
            total.prompt_tokens, total.completion_tokens, total.cached_tokens, total.cost_usd
        )
    yield from drafts.end()


def _take_part(kind: str, part: Any, draft: Draft) -> None:
    match kind:
        case "text":
            draft.say(member(part, "text"))
        case "reasoning":
            draft.think(member(part, "text"))
        case "tool_use":
            state = member(part, "state")
            draft.call(member(part, "callID"), member(part, "tool"), member(state, "input"))
            status = name_of(member(state, "status"))
            extra = {} if status == "completed" else {"status": status}
            content = member(state, "output") or member(state, "error")
            draft.result(member(part, "callID"), content_text(content), extra)
        case "step_finish":
            draft.metrics = _metrics(part)


def _metrics(part: Any) -> Metrics | None:
    tokens = member(part, "tokens")
    read, written = (whole(member(tokens, "cache", name)) or 0 for name in ("read", "write"))
    request, output = (whole(member(tokens, name)) for name in ("input", "output"))
    if request is None or output is None:
        return None
    reasoning = whole(member(tokens, "reasoning")) or 0
    extra = {"cache_write": written, "reasoning_tokens": reasoning}
    return Metrics(
        request + read + written,
        output + reasoning,
        read,
        money(member(part, "cost")),
        extra={name: count for name, count in extra.items() if count} or None,
    )


def _together(metrics: list[Metrics]) -> Metrics:
    return Metrics(
        sum(usage.prompt_tokens or 0 for usage in metrics),
        sum(usage.completion_tokens or 0 for usage in metrics),
        sum(usage.cached_tokens or 0 for usage in metrics),
        sum(usage.cost_usd or 0 for usage in metrics),
    )
