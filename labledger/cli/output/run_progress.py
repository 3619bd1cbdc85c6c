"""Where a run stands, as its events add up to it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from labledger.api import PassCounts, Spent
from labledger.cli.output.event_messages import UNITS, owner_line, stopping_note
from labledger.text.figures import clock_time, percent
from labledger.text.phrases import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from labledger.api import JsonObject


VERDICTS = ("pass", "fail", "missing", "error")
VERDICT_COLUMNS = ("pass", "fail", "miss", "err", "agent")
"""Column names of what a pass rate counts: the verdicts, and failed agents without one."""

_LEAST_FINISHED = 3
"""From fewer trials nothing is foretold."""


class RunView:
    """What a run's events add up to."""

    def __init__(self) -> None:
        self.run_id = ""
        self.total = 0
        self.committed = 0
        self.in_flight = 0
        """Trials that run or are prepared."""
        self.waiting = 0
        self.width = 0
        self.finished = 0
        self.removing = 0
        self.variants: list[str] = []
        self.statuses: dict[str, Counter[str]] = defaultdict(Counter)
        self.verdicts: dict[str, Counter[str]] = defaultdict(Counter)
        self.passes: dict[str, PassCounts] = defaultdict(PassCounts)
        """These three count all that is committed, by whichever coordinator."""
        self.note = ""
        self.spent = {"cost_usd": Spent(), "tokens": Spent()}
        """What the run spent, by every coordinator that it had."""
        self.budget: Mapping[str, float] = {}
        self._began = time.monotonic()
        self._dispatching_since: float | None = None

    def take(self, event: JsonObject) -> None:
        match event["event"]:
            case "run_started":
                self.run_id, self.total, self.note = event["run_id"], event["total"], ""
                self.committed = event["committed"]
                self._dispatching_since = time.monotonic()
                self.variants, self.width = event["variants"], event["max_concurrency"]
                self.budget = event["budget"]
                self._count_earlier(event["counts"])
                self.spent |= {kind: Spent(**found) for kind, found in event["spent"].items()}
            case "trial_finished":
                self.finished += 1
                self.in_flight = max(0, self.in_flight - 1)
                for kind in self.spent.keys() & event.keys():
                    self.spent[kind] = self.spent[kind].plus(event[kind])
            case "slot_committed":
                self.committed = event["schedule_idx"] + 1
                self.waiting = event["waiting"]
                self.statuses[event["variant_id"]][event["status"]] += 1
                if event["verdict"]:
                    self.verdicts[event["variant_id"]][event["verdict"]] += 1
                variant = event["variant_id"]
                self.passes[variant] = self.passes[variant].plus(event["passed"])
            case "tick":
                self.in_flight, self.waiting = event["running"], event["waiting"]
                self.removing = event.get("removing", 0)
            case "dispatch_paused":
                self.note = event["message"]
            case "dispatch_resumed":
                self.note = ""
            case "waiting_for_lease" | "run_wanted":
                self.note = owner_line(event)
            case "stopping":
                self.note = stopping_note(event["level"])
            case "budget_spent":
                self.note = event["message"]

    def _count_earlier(self, counts: Iterable[JsonObject]) -> None:
        """Begin with what earlier coordinators of the run have committed."""
        for count in counts:
            variant = count["variant_id"]
            self.statuses[variant] = Counter(count["statuses"])
            self.verdicts[variant] = Counter(count["verdicts"])
            self.passes[variant] = PassCounts(count["passed"], count["not_passed"])

    @property
    def running(self) -> int:
        return min(self.in_flight, self.width)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the end at the pace so far; None until as many have ended as run at once."""
        if self._dispatching_since is None or self.finished < max(self.width, _LEAST_FINISHED):
            return None
        if self.committed == self.total:
            return None
        seconds = time.monotonic() - self._dispatching_since
        return seconds / self.finished * (self.total - self.committed - self.waiting)

    def all_statuses(self) -> Counter[str]:
        return sum(self.statuses.values(), Counter())

    def line(self) -> str:
        """One line on where the run stands."""
        statuses = self.all_statuses()
        committed, running, waiting, *times = self.standing()
        parts = [
            *(committed, running, waiting),
            *(f"{variant} {self.rate(variant)}" for variant in self.variants[:4]),
            counted(statuses["grade_error"], "grade error"),
            counted(statuses["infra_error"], "infra error"),
            *times,
        ]
        if cleaning := self.cleaning_text():
            parts.append(cleaning)
        return " · ".join([*parts, *spent_texts(self.spent, self.budget)])

    def cleaning_text(self) -> str:
        """Return how many trial folders await removal, where that is more than usual, or ""."""
        if self.removing <= (self.width if self.in_flight else 0):
            return ""
        return f"cleaning up {counted(self.removing, 'trial folder')}"

    def standing(self) -> tuple[str, ...]:
        """How many slots are how far; how long it took, and may still take."""
        slots = (
            f"{self.committed}/{self.total} committed",
            f"{self.running} running",
            f"{self.waiting} waiting to commit",
        )
        eta = self.remaining_s
        left = () if eta is None else (f"about {clock_time(eta)} left",)
        return *slots, f"{clock_time(self.elapsed_s)} elapsed", *left

    def counts(self, variant: str) -> tuple[int, ...]:
        """How many slots of a variant ended in each way: `VERDICT_COLUMNS`, and left out."""
        verdicts = [self.verdicts[variant][verdict] for verdict in VERDICTS]
        passes = self.passes[variant]
        left_out = self.statuses[variant].total() - passes.counted
        return *verdicts, without_verdict(passes, verdicts), left_out

    def rate(self, variant: str) -> str:
        """The pass rate of a variant so far, as a percentage."""
        return percent(self.passes[variant].rate)


def without_verdict(passes: PassCounts, verdicts: Iterable[int]) -> int:
    """How many slots count as not passed though they have no verdict: their agent failed."""
    return max(0, passes.counted - sum(verdicts))


def spent_texts(spent: Mapping[str, Spent], budget: Mapping[str, float]) -> list[str]:
    """What was spent, and of how much, for a person: where it is limited, or anything is known."""
    return [
        f"{found.total:,.10g} "
        + (f"of {budget[kind]:,.10g} " if kind in budget else "")
        + f"{UNITS[kind]} spent"
        + (f" (unknown of {counted(found.unknown, 'trial')})" if found.unknown else "")
        for kind, found in spent.items()
        if found.known or kind in budget
    ]
