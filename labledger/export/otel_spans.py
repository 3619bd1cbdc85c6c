"""Trajectories as spans of OpenTelemetry, by its conventions for generative AI.

A trial is a trace: a span for the agent, with spans for answers of models and calls of tools. Ids
are digests of the trial's ids, so every export makes the same trace. Output is OTLP, as JSON or to
an endpoint. This module needs the extra `otel`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, BinaryIO

from google.protobuf.json_format import MessageToDict
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from labledger import clock
from labledger.errors import LabLedgerError
from labledger.export.trajectories import StoredTrajectory, stored_trajectories
from labledger.ledger.database.connection import batched
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject
from labledger.trajectories.agent_document import AgentDocument
from labledger.trajectories.atif import Step, ToolCall, text_of
from labledger.trajectories.json_reading import text_time

CONVENTIONS = "1.44.0"
"""The version of the semantic conventions whose names are used."""
_SCHEMA_URL = f"https://opentelemetry.io/schemas/{CONVENTIONS}"
_BATCH = 100
"""How many spans one request has."""
_TOTALS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
_MAX_DURATION = 10_000_000_000
"""If an answer claims to have taken longer, in milliseconds, its duration is ignored."""
_MAX_NUMBER = 1 << 63
"""Attributes have 64 bits. Sums of agents' claims may need more."""
_MAX_TEXT = 64 << 10
"""How many characters of a message, of arguments or of a result an attribute has."""


def write_spans(reader: LedgerReader, run_id: str, out: BinaryIO) -> None:
    """Write the spans of a run as lines of OTLP JSON. Raises `LedgerError`."""

    for spans in batched(_spans(reader, run_id), _BATCH):
        request = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
        _write_ids_in_hex(request)
        out.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")


def send_spans(reader: LedgerReader, run_id: str, url: str) -> int:
    """Send the spans of a run to an endpoint such as ``http://127.0.0.1:4318/v1/traces``.

    Headers and certificates come from OpenTelemetry's own variables, such as
    `OTEL_EXPORTER_OTLP_HEADERS`. Returns the number of spans. Raises `LabLedgerError` if they were
    not accepted, and `LedgerError`.
    """

    exporter = OTLPSpanExporter(endpoint=url)
    count = 0
    try:
        for spans in batched(_spans(reader, run_id), _BATCH):
            if exporter.export(spans) is not SpanExportResult.SUCCESS:
                raise LabLedgerError(
                    f"{url} did not accept the spans of run {run_id}; {count:,} were sent before",
                    hint="see the receiver's log; the path of an endpoint ends in /v1/traces",
                )
            count += len(spans)
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return count


def _write_ids_in_hex(request: JsonObject) -> None:
    """Replace ids in Base64, which Protobuf's JSON has, by those in hex, which OTLP's JSON has."""
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
                    span[name] = base64.b64decode(span[name]).hex()


def _spans(reader: LedgerReader, run_id: str) -> Iterator[ReadableSpan]:
    resource = Resource({"service.name": "labledger", "labledger.run_id": run_id}, _SCHEMA_URL)
    for stored in stored_trajectories(reader, run_id):
        with reader.open_artifact(stored.sha256) as file:
            yield from _Trace(stored, resource).spans(AgentDocument(file))


