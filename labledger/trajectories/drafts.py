"""Steps while they are read: an agent's texts, tool calls and their results.

A log has a step on several lines, and results of calls later. A draft is open until its calls have
results and another draft has begun. The number and size of open drafts are limited. A later result
becomes a separate step, which names its call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from labledger.records import JsonObject
from labledger.trajectories.atif import Metrics, Observation, Step, StepResult, ToolCall

MAX_OPEN = 200
"""The most drafts that are open at once."""
MAX_TEXT = 256 << 10
"""The most characters of one text that are kept."""
MAX_DRAFT = 2 << 20
"""The most characters of one step."""
MAX_NAME = 500
"""The most characters of a name, an id or a time that are kept."""
MAX_OPEN_SIZE = 16 * MAX_DRAFT
"""The most characters of all open drafts together."""
_MAX_DEPTH = 32
LATE_CALL = "of_call"
"""The member of a result's `extra` that names its call in an earlier step."""
_MIN_SIZE = 500
"""The least that a call or a result counts, in characters. Even an empty one takes memory."""


@dataclass(slots=True)
class Draft:
    """A step that may still grow."""

    source: str
    key: Any = None
    """The common key of its lines; None if it has one line."""
    timestamp: str | None = None
    model_name: str | None = None
    metrics: Metrics | None = None
    llm_call_count: int | None = None
    is_copied_context: bool | None = None
    extra: JsonObject = field(default_factory=dict)
    cut: int = 0
    """The number of characters that were left out."""
    _texts: list[list[str]] = field(default_factory=list)
    """The pieces of each text."""
    _reasoning: list[list[str]] = field(default_factory=list)
    _calls: dict[str, ToolCall] = field(default_factory=dict)
    _results: list[StepResult] = field(default_factory=list)
    _size: int = 0

    def say(self, text: Any, *, joined: bool = False) -> None:
        """Add text to the message, as a new paragraph or `joined` to the last one."""
        _append(self._texts, self._kept(text), joined)

    def think(self, text: Any, *, joined: bool = False) -> None:
        """Add text to the reasoning."""
        _append(self._reasoning, self._kept(text), joined)

    def call(
        self, call_id: Any, name: Any, arguments: Any, extra: JsonObject | None = None
    ) -> None:
        """Add a tool call. Arguments that are not an object become the member `input`."""
        if self._is_full():
            return
        call_id = name_of(call_id) or f"call-{len(self._calls) + 1}"
        given = arguments if isinstance(arguments, dict) else {"input": arguments}
        kept = self._kept_value(given if arguments is not None else {})
        self._calls[call_id] = ToolCall(call_id, name_of(name) or "unknown", kept, extra or None)

    def result(self, call_id: Any, content: Any, extra: JsonObject | None = None) -> None:
        """Add the result of a call, or an observation without a call."""
        if self._is_full():
            return
        of_call = name_of(call_id)
        known = of_call if of_call in self._calls else None
        if known is None and of_call is not None:
            extra = {**(extra or {}), LATE_CALL: of_call}
        self._results.append(StepResult(known, self._kept(content), extra=extra or None))

    @property
    def size(self) -> int:
        """The approximate number of characters."""
        return self._size

    def has_call(self, call_id: Any) -> bool:
        """Return whether the draft contains a call with this id."""
        return name_of(call_id) in self._calls

    def open_call(self, name: str) -> str | None:
        """Return the id of a tool's first call without a result; None if there is none."""
        answered = {result.source_call_id for result in self._results}
        calls = (call for call in self._calls.values() if call.tool_call_id not in answered)
        return next((call.tool_call_id for call in calls if call.function_name == name), None)

    @property
    def is_answered(self) -> bool:
        """Whether each of its calls has a result."""
        return not self._calls.keys() - {result.source_call_id for result in self._results}

    @property
    def is_empty(self) -> bool:
        """Whether it has no text, call or result."""
        return not (self._texts or self._reasoning or self._calls or self._results)

    def step(self) -> Step:
        """Return the draft as a step."""
        is_agent = self.source == "agent"
        extra = {**self.extra, **({"cut_characters": self.cut} if self.cut else {})}
        return Step(
            timestamp=self.timestamp,
            source=self.source,
            model_name=self.model_name if is_agent else None,
            message=_paragraphs(self._texts),
            reasoning_content=_paragraphs(self._reasoning) or None if is_agent else None,
            tool_calls=tuple(self._calls.values()) or None if is_agent else None,
            observation=Observation(tuple(self._results)) if self._results else None,
            metrics=self.metrics if is_agent else None,
            llm_call_count=self.llm_call_count,
            is_copied_context=self.is_copied_context,
            extra=extra or None,
        )

    def _is_full(self) -> bool:
        """Count a new call or result, and return whether the draft has no room for it."""
        self._size += _MIN_SIZE
        if self._size >= MAX_DRAFT:
            self.cut += 1
        return self._size >= MAX_DRAFT

    def _kept(self, value: Any) -> str:
        """Return a text cut to the limits."""
        text = value if isinstance(value, str) else content_text(value)
        room = max(0, min(MAX_TEXT, MAX_DRAFT - self._size))
        self.cut += max(0, len(text) - room)
        text = text[:room]
        self._size += len(text)
        return text

    def _kept_value(self, value: Any, depth: int = 0) -> Any:
        """Return a JSON value with its texts cut to the limits."""
        self._size += 8
        if isinstance(value, str):
            return self._kept(value)
        if isinstance(value, dict | list) and (depth >= _MAX_DEPTH or self._size >= MAX_DRAFT):
            self.cut += 1
            return "..."
        if isinstance(value, dict):
            return {
                self._kept(key): self._kept_value(item, depth + 1) for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._kept_value(item, depth + 1) for item in value]
        return value


