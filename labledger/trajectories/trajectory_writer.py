"""Write the document of a trajectory step by step, with a short index of its steps.

The document is one line of JSON. Secrets are replaced in each step before it is written. Steps
beyond the limits are left out and counted. The index is small enough for the ledger, and the view
`steps` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from labledger.records import canonical_json
from labledger.trajectories.atif import (
    MAX_STEPS,
    VERSION,
    FinalMetrics,
    Head,
    Metrics,
    Step,
    text_of,
)

MAX_BYTES = 128 << 20
"""The most bytes of steps that are stored."""
MAX_INDEX = 256 << 10
"""The most bytes of the index, which has the first steps of a trajectory."""
INDEX_VERSION = "labledger.trajectory_steps.v1"
INDEX_COLUMNS = (
    *("step_id", "timestamp", "source", "model", "message", "calls", "results"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd", "is_copied_context"),
)
"""The values of a row of the index, in order."""
CLAIMED = "claimed"
"""The member of the final metrics' `extra` with the agent's own totals."""
_EXCERPT = 100
"""The most characters of a message, and of the calls, in the index."""


@dataclass(slots=True)
class DocumentWriter:
    """Writes one document. Its counts are complete after all pieces were read."""

    redact: Callable[[Any], Any]
    """Returns a JSON value without secrets."""
    sums: bool = True
    """Whether the sums of the steps replace missing totals of the agent."""
    counted: FinalMetrics | None = None
    """The gateway's totals; None if no gateway served the agent."""
    steps: int = 0
    left_out: int = 0
    """The number of steps beyond the limits."""
    _size: int = 0
    _rows: list[str] = field(default_factory=list)
    _index_size: int = 0
    _totals: Metrics | None = field(default_factory=lambda: Metrics(0, 0, 0))

    def pieces(self, steps: Iterable[Step], head: Callable[[], Head]) -> Iterator[bytes]:
        """Yield the document in pieces. Calls `head` after the last step was read.

        Yields nothing for a trajectory without a step.
        """
        for step in steps:
            if self.left_out or self.steps >= MAX_STEPS:
                self.left_out += 1
                continue
            document = self.redact(replace(step, step_id=self.steps + 1).as_json())
            piece = canonical_json.dump_bytes(document)
            if self._size + len(piece) > MAX_BYTES:
                self.left_out += 1
                continue
            start = b"," if self.steps else b'{"schema_version":"%s","steps":[' % VERSION.encode()
            yield start + piece
            self.steps += 1
            self._size += len(piece)
            self._add_to_index(document)
            self._count(step)
        if self.steps:
            yield b"]," + canonical_json.dump_bytes(self.redact(self._finished(head())))[1:]

    @property
    def index(self) -> bytes:
        """The index as JSON."""
        head = canonical_json.dumps({"columns": list(INDEX_COLUMNS)})
        rows = ",".join(self._rows)
        return f'{head[:-1]},"rows":[{rows}],"schema_version":"{INDEX_VERSION}"}}'.encode()

    def _add_to_index(self, document: dict[str, Any]) -> None:
        metrics = document.get("metrics") or {}
        observation = document.get("observation") or {}
        calls = " ".join(
            f"{call['function_name']} {canonical_json.dumps(call['arguments'])[: 2 * _EXCERPT]}"
            for call in (document.get("tool_calls") or ())[:3]
        )
        message = text_of(document["message"])
        row = [
            document["step_id"],
            document.get("timestamp"),
            document["source"],
            document.get("model_name"),
            _excerpt(message),
            _excerpt(calls) or None,
            len(observation.get("results", ())),
            *(metrics.get(name) for name in INDEX_COLUMNS[7:11]),
            document.get("is_copied_context"),
        ]
        text = canonical_json.dumps(row)
        self._index_size += len(text.encode()) + 1
        if self._index_size <= MAX_INDEX:
            self._rows.append(text)

    def _count(self, step: Step) -> None:
        """Add a step's usage to the totals. One unknown usage makes them unknown."""
        asks = step.source == "agent" and step.llm_call_count != 0 and not step.is_copied_context
        if not asks or self._totals is None:
            return
        totals, metrics = self._totals, step.metrics
        if metrics is None or metrics.prompt_tokens is None or metrics.completion_tokens is None:
            self._totals = None
            return
        self._totals = Metrics(
            (totals.prompt_tokens or 0) + metrics.prompt_tokens,
            (totals.completion_tokens or 0) + metrics.completion_tokens,
            (totals.cached_tokens or 0) + (metrics.cached_tokens or 0),
        )

    def _finished(self, head: Head) -> dict[str, Any]:
        if not self.sums and self.counted is None:
            return head.as_json()
        claimed = head.final_metrics or self._summed()
        final = replace(self.counted or FinalMetrics(), total_steps=self.steps)
        if claimed is not None:
            final = replace(final, extra={CLAIMED: claimed.as_json()})
        return replace(head, final_metrics=final).as_json()

    def _summed(self) -> FinalMetrics | None:
        """Return the sums of the steps, unless the gateway counted the steps."""
        totals = self._totals
        if totals is None or self.left_out or not self.sums or self.counted is not None:
            return None
        return FinalMetrics(totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens)


def _excerpt(text: str) -> str:
    shortened = " ".join(text.split())
    return shortened if len(shortened) <= _EXCERPT else f"{shortened[: _EXCERPT - 1]}…"
