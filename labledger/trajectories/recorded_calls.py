"""Make steps from recorded calls. Each answer is a step, with the usage that the gateway counted.

A request repeats its conversation. It continues the conversation whose last answer it contains, and
only the messages after that answer are new. Other requests, such as of subagents or for summaries,
begin new conversations, whose number is in `extra.conversation`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from labledger.gateway.families.event_stream import EventReader
from labledger.gateway.messages.recordings import Recorded
from labledger.records import JsonObject
from labledger.records.canonical_json import sha256_hex
from labledger.records.model_calls import Api, ModelCall, Usage
from labledger.trajectories.atif import Metrics, Step
from labledger.trajectories.drafts import Draft, OpenDrafts
from labledger.trajectories.json_reading import LogFacts, parse
from labledger.trajectories.recorded import READERS
from labledger.trajectories.recorded.message import Message, joined

_MAX_RECORD = 32 << 20
"""The most bytes of the record of one call."""
TOO_LARGE = "a record that is too large"
"""The name of records with more than `_MAX_RECORD` bytes, in `LogFacts.unread`."""
_MAX_KNOWN = 10_000
"""The most answers that are recognized in later requests."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One recorded call."""

    call: ModelCall
    request: JsonObject
    """The body of the request."""
    answer: Iterable[bytes]
    """The body of the answer, in pieces."""
    streamed: bool
    """Whether the answer is a stream of events."""


@dataclass(slots=True)
class _Conversation:
    number: int
    begin: str
    """The digest of its beginning."""
    last: tuple[str, ...] = ()
    """The signatures of its last answer, or of its beginning."""
    seen: int = 0
    """The number of messages in its last request."""
    answered: bool = False
    """Whether that request was answered."""


def read_record(
    folder: Path, calls: Iterable[ModelCall], facts: LogFacts
) -> Iterator[RecordedCall]:
    """Yield the recorded calls in a folder, in order.

    Counts records that are too large or not valid in `facts`.
    """
    by_number = {call.call: call for call in calls}
    for path in sorted(folder.glob("*.json")):
        if path.stat().st_size > _MAX_RECORD:
            facts.unread[TOO_LARGE] += 1
            continue
        try:
            recorded = Recorded.from_json(json.loads(path.read_bytes()))
            call = by_number[recorded.call]
        except (ValueError, TypeError, KeyError, RecursionError):
            facts.unread["a record without a call"] += 1
            continue
        kinds = [value for name, value in recorded.headers if name.lower() == "content-type"]
        streamed = any("event-stream" in kind.lower() for kind in kinds)
        yield RecordedCall(call, recorded.original_body, [recorded.body_bytes], streamed)


def read(calls: Iterable[RecordedCall], facts: LogFacts) -> Iterator[Step]:
    """Yield the steps of an attempt's calls, which must be in order."""
    reader = _Reader(facts)
    for recorded in calls:
        yield from reader.take(recorded)
    yield from reader.drafts.end()


class _Reader:
    def __init__(self, facts: LogFacts) -> None:
        self.drafts = OpenDrafts()
        self._facts = facts
        self._known: dict[str, _Conversation] = {}
        """The conversation of each answer, and of each beginning, by its signature."""
        self._count = 0

    def take(self, recorded: RecordedCall) -> Iterator[Step]:
        try:
            api = READERS[Api(recorded.call.api)]
        except (ValueError, KeyError):
            self._facts.unread[f"a call of the API {recorded.call.api[:60]}"] += 1
            return
        messages = joined(api.messages(recorded.request))
        conversation, new = self._place(messages)
        for message in new:
            yield from self._take_message(message, conversation, recorded.call.started_at)
        answer = _answer(recorded, self._facts)
        if answer is None or answer.is_empty:
            self._facts.unread["a call without an answer"] += 1
            conversation.seen, conversation.answered = len(messages), False
            return
        by_begin = (conversation.begin + signature for signature in answer.signatures)
        self._remember((*by_begin, *answer.signatures), conversation)
        conversation.seen, conversation.answered = len(messages), True
        self._facts.model = self._facts.model or recorded.call.model
        yield from self.drafts.add(_draft(recorded.call, answer, conversation.number))

    def _place(self, messages: list[Message]) -> tuple[_Conversation, list[Message]]:
        """Return the conversation that a request belongs to, and its new messages."""
        at = max(_answers(messages), default=-1)
        begin = _digest(messages[: next(_answers(messages), len(messages))])
        last_signatures = messages[at].signatures if at >= 0 else ()
        # The beginning distinguishes conversations with equal answers.
        signatures = (
            (*(begin + signature for signature in last_signatures), *last_signatures)
            if last_signatures
            else (begin,)
        )
        known = [self._known[signature] for signature in signatures if signature in self._known]
        for conversation in known:
            if set(signatures) & set(conversation.last) and (at >= 0 or not conversation.answered):
                # An unanswered request is sent again.
                seen = at + 1 if conversation.answered else max(at + 1, conversation.seen)
                return conversation, messages[seen:]
        self._count += 1
        conversation = _Conversation(self._count, begin)
        self._remember(signatures, conversation)
        return conversation, messages[at + 1 :] if known and at >= 0 else messages

    def _remember(self, signatures: tuple[str, ...], conversation: _Conversation) -> None:
        while len(self._known) >= _MAX_KNOWN:
            self._known.pop(next(iter(self._known)))
        conversation.last = signatures
        self._known |= dict.fromkeys(signatures, conversation)

    def _take_message(
        self, message: Message, conversation: _Conversation, at: str
    ) -> Iterator[Step]:
        draft = Draft(message.source, timestamp=at)
        draft.extra = _extra(conversation.number)
        if message.source == "agent":
            # The agent itself wrote this message of the model.
            draft.llm_call_count = 0
            message.reasoning = []
        message.fill(draft)
        for returned in message.returned:
            extra: JsonObject = {"is_error": True} if returned.is_error else {}
            if not self.drafts.result(
                returned.call_id, returned.content, extra, name=returned.name
            ):
                draft.result(returned.call_id, returned.content, extra)
        if not draft.is_empty:
            yield from self.drafts.add(draft)