class OpenDrafts:
    """The open drafts of a log, in their order."""

    def __init__(self) -> None:
        self._open: deque[Draft] = deque()

    def add(self, draft: Draft) -> Iterator[Step]:
        """Open another draft, and yield the steps of finished drafts."""
        self._open.append(draft)
        while len(self._open) > 1 and (self._is_full() or self._open[0].is_answered):
            yield from self._close()

    def _is_full(self) -> bool:
        return len(self._open) > MAX_OPEN or sum(d.size for d in self._open) > MAX_OPEN_SIZE

    def with_key(self, key: Any) -> Draft | None:
        """Return the newest open draft with a key; None without one."""
        return next((d for d in reversed(self._open) if d.key is not None and d.key == key), None)

    def result(
        self, call_id: Any, content: Any, extra: JsonObject | None = None, name: str | None = None
    ) -> bool:
        """Add a result to the draft with its call. Return False if no open draft has the call.

        `name` is the name of the tool, which identifies the call if its id is unknown.
        """
        candidates = [(draft, call_id) for draft in self._open if draft.has_call(call_id)]
        if not candidates and name is not None:
            candidates = [(draft, draft.open_call(name)) for draft in self._open]
        draft, of_call = next(
            (candidate for candidate in reversed(candidates) if candidate[1]), (None, None)
        )
        if draft is None:
            return False
        draft.result(of_call, content, extra)
        return True

    def end(self) -> Iterator[Step]:
        """Yield the steps of all remaining drafts."""
        while self._open:
            yield from self._close()

    def _close(self) -> Iterator[Step]:
        draft = self._open.popleft()
        if not draft.is_empty:
            yield draft.step()


def name_of(value: Any) -> str | None:
    """Return a name, an id or a time as text, cut to `MAX_NAME`; None for other values."""
    if value is None or isinstance(value, dict | list):
        return None
    return str(value)[:MAX_NAME] or None


def content_text(value: Any, depth: int = 0) -> str:
    """Return the content of a message as text. It may be text, or blocks of different types.

    `depth` is the depth within other content.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | list):
        return str(value)
    if depth >= _MAX_DEPTH:
        return "..."
    if isinstance(value, list):
        texts = (content_text(item, depth + 1) for item in value)
        return "\n".join(text for text in texts if text)
    for name in ("text", "content", "output", "thinking", "refusal"):
        if isinstance(value.get(name), str | list):
            return content_text(value[name], depth + 1)
    kind = value.get("type")
    return f"[{kind}]" if isinstance(kind, str) else f"[{', '.join(map(str, list(value)[:5]))}]"


def _append(texts: list[list[str]], text: str, joined: bool) -> None:
    if joined and texts:
        texts[-1].append(text)
    elif text:
        texts.append([text])


def _paragraphs(texts: list[list[str]]) -> str:
    return "\n\n".join("".join(pieces) for pieces in texts)
