"""Time-outs of trials that the machine kept short of processors: which they are, counted, in words.

A time limit is on the clock of the wall: on a busy machine it ends trials that would have had time
enough. `records.pressure` says whether a trial was short of processors; the coordinator counts
attempts as they end, and `ledger.read.pressured_timeouts` those that are committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult
from labledger.records.outcomes import Reason
from labledger.records.pressure import short_of_processors
from labledger.text.figures import percent

TIMEOUTS: frozenset[str] = frozenset(
    {Reason.SETUP_TIMEOUT, Reason.AGENT_TIMEOUT, Reason.GRADER_TIMEOUT}
)
"""Reasons of attempts of which a phase ran into its time limit."""


def pressure_of(result: AttemptResult) -> Mapping[str, object] | None:
    """Return the `ext.pressure` of an attempt's evidence; None if none was recorded."""
    recorded = (record.get("ext", {}).get("pressure") for record in result.evidence)
    return next((pressure for pressure in recorded if isinstance(pressure, dict)), None)


def timed_out_under_pressure(result: AttemptResult) -> bool:
    """Return True if an attempt ran into a time limit while it was short of processors."""
    pressure = pressure_of(result)
    return result.reason in TIMEOUTS and pressure is not None and short_of_processors(pressure)


@dataclass(frozen=True, slots=True)
class TimeoutCounts:
    """How many attempts timed out while short of processors, and how many without.

    Attempts of which no pressure was recorded are in none of the numbers.
    """

    short: int = 0
    short_timed_out: int = 0
    others: int = 0
    others_timed_out: int = 0

    @classmethod
    def of_json(cls, counts: JsonObject) -> Self:
        return cls(**counts)

    def as_json(self) -> JsonObject:
        return asdict(self)

    def plus(self, reason: str | None, pressure: Mapping[str, object] | None) -> TimeoutCounts:
        """Return the counts with one more attempt."""
        if pressure is None:
            return self
        is_short, timed_out = short_of_processors(pressure), reason in TIMEOUTS
        return TimeoutCounts(
            self.short + is_short,
            self.short_timed_out + (is_short and timed_out),
            self.others + (not is_short),
            self.others_timed_out + (not is_short and timed_out),
        )

    def together(self, more: TimeoutCounts) -> TimeoutCounts:
        """Return the counts of two runs."""
        return TimeoutCounts(
            self.short + more.short,
            self.short_timed_out + more.short_timed_out,
            self.others + more.others,
            self.others_timed_out + more.others_timed_out,
        )

    @property
    def sentence(self) -> str | None:
        """What pressure did to time-outs, and what to do; None unless more timed out under it."""
        if not self.short_timed_out:
            return None
        share = self.short_timed_out / self.short
        before = self.others_timed_out / self.others if self.others else 0.0
        if share <= before:
            return None
        attempts = f"{self.short_timed_out} of {self.short} attempts"
        rose = f"Time-outs rose from {percent(before)} to {percent(share)} ({attempts})"
        what = rose if self.others else f"{attempts} timed out"
        return (
            f"{what} while processors were short: they say something of this machine, not only of "
            "the agents; lower max_concurrency, or set benchmark.policy.timeouts_under_pressure: "
            "retry"
        )
