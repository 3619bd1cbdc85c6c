"""How short of processors, memory and disk a trial was, and which time-outs happened under
pressure.

A time limit counts wall-clock time, so a busy machine can end trials that would have had enough
time. `short_of_processors` alone has the rule. Every number of `ext.pressure` is optional; an
absent one is unknown, not zero. Seconds are wall-clock seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from operator import add
from typing import Self

from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult
from labledger.records.json_codec import JsonForm
from labledger.records.outcomes import Reason
from labledger.text.figures import percent

FIELDS = (
    "duration_s",
    "processors",
    "cpu_some_s",
    "cpu_waited_s",
    "machine_cpu_some_s",
    "cpu_throttled_s",
    "cpu_used_s",
    "cpu_others_s",
    "steal_s",
    "memory_some_s",
    "io_some_s",
)
"""The numbers of `ext.pressure`. docs/reference/evidence.md explains each under "Pressure"."""

PHASES = "phases"
"""The key with the same numbers for each phase, by its name. Older records lack it."""

_SHARE_WAITED = 1 / 3
"""The share of a trial from which its waiting for processors counts as a shortage."""
_SHARE_OF_OTHERS = 1 / 4
"""If others used a smaller share of the machine's processors, a trial waited for itself."""
_SHARE_BUSY = 0.9
"""From this share of the machine's processors on, all of them count as busy."""


def short_of_processors(pressure: Mapping[str, object]) -> bool:
    """Return True if the machine gave a trial clearly less processor time than it wanted.

    That is so if it waited for a processor for a third or more of `duration_s`: `cpu_some_s`
    without `cpu_throttled_s`, plus `steal_s` for each processor. Waiting because of the trial's own
    CPU limit is not the machine's pressure. Neither is it if everything else on the machine,
    stolen time included, is known to have used less than a quarter of its processors: then the
    trial's own processes waited for each other. Where `cpu_some_s` is unknown, as with control
    groups of version 1, `cpu_waited_s` replaces it if all processors were busy, up to
    `machine_cpu_some_s`. Records of earlier versions lack `cpu_waited_s`: then the machine's number
    alone replaces it. False if the numbers that this needs are unknown.

    >>> short_of_processors({"cpu_some_s": 40.0, "duration_s": 60.0})
    True
    >>> short_of_processors({"cpu_some_s": 40.0, "cpu_throttled_s": 39.0, "duration_s": 60.0})
    False
    >>> short_of_processors({})
    False
    """
    duration_s, processors = (_number(pressure, name) for name in ("duration_s", "processors"))
    if not duration_s:
        return False
    stolen_s = _number(pressure, "steal_s") or 0.0
    throttled_s = _number(pressure, "cpu_throttled_s") or 0.0
    some_s = _number(pressure, "cpu_some_s")
    others_s = _number(pressure, "cpu_others_s")
    if processors and others_s is not None:
        available_s = processors * duration_s
        if others_s + stolen_s < _SHARE_OF_OTHERS * available_s:
            return False
        busy_s = others_s + stolen_s + (_number(pressure, "cpu_used_s") or 0.0)
        if some_s is None and busy_s >= _SHARE_BUSY * available_s:
            estimates = (_number(pressure, n) for n in ("cpu_waited_s", "machine_cpu_some_s"))
            some_s = min((estimate for estimate in estimates if estimate is not None), default=None)
    waited_s = max(0.0, (some_s or 0.0) - throttled_s)
    if processors:
        waited_s += stolen_s / processors
    return waited_s >= _SHARE_WAITED * duration_s


def _number(pressure: Mapping[str, object], name: str) -> float | None:
    """Return a number of at least 0; None if it is absent or no such number."""
    value = pressure.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


_TIMED_OUT: Mapping[str, str] = {
    Reason.SETUP_TIMEOUT: "setup",
    Reason.AGENT_TIMEOUT: "agent",
    Reason.GRADER_TIMEOUT: "grader",
}
TIMEOUTS: frozenset[str] = frozenset(_TIMED_OUT)
"""Reasons of attempts in which a phase reached its time limit."""


def was_short(reason: str | None, pressure: Mapping[str, object]) -> bool:
    """Return True if an attempt that ended with this reason was short of processors.

    The phase that reached its limit decides, or else the agent's phase, because the pressure of
    another phase slowed something else. Records of earlier versions have numbers of the whole trial
    only.
    """
    phases = pressure.get(PHASES)
    if not isinstance(phases, Mapping):
        return short_of_processors(pressure)
    numbers = phases.get(_TIMED_OUT.get(reason or "", "agent"))
    if not isinstance(numbers, Mapping):
        return False
    is_its_own = not numbers.keys().isdisjoint({"cpu_some_s", "cpu_waited_s"})
    return is_its_own and short_of_processors(numbers)


def pressure_of(result: AttemptResult) -> Mapping[str, object] | None:
    """Return the `ext.pressure` of an attempt's evidence; None if none was recorded."""
    recorded = (record.get("ext", {}).get("pressure") for record in result.evidence)
    return next((pressure for pressure in recorded if isinstance(pressure, dict)), None)


def timed_out_under_pressure(result: AttemptResult) -> bool:
    """Return True if an attempt reached a time limit while it was short of processors."""
    pressure = pressure_of(result)
    is_timeout = result.reason in TIMEOUTS
    return is_timeout and pressure is not None and was_short(result.reason, pressure)


@dataclass(frozen=True, slots=True)
class TimeoutCounts(JsonForm):
    """How many attempts timed out while short of processors, and how many without.

    Attempts without recorded pressure are not counted.
    """

    short: int = 0
    short_timed_out: int = 0
    others: int = 0
    others_timed_out: int = 0

    @classmethod
    def of_json(cls, counts: JsonObject) -> Self:
        return cls(**counts)

    def plus(self, reason: str | None, pressure: Mapping[str, object] | None) -> TimeoutCounts:
        """Return the counts with one more attempt."""
        if pressure is None:
            return self
        is_short, timed_out = was_short(reason, pressure), reason in TIMEOUTS
        is_other = not is_short
        return self.together(
            TimeoutCounts(is_short, is_short and timed_out, is_other, is_other and timed_out)
        )

    def together(self, more: TimeoutCounts) -> TimeoutCounts:
        """Return the counts of two runs."""
        return TimeoutCounts(*map(add, astuple(self), astuple(more)))

    @property
    def sentence(self) -> str | None:
        """A sentence about time-outs that pressure made more frequent, with advice, or None."""
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
            f"{what} while processors were short: they say something about this machine, not only "
            "about the agents; lower max_concurrency (benchmark.policy.timeouts_under_pressure: "
            "retry gives them another attempt)"
        )
