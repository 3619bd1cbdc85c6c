"""The progress of a run in words, from its events or from a stored state.

`RunProgress` adds up events; `event_lines` describes a single event.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labledger.cli.event_lines import UNITS, notable_line
from labledger.results import PassCounts, Spent
from labledger.text.control_phrases import paused_sentence, scope_phrase, source_phrase
from labledger.text.figures import clock_time, exact, percent
from labledger.text.words import counted, counted_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from labledger.results import JsonObject, ModelUse, RunState


_MAX_NAMED = 6
"""With more hosts, only hosts that take no trials are named."""


@dataclass(frozen=True, slots=True)
class HostProgress:
    """The last known state of a host."""

    name: str
    trials: int
    """How many trials of the run it has."""
    slots: int | None = None
    """How many trials it runs at once; None if unknown."""
    problem: str | None = None
    """Why it takes no trials; None if it does, or if that is unknown."""

    def text(self) -> str:
        """Return how many trials the host has, or its problem."""
        if self.problem is not None:
            waiting = f" ({counted(self.trials, 'trial')} there)" if self.trials else ""
            return f"{self.name}: {self.problem}{waiting}"
        at_most = "" if self.slots is None else f", at most {self.slots} at once"
        return f"{self.name}: {counted(self.trials, 'trial')}{at_most}"


def hosts_of_event(tick: JsonObject) -> list[HostProgress]:
    """Return the hosts in a `tick` event; empty if it has none."""
    return [
        HostProgress(host["host"], host["trials"], host["slots"], host["problem"])
        for host in tick.get("hosts", ())
    ]


def hosts_of_slots(open_slots: Mapping[int, str]) -> list[HostProgress]:
    """Return the cluster hosts that have open slots. A single machine is not a cluster host."""
    trials = Counter(host for host in open_slots.values() if "/" in host)
    return [HostProgress(host, count) for host, count in sorted(trials.items())]


def host_texts(hosts: Sequence[HostProgress]) -> Iterator[str]:
    """Yield a phrase for each host. If there are many, name only hosts that take no trials."""
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
"""Column names of the trials that a pass rate counts: verdicts, and failures without a verdict."""

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
        """Return the elapsed time, the last line of output and the log, as one line."""
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
        """How many of these run; the others are prepared, or about to end."""
        self.waiting = 0
        self.max_concurrency = 0
        self.finished = 0
        self.removing = 0
        """How many trial folders wait for removal."""
        self.variants: list[str] = []
        self.statuses: dict[str, Counter[str]] = defaultdict(Counter)
        self.verdicts: dict[str, Counter[str]] = defaultdict(Counter)
        self.passes: dict[str, PassCounts] = defaultdict(PassCounts)
        """These three count all committed slots, also those from earlier coordinators."""
        self.note = ""
        self.hosts: list[HostProgress] = []
        """The hosts of a run on a cluster; empty for a run on one machine."""
        self.spent = {"cost_usd": Spent(), "tokens": Spent()}
        """The spending of the run under all its coordinators."""
        self.calls_in_flight: JsonObject = {"calls": 0, "waited_s": 0}
        """The calls to models by running trials, if events report them."""
        self.model_usage: Sequence[ModelUse] = ()
        """The use of models, for a run of another process."""
        self.budget: Mapping[str, float] = {}
        self.builds: dict[str, ImageProgress] = {}
        """The images that are being pulled or built, by name."""
        self._began = time.monotonic()
        self._dispatching_since: float | None = None
        self._starts_nothing = False
        """Whether the run starts no more trials and only waits for the running ones."""
        self._is_held = False
        """Whether a pause that needs a request to end applies to the run or a part of it."""
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
        """Set the totals from the state of a run that another process runs."""
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
        """Count the slots that earlier coordinators of the run have committed."""
        for count in counts:
            variant = count["variant_id"]
            self.statuses[variant] = Counter(count["statuses"])
            self.verdicts[variant] = Counter(count["verdicts"])
            self.passes[variant] = PassCounts.of_variant(count)

    @property
    def running(self) -> int:
        """How many trials run, without the prepared ones."""
        return min(self.in_flight, self._at_work)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def remaining_s(self) -> float | None:
        """The estimated seconds to the end; None until enough trials have finished."""
        if self._dispatching_since is None or self.finished < max(
            self.max_concurrency, _MIN_FINISHED
        ):
            return None
        if self.committed == self.total or not self.in_flight:
            return None
        # The run cannot end without a further request.
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
        """Return phrases about the spending and the calls to models, if there are any."""
        return [
            *spent_texts(self.spent, self.budget),
            *call_texts(self.model_usage),
            *in_flight_texts(self.calls_in_flight),
        ]

    def cleaning_text(self) -> str:
        """Return how many trial folders wait for removal, or "" if no more than usual."""
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
        """Return a variant's number of slots by `VERDICT_COLUMNS`, then of those left out."""
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
    """Return a phrase for each kind of spending that is limited or known."""
    return [
        f"{exact(amount.total)} "
        + (f"of {exact(budget[kind])} " if kind in budget else "")
        + f"{UNITS[kind]} spent"
        + (f" (unknown of {counted(amount.unknown, 'trial')})" if amount.unknown else "")
        for kind, amount in spent.items()
        if amount.known or kind in budget
    ]


def call_texts(usage: Sequence[ModelUse]) -> Iterator[str]:
    """Yield phrases about the trials' calls to models, if there were any."""
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
    """Yield phrases about the calls to models by running trials, if there are any."""
    if calls["calls"]:
        yield f"{counted(calls['calls'], 'call')} by running trials"
    if calls["waited_s"] >= 1:
        yield f"{clock_time(calls['waited_s'])} waited for limits"


def paused_text(state: RunState) -> str:
    """Return the pauses of a run as a sentence; empty if there are none."""
    return "; ".join(
        paused_sentence(
            scope_phrase(pause.scope, pause.name),
            pause.since,
            source_phrase(pause.requested_by, pause.because),
        )
        for pause in state.pauses
    )


def waiting_requests_text(state: RunState) -> str:
    """Return the requests that wait for the run's owner; empty if there are none."""
    return "; ".join(
        f"request {request.number} of {request.requested_by} waits: {request.phrase}"
        for request in state.waiting_requests
    )
