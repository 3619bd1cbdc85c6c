"""The progress of a run in words: totals over all of its events, or those of a stored state.

`RunProgress` adds events up; a line for a single one: `event_lines`. Of a run on a cluster, each
host is described by how many trials it has and whether it answers.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labledger import PassCounts, Spent
from labledger.cli.event_lines import UNITS, notable_line
from labledger.text import clock_time, counted, counted_of, exact, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from labledger import JsonObject, ModelUse, RunState


_MAX_NAMED = 6
"""With more hosts, only those are named on which nothing can be placed."""


@dataclass(frozen=True, slots=True)
class HostProgress:
    """A host, as it was last seen."""

    name: str
    trials: int
    """How many trials of the run it has."""
    slots: int | None = None
    """How many trials it runs at once; None if not known."""
    problem: str | None = None
    """Why no trial is placed on it; None if trials may be, or if it is not known."""

    def text(self) -> str:
        """Return its trials, or its problem and how many trials wait for it."""
        if self.problem is not None:
            waiting = f" ({counted(self.trials, 'trial')} there)" if self.trials else ""
            return f"{self.name}: {self.problem}{waiting}"
        at_most = "" if self.slots is None else f", at most {self.slots} at once"
        return f"{self.name}: {counted(self.trials, 'trial')}{at_most}"


def hosts_of_event(tick: JsonObject) -> list[HostProgress]:
    """Return the hosts that a `tick` event lists, none if it lists none."""
    return [
        HostProgress(each["host"], each["trials"], each["slots"], each["problem"])
        for each in tick.get("hosts", ())
    ]


def hosts_of_slots(open_slots: Mapping[int, str]) -> list[HostProgress]:
    """Return the hosts of a cluster that have open slots; those of a machine are not listed."""
    trials = Counter(host for host in open_slots.values() if "/" in host)
    return [HostProgress(host, count) for host, count in sorted(trials.items())]


def host_texts(hosts: Sequence[HostProgress]) -> Iterator[str]:
    """Yield a phrase for each of a few hosts, or for those of many on which nothing is placed."""
    if len(hosts) <= _MAX_NAMED:
        yield from (host.text() for host in hosts)
        return
    failing = [host for host in hosts if host.problem is not None]
    yield f"{len(hosts) - len(failing):,} of {counted(len(hosts), 'host')} take trials"
    yield from (host.text() for host in failing[:_MAX_NAMED])
    if len(failing) > _MAX_NAMED:
        yield f"and {len(failing) - _MAX_NAMED:,} more do not"


VERDICTS = ("pass", "fail", "missing", "error")
VERDICT_COLUMNS = ("pass", "fail", "miss", "err", "ungraded")
"""Column names of what a pass rate counts: the verdicts, and failed trials without one."""

_MIN_FINISHED = 3
"""How many trials must have finished before the remaining time is estimated."""


class ImageProgress:
    """An image that is being pulled or built."""

    def __init__(self, timeout_s: float, log: str) -> None:
        self.line = ""
        """The last line of its output."""
        self._timeout_s = timeout_s
        self._log = log
        self._began = time.monotonic()

    def text(self, image: str) -> str:
        """Return how long it takes already, its last line and its log, as one line."""
        times = f"{clock_time(time.monotonic() - self._began)} of {clock_time(self._timeout_s)}"
        return " · ".join(part for part in (f"{image}: {times}", self.line, self._log) if part)


class RunProgress:
    """The totals of a run's events so far."""

    def __init__(self) -> None:
        self.run_id = ""
        self.total = 0
        self.committed = 0
        self.in_flight = 0
        """How many trials were dispatched and have no result yet."""
        self._at_work = 0
        """How many of them run; the others are prepared, or about to end."""
        self.waiting = 0
        self.max_concurrency = 0
        self.finished = 0
        self.removing = 0
        """How many trial folders await removal."""
        self.variants: list[str] = []
        self.statuses: dict[str, Counter[str]] = defaultdict(Counter)
        self.verdicts: dict[str, Counter[str]] = defaultdict(Counter)
        self.passes: dict[str, PassCounts] = defaultdict(PassCounts)
        """This and the two above count all committed slots, also of earlier coordinators."""
        self.note = ""
        self.hosts: list[HostProgress] = []
        """The hosts of a run on a cluster; empty for another one."""
        self.spent = {"cost_usd": Spent(), "tokens": Spent()}
        """What the run spent, under this coordinator and earlier ones."""
        self.calls_in_flight: JsonObject = {"calls": 0, "waited_s": 0}
        """What the agents of running trials have asked of models, where events say it."""
        self.model_usage: Sequence[ModelUse] = ()
        """What a run that another process runs used of models."""
        self.budget: Mapping[str, float] = {}
        self.builds: dict[str, ImageProgress] = {}
        """The images that are being pulled or built, by name."""
        self._began = time.monotonic()
        self._dispatching_since: float | None = None
        self._starts_nothing = False
        """Whether the run only waits for what runs."""
        self._is_held = False
        """Whether something of the run is paused, and does not end by itself."""
        self._first_committed = 0

    def add(self, event: JsonObject) -> None:
        """Add one event to the totals."""
        match event["event"]:
            case "image_build_started" | "image_build_progress" | "image_build_ended":
                self._add_image(event)
            case "run_started":
                self.run_id, self.total, self.note = event["run_id"], event["total"], ""
                self.committed = event["committed"]
                self._dispatching_since = time.monotonic()
                self.variants = event["variants"]
                self.max_concurrency = event["max_concurrency"]
                self.budget = event["budget"]
                self._count_earlier(event["counts"])
                self.spent |= {kind: Spent(**spent) for kind, spent in event["spent"].items()}
            case "trial_finished":
                self.finished += 1
                self.in_flight = max(0, self.in_flight - 1)
                for kind in self.spent.keys() & event.keys():
                    is_complete = kind not in event.get("incomplete", ())
                    amount = Spent.of(event[kind], is_complete=is_complete)
                    self.spent[kind] = self.spent[kind].plus(amount)
            case "slot_committed":
                self.committed = event["schedule_idx"] + 1
                self.waiting = event["waiting"]
                self.statuses[event["variant_id"]][event["status"]] += 1
                if event["verdict"]:
                    self.verdicts[event["variant_id"]][event["verdict"]] += 1
                variant = event["variant_id"]
                self.passes[variant] = self.passes[variant].plus(event["passed"])
            case "tick":
                self._at_work, self.in_flight = event["running"], event["dispatched"]
                self.waiting, self.max_concurrency = event["waiting"], event["max_concurrency"]
                self.removing = event.get("removing", 0)
                self._is_held = event.get("held", False)
                self.hosts = hosts_of_event(event) or self.hosts
                self.calls_in_flight = event.get("models", self.calls_in_flight)
            case "dispatch_paused":
                self.note = event["message"]
            case "dispatch_resumed":
                self.note = ""
            case (
                "waiting_for_lease" | "run_wanted" | "budget_spent" | "stopping" | "control_applied"
            ):
                self._add_notice(event)

    def _add_notice(self, event: JsonObject) -> None:
        self.note = notable_line(event) or ""
        self._starts_nothing |= event["event"] in ("stopping", "budget_spent")
        what = {} if event.get("refused") else event.get("what", {})
        self.max_concurrency = what.get("max_concurrency") or self.max_concurrency
        changed = {**self.budget, **what.get("budget", {})}
        self.budget = {kind: limit for kind, limit in changed.items() if limit is not None}

    def _add_image(self, event: JsonObject) -> None:
        image = event["image"]
        if event["event"] == "image_build_started":
            self.builds[image] = ImageProgress(event["timeout_s"], event["log"])
        elif event["event"] == "image_build_progress":
            self.builds[image].line = event["line"]
        else:
            del self.builds[image]

    def show(self, state: RunState) -> None:
        """Set the totals to those of a run that another process runs."""
        run = state.run
        if not self.run_id:
            self.run_id, self.total = run.run_id, run.total_slots
            self.variants = [variant.variant_id for variant in run.variants]
            self.budget = run.budget
            self._dispatching_since = time.monotonic()
            self._began = self._dispatching_since - state.owned_s
            self._first_committed = run.next_schedule_idx
        self.committed, self.waiting = run.next_schedule_idx, state.staged
        self.finished = self.committed - self._first_committed
        self.in_flight, self._at_work = state.begun - state.staged, state.trials_running
        self.max_concurrency = state.max_concurrency or max(1, self.in_flight)
        self.hosts = [] if run.on is None else hosts_of_slots(state.open_slots)
        self._count_earlier(counts.as_json() for counts in state.variants)
        self.note = " · ".join(filter(None, (paused_text(state), waiting_requests_text(state))))
        self.spent |= dict(state.spent)
        self.model_usage = state.model_usage
        self._is_held = state.holds_slots
        self._starts_nothing = bool(state.used_up)
        self.budget = run.budget

    def _count_earlier(self, counts: Iterable[JsonObject]) -> None:
        """Count what earlier coordinators of the run have committed."""
        for count in counts:
            variant = count["variant_id"]
            self.statuses[variant] = Counter(count["statuses"])
            self.verdicts[variant] = Counter(count["verdicts"])
            self.passes[variant] = PassCounts.of_variant(count)

    @property
    def running(self) -> int:
        """How many trials run, without those that are prepared."""
        return min(self.in_flight, self._at_work)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def remaining_s(self) -> float | None:
        """The estimated seconds to the end; None until as many trials ended as run at once."""
        if self._dispatching_since is None or self.finished < max(
            self.max_concurrency, _MIN_FINISHED
        ):
            return None
        if self.committed == self.total or not self.in_flight:
            return None
        # Something else must happen before the run ends.
        if self._starts_nothing or self._is_held:
            return None
        seconds = time.monotonic() - self._dispatching_since
        return seconds / self.finished * (self.total - self.committed - self.waiting)

    def all_statuses(self) -> Counter[str]:
        return sum(self.statuses.values(), Counter())

    def line(self) -> str:
        """Return the run's progress as one line."""
        statuses = self.all_statuses()
        saved, running, waiting, *times = self.progress_texts()
        parts = [
            *(saved, running, waiting),
            *(f"{variant} {self.rate(variant)}" for variant in self.variants[:4]),
            counted(statuses["grade_error"], "grade error"),
            counted(statuses["infra_error"], "infra error"),
            *times,
        ]
        if cleaning := self.cleaning_text():
            parts.append(cleaning)
        parts += host_texts(self.hosts)
        return " · ".join([*parts, *self.spent_texts()])

    def spent_texts(self) -> list[str]:
        """Return what was spent, and how the calls to models went, if there were any."""
        return [
            *spent_texts(self.spent, self.budget),
            *call_texts(self.model_usage),
            *in_flight_texts(self.calls_in_flight),
        ]

    def cleaning_text(self) -> str:
        """Return how many trial folders await removal, or "" if no more than usual."""
        if self.removing <= (self.max_concurrency if self.in_flight else 0):
            return ""
        return f"cleaning up {counted(self.removing, 'trial folder')}"

    def progress_texts(self) -> tuple[str, ...]:
        """Return how many trials are saved, running and waiting to be saved, then the times."""
        trials = (
            f"{counted_of(self.committed, self.total, 'trial')} saved",
            f"{self.running} running",
            f"{self.waiting} waiting to be saved",
        )
        eta = self.remaining_s
        remaining = () if eta is None else (f"about {clock_time(eta)} left",)
        return *trials, f"{clock_time(self.elapsed_s)} elapsed", *remaining

    def counts(self, variant: str) -> tuple[int, ...]:
        """Return the slots of a variant by `VERDICT_COLUMNS`, then those left out of its rate."""
        verdicts = [self.verdicts[variant][verdict] for verdict in VERDICTS]
        passes = self.passes[variant]
        left_out = self.statuses[variant].total() - passes.counted
        return *verdicts, without_verdict(passes, verdicts), left_out

    def rate(self, variant: str) -> str:
        """Return the pass rate of a variant so far, as a percentage."""
        return percent(self.passes[variant].rate)


