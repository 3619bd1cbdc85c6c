"""Warn while a run goes on that trials time out because they are short of processors.

Counts the attempts whose results this coordinator made durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from labledger.records.attempt_result import AttemptResult
from labledger.records.timeouts import TimeoutCounts, pressure_of

_FIRST_WARNING = 3
"""How many time-outs under pressure are worth the first warning: one or two may be chance."""


@dataclass(slots=True)
class PressureWarning:
    """The time-outs of a coordinator's attempts, with and without pressure."""

    counts: TimeoutCounts = field(default_factory=TimeoutCounts)
    _next: int = _FIRST_WARNING

    def add(self, result: AttemptResult) -> str | None:
        """Count an attempt. Return a warning at the third time-out under pressure, and then
        whenever their number has doubled.
        """
        self.counts = self.counts.plus(result.reason, pressure_of(result))
        sentence = self.counts.sentence
        if sentence is None or self.counts.short_timed_out < self._next:
            return None
        self._next = 2 * self.counts.short_timed_out
        return sentence
