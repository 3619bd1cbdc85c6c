"""The common form of all APIs: the messages of a request, and the answer to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from labledger.gateway.families.event_stream import StreamEvent
from labledger.records import JsonObject
from labledger.trajectories.drafts import Draft, name_of


@dataclass(frozen=True, slots=True)
class TrajectoryCall:
    """A tool call of the model."""

    id: str | None
    name: Any
    arguments: Any


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a call, as the agent sent it to the model."""

    call_id: str | None
    content: Any
    name: str | None = None
    """The tool's name, for an API without ids of calls."""
    is_error: bool = False


@dataclass(slots=True)
class Message:
    """One message of a conversation."""

    source: str
    """`system`, `user` or `agent`."""
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[TrajectoryCall] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)

    @property
    def signatures(self) -> tuple[str, ...]:
        """Digests that identify an answer in later requests: of its call ids, and of its content.

        Agents may change spaces in texts, and add ids to calls without one.
        """
        text = "".join("".join(self.texts).split())
        calls = [[str(call.name), repr(_sorted(call.arguments))] for call in self.calls]
        ids = sorted(call.id for call in self.calls if call.id)
        digest = hashlib.sha256(repr([text, calls]).encode("utf-8", "replace")).hexdigest()
        by_ids = hashlib.sha256(repr(ids).encode("utf-8", "replace")).hexdigest()
        return (by_ids, digest) if ids else (digest,)

    @property
    def is_empty(self) -> bool:
        """Whether it has no content."""
        return not (self.texts or self.reasoning or self.calls or self.returned)

    def fill(self, draft: Draft) -> None:
        """Add reasoning, texts and calls to a draft."""
        for text in self.reasoning:
            draft.think(text)
        for text in self.texts:
            draft.say(text)
        for call in self.calls:
            draft.call(call.id, call.name, call.arguments)


class AnswerParts(Protocol):
    """Assembles an answer."""

    def take_event(self, event: StreamEvent) -> None:
        """Read an event of a stream."""

    def take_whole(self, document: Any) -> None:
        """Read an answer that is one document."""

    def message(self) -> Message:
        """Return the assembled answer."""


@dataclass(frozen=True, slots=True)
class ApiReader:
    """The readers of one API."""

    messages: Callable[[JsonObject], Iterator[Message]]
    """Yields the messages of a request's body."""
    answer: Callable[[], AnswerParts]


def joined(messages: Iterable[Message]) -> list[Message]:
    """Return messages without empty ones. Consecutive messages of the model become one."""
    together: list[Message] = []
    for message in messages:
        if message.is_empty:
            continue
        last = together[-1] if together else None
        if last is not None and last.source == message.source == "agent":
            last.texts += message.texts
            last.reasoning += message.reasoning
            last.calls += message.calls
        else:
            together.append(message)
    return together


def _sorted(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, dict) else value


def source_of(role: Any) -> str:
    """Return the source of a message with an API's role."""
    if role in ("assistant", "model"):
        return "agent"
    return "system" if role in ("system", "developer") else "user"


def id_of(value: Any) -> str | None:
    """Return an id, cut like the ids of drafts."""
    return name_of(value)