def without_verdict(passes: PassCounts, verdicts: Iterable[int]) -> int:
    """Return how many slots count as not passed without a verdict.

    Their agent failed, or broke its grader.
    """
    return max(0, passes.counted - sum(verdicts))


def spent_texts(spent: Mapping[str, Spent], budget: Mapping[str, float]) -> list[str]:
    """Return what was spent, by kind, of each kind that is limited or known."""
    return [
        f"{exact(amount.total)} "
        + (f"of {exact(budget[kind])} " if kind in budget else "")
        + f"{UNITS[kind]} spent"
        + (f" (unknown of {counted(amount.unknown, 'trial')})" if amount.unknown else "")
        for kind, amount in spent.items()
        if amount.known or kind in budget
    ]


def call_texts(usage: Sequence[ModelUse]) -> Iterator[str]:
    """Yield how the calls of trials to models went; nothing if there were none."""
    if not usage:
        return
    yield f"{counted(sum(use.calls for use in usage), 'call')} to models"
    for number, what in (
        (sum(use.refused for use in usage), "refused"),
        (sum(use.failed for use in usage), "failed"),
        (sum(use.cost_unknown for use in usage), "of unknown cost"),
    ):
        if number:
            yield f"{number:,} {what}"
    if waited := sum(use.waited_s for use in usage):
        yield f"{clock_time(waited)} waited for limits"


def in_flight_texts(calls: JsonObject) -> Iterator[str]:
    """Yield how many calls to models running trials have made; nothing if there are none."""
    if calls["calls"]:
        yield f"{counted(calls['calls'], 'call')} by running trials"
    if calls["waited_s"] >= 1:
        yield f"{clock_time(calls['waited_s'])} waited for limits"


def paused_text(state: RunState) -> str:
    """Return what of a run is paused, and since when; empty if nothing is."""
    return "; ".join(
        f"{_scope(pause.scope, pause.name)} is paused since {pause.since} by {pause.requested_by}"
        + (f": {pause.because}" if pause.because else "")
        for pause in state.pauses
    )


def waiting_requests_text(state: RunState) -> str:
    """Return which requests wait for the run's owner; empty if none do."""
    return "; ".join(
        f"request {each.number} of {each.requested_by} waits: {each.phrase}"
        for each in state.waiting_requests
    )


def _scope(scope: str, name: str) -> str:
    return f"{'tasks' if scope == 'task' else scope} {name}" if name else "the run"