@dataclass(slots=True)
class _Trace:
    """The spans of one trial, while its steps are read."""

    trial: StoredTrajectory
    resource: Resource
    _messages: list[JsonObject] = field(default_factory=list)
    """The messages since the last answer."""
    _tokens: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(_TOTALS))
    """The sums over the steps; None before the first step, and where one is unknown."""
    _asked: int = 0

    def spans(self, document: AgentDocument) -> Iterator[ReadableSpan]:
        """Yield the spans; the agent's span is the last."""
        end = _nanoseconds(self.trial.ended_at)
        now = _nanoseconds(self.trial.started_at)
        for step, following in _with_next_time(document.steps(), end):
            if step.source != "agent":
                self._say(step.source, text_of(step.message))
                for result in step.results:
                    self._say("tool", text_of(result.content))
                now = min(max(now, _time_of(step, now)), max(now, following))
                continue
            answered = self._end_of_answer(step, now)
            begin = _time_of(step, now) if "duration_ms" in (step.extra or {}) else now
            yield self._chat(step, min(begin, answered), answered)
            now = max(answered, min(following, end))
            for call in step.tool_calls or ():
                yield self._tool(step, call, answered, now)
            for result in step.results:
                self._say("tool", text_of(result.content))
        yield self._agent(document, end)

    def _end_of_answer(self, step: Step, now: int) -> int:
        duration = (step.extra or {}).get("duration_ms")
        begin = max(now, _time_of(step, now))
        if not isinstance(duration, int) or not 0 <= duration < _MAX_DURATION:
            return begin
        return begin + duration * 1_000_000

    def _chat(self, step: Step, begin: int, end: int) -> ReadableSpan:
        model = step.model_name or "unknown"
        parts: list[JsonObject] = []
        if step.reasoning_content:
            parts.append({"type": "reasoning", "content": step.reasoning_content[:_MAX_TEXT]})
        if message := text_of(step.message):
            parts.append({"type": "text", "content": message[:_MAX_TEXT]})
        for call in step.tool_calls or ():
            named = {"id": call.tool_call_id, "name": call.function_name}
            parts.append({"type": "tool_call", **named, "arguments": _short(call.arguments)})
        answer = [{"role": "assistant", "parts": parts}]
        heard, self._messages = self._messages, []
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": (step.extra or {}).get("provider"),
            "gen_ai.request.model": step.model_name,
            "gen_ai.input.messages": json.dumps(heard, ensure_ascii=False) if heard else None,
            "gen_ai.output.messages": json.dumps(answer, ensure_ascii=False),
            **self._usage(step),
        }
        return self._span(f"chat {model}", f"step {step.step_id}", begin, end, attributes, "CLIENT")

    def _usage(self, step: Step) -> Mapping[str, Any]:
        metrics = step.metrics
        if metrics is None:
            if step.llm_call_count != 0 and not step.is_copied_context:
                self._tokens, self._asked = dict.fromkeys(_TOTALS), self._asked + 1
            return {}
        extra = metrics.extra or {}
        counts = {
            "gen_ai.usage.input_tokens": metrics.prompt_tokens,
            "gen_ai.usage.output_tokens": metrics.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": metrics.cached_tokens,
            "gen_ai.usage.cache_creation.input_tokens": extra.get("cache_write"),
            "gen_ai.usage.reasoning.output_tokens": extra.get("reasoning_tokens"),
        }
        for name in _TOTALS:
            before, value = self._tokens[name] if self._asked else 0, counts[name]
            self._tokens[name] = None if before is None or value is None else before + value
        self._asked += 1
        return {**counts, "labledger.cost_usd": metrics.cost_usd}

    def _tool(self, step: Step, call: ToolCall, begin: int, end: int) -> ReadableSpan:
        results = step.results_of(call)
        returned = "\n".join(text_of(result.content) for result in results)
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.function_name,
            "gen_ai.tool.call.id": call.tool_call_id,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.arguments": _short(call.arguments),
            "gen_ai.tool.call.result": returned[:_MAX_TEXT] if results else None,
        }
        failed = any((result.extra or {}).get("is_error") for result in results)
        name = f"step {step.step_id} call {call.tool_call_id}"
        title = f"execute_tool {call.function_name}"
        return self._span(title, name, begin, max(begin, end), attributes, failed=failed)

    def _agent(self, document: AgentDocument, end: int) -> ReadableSpan:
        trial, agent = self.trial, document.head.agent
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent.name,
            "gen_ai.agent.version": agent.version,
            "gen_ai.conversation.id": trial.ids["trial_id"],
            "gen_ai.request.model": agent.model_name,
            **self._totals(),
            **{f"labledger.{name}": value for name, value in trial.ids.items()},
            "labledger.schedule_idx": trial.schedule_idx,
            "labledger.attempt": trial.attempt,
            "labledger.status": trial.status,
            "labledger.verdict": trial.verdict,
            "labledger.origin": trial.origin,
            "labledger.cuts": "; ".join(trial.cuts) or None,
        }
        begin = _nanoseconds(trial.started_at)
        failed = trial.status != "completed"
        name = f"invoke_agent {agent.name}"
        return self._span(name, None, begin, end, attributes, failed=failed)

    def _totals(self) -> Mapping[str, int | None]:
        """Return the tokens of the whole attempt: the gateway's, or else the sums of the steps."""
        if self.trial.calls is None:
            return self._tokens
        sent_calls = [call for call in self.trial.calls if call.asked]
        usages = [call.charged for call in sent_calls if call.charged is not None]
        if len(usages) < len(sent_calls):
            return {}
        totals = (sum(usage.request for usage in usages), sum(usage.output for usage in usages))
        return dict(zip(_TOTALS, totals, strict=True))

    def _span(
        self,
        name: str,
        span_key: str | None,
        begin: int,
        end: int,
        attributes: Mapping[str, Any],
        kind: str = "INTERNAL",
        *,
        failed: bool = False,
    ) -> ReadableSpan:
        """Return a span. `span_key` identifies it in its trial; None for the agent's span."""

        return ReadableSpan(
            name[:200],
            context=self._context(span_key),
            parent=None if span_key is None else self._context(None),
            resource=self.resource,
            attributes={key: value for key, value in attributes.items() if _fits(value)},
            kind=trace.SpanKind[kind],
            status=trace.Status(trace.StatusCode.ERROR if failed else trace.StatusCode.UNSET),
            start_time=begin,
            end_time=end,
            instrumentation_scope=InstrumentationScope("labledger", schema_url=_SCHEMA_URL),
        )

    def _context(self, span_key: str | None) -> Any:
        of_trial = f"{self.trial.ids['trial_id']} {self.trial.attempt}"
        return trace.SpanContext(
            _number(of_trial, 16),
            _number(f"{of_trial} {span_key}", 8),
            is_remote=False,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )

    def _say(self, role: str, text: str) -> None:
        if text:
            parts = [{"type": "text", "content": text[:_MAX_TEXT]}]
            self._messages.append({"role": role, "parts": parts})


def _with_next_time(steps: Iterable[Step], end: int) -> Iterator[tuple[Step, int]]:
    """Yield each step with the time of the next one that has a time, in nanoseconds."""
    with_last: Iterable[Step | None] = chain(steps, (None,))
    for step, following in pairwise(with_last):
        if step is not None:
            yield step, end if following is None else _time_of(following, end)


def _time_of(step: Step, default: int) -> int:
    """Return the time of a step, or `default` if it has no usable time."""
    moment = text_time(step.timestamp)
    time_ns = default if moment is None else _nanoseconds(moment)
    return time_ns if 0 < time_ns < 1 << 63 else default


def _fits(value: Any) -> bool:
    """Return whether an attribute can have this value."""
    return value is not None and not (isinstance(value, int) and abs(value) >= _MAX_NUMBER)


def _nanoseconds(moment: str) -> int:
    return int(clock.parse(moment).timestamp() * 1000) * 1_000_000


def _short(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)[:_MAX_TEXT]


def _number(text: str, size: int) -> int:
    """Return an id of this many bytes, which is not 0."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1