def _answers(messages: list[Message]) -> Iterator[int]:
    """Return the indexes of the model's answers."""
    return (at for at, message in enumerate(messages) if message.source == "agent")


def _digest(messages: list[Message]) -> str:
    texts = repr([(message.source, message.texts) for message in messages])
    return sha256_hex(texts.encode("utf-8", "replace"))


def _answer(recorded: RecordedCall, facts: LogFacts) -> Message | None:
    """Return the model's answer; None without one, and for an error."""
    if recorded.call.status is not None and recorded.call.status >= 400:
        return None
    parts = READERS[Api(recorded.call.api)].answer()
    if not recorded.streamed:
        document = parse(b"".join(recorded.answer))
        if document is None:
            facts.unread["an answer that is no JSON"] += 1
        parts.take_whole(document)
        return parts.message()
    events = EventReader()
    for event in chain.from_iterable(map(events.feed, recorded.answer)):
        parts.take_event(event)
    return parts.message()


def _draft(call: ModelCall, message: Message, conversation: int) -> Draft:
    draft = Draft("agent", timestamp=call.started_at, llm_call_count=1)
    draft.model_name = call.model_served or call.model
    draft.metrics = metrics_of(call.usage)
    draft.extra = {"call": call.call, "provider": call.provider, **_extra(conversation)}
    if call.duration_ms is not None:
        draft.extra["duration_ms"] = call.duration_ms
    message.fill(draft)
    return draft


def _extra(conversation: int) -> JsonObject:
    return {"conversation": conversation} if conversation > 1 else {}


def metrics_of(usage: Usage | None) -> Metrics | None:
    """Return the metrics of counted usage; None if it is unknown."""
    if usage is None:
        return None
    extra = {
        "cache_write": usage.cache_write + usage.cache_write_1h,
        "reasoning_tokens": usage.reasoning,
    }
    return Metrics(
        usage.request,
        usage.output,
        usage.cache_read,
        extra={name: count for name, count in extra.items() if count} or None,
    )


class MatchedCalls:
    """The counted calls of an attempt that are not matched to a step of the agent's log yet.

    A call matches the step with its request id, or else the next step that claims the same number
    of request tokens.
    """

    def __init__(self, calls: Sequence[ModelCall]) -> None:
        self._left = [call for call in calls if call.usage is not None]

    def with_usage(self, step: Step) -> Step:
        """Return a step with the usage of its call, or unchanged without a matching call."""
        call = self._matching(step)
        counted = None if call is None else metrics_of(call.usage)
        if call is None or counted is None:
            return step
        self._left = self._left[self._left.index(call) + 1 :]
        extra: JsonObject = {**(step.extra or {}), "call": call.call}
        if step.metrics is not None and step.metrics.cost_usd is not None:
            extra["claimed_cost_usd"] = step.metrics.cost_usd
        return replace(step, metrics=counted, extra=extra)

    def _matching(self, step: Step) -> ModelCall | None:
        request = (step.extra or {}).get("request_id")
        if request is not None:
            for call in self._left:
                if call.request_id == request:
                    return call
        claimed = step.metrics or Metrics()
        if step.source != "agent" or claimed.prompt_tokens is None:
            return None
        return next(
            (c for c in self._left if c.usage and c.usage.request == claimed.prompt_tokens), None
        )
