"""The lines that Codex prints with `codex exec --json`.

Each item is one action of the agent. The log does not say which items belong to one answer of the
model, so each is a step. Usage is known only for a whole turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, BinaryIO

from labledger.records import JsonObject
from labledger.trajectories.atif import FinalMetrics, Step
from labledger.trajectories.drafts import MAX_OPEN, Draft, content_text, name_of
from labledger.trajectories.json_reading import LogFacts, member, read_lines, whole

_FACTS_OF_ITEM = ("id", "type", "status", "exit_code", "aggregated_output", "result", "error")
"""Members of an item that are not arguments of its call."""


def read(file: BinaryIO, facts: LogFacts) -> Iterator[Step]:
    """Yield the steps of a log."""
    begun: dict[str, list[Step]] = {}
    """The steps of unfinished items by id, which are yielded at the end of the log."""
    for line in read_lines(file, facts):
        kind, item = line.get("type"), member(line, "item")
        name = str(name_of(member(item, "id")))
        match kind:
            case "item.completed" if isinstance(item, dict):
                begun.pop(name, None)
                yield from _steps(item, facts)
            case "item.started" | "item.updated" if isinstance(item, dict):
                begun.pop(name, None)
                if len(begun) < MAX_OPEN:
                    begun[name] = list(_steps(item, facts))
            case "thread.started":
                facts.session_id = name_of(line.get("thread_id"))
            case "turn.completed":
                facts.claimed = _with_turn(facts.claimed, line.get("usage"))
            case "turn.failed" | "error":
                failure = member(line, "error", "message") or line.get("message")
                facts.failure = name_of(failure)
            case "turn.started":
                pass
            case _:
                facts.unread[str(kind)[:60]] += 1
    for steps in begun.values():
        yield from steps


def _steps(item: JsonObject, facts: LogFacts) -> Iterator[Step]:
    draft = Draft("agent")
    match item.get("type"):
        case "agent_message":
            draft.say(item.get("text"))
        case "reasoning":
            draft.think(item.get("text"))
        case "error":
            facts.unread["error"] += 1
            draft = Draft("system")
            draft.say(item.get("message"))
        case kind:
            _take_call(draft, str(kind), item)
    if not draft.is_empty:
        yield draft.step()


def _take_call(draft: Draft, kind: str, item: JsonObject) -> None:
    """Add an action of the agent as a call, and its outcome as the result."""
    arguments: Any = {key: value for key, value in item.items() if key not in _FACTS_OF_ITEM}
    name = kind
    if kind == "mcp_tool_call":
        name = f"{item.get('server')}.{item.get('tool')}"
        arguments = item.get("arguments")
    draft.call(item.get("id"), name, arguments)
    results = [item.get(name) for name in ("aggregated_output", "result", "error")]
    text = "\n".join(content_text(result) for result in results if result is not None)
    facts = {key: item[key] for key in ("exit_code", "status") if item.get(key) is not None}
    draft.result(item.get("id"), text, facts)


def _with_turn(claimed: FinalMetrics | None, usage: Any) -> FinalMetrics:
    """Return the figures of all turns so far."""
    before = claimed or FinalMetrics(0, 0, 0)
    return replace(
        before,
        total_prompt_tokens=_sum(before.total_prompt_tokens, member(usage, "input_tokens")),
        total_completion_tokens=_sum(
            before.total_completion_tokens, member(usage, "output_tokens")
        ),
        total_cached_tokens=_sum(before.total_cached_tokens, member(usage, "cached_input_tokens")),
    )


def _sum(before: int | None, more: Any) -> int | None:
    count = whole(more)
    return None if before is None or count is None else before + count
