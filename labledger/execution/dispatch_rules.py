"""When nothing is dispatched although slots are left: pauses, too many errors, pruned variants.

Three causes pause dispatch: the engine is gone, the engine refuses every container, or a disk is
full. Running trials continue meanwhile. A pause reports its cause, checks with a growing backoff
whether the cause has gone, and stops the run, resumable, once it has lasted longer than the
patience of the run, so that a broken machine does not turn every slot into an error.

`--max-error-rate` counts setup, grader and infrastructure errors, which say nothing about an agent,
of the slots that this coordinator committed; of a regrading, of all slots. Pruning commits the rest
of a variant whose slots fail one after the other as `skipped_pruned`. Slots are counted in schedule
order, so that no decision depends on which trial ended first. Time-outs under pressure only warn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from labledger import clock
from labledger.clock import Backoff
from labledger.engine.engine import Engine
from labledger.errors import EngineUnavailable
from labledger.execution.run_events import Listener, run_event
from labledger.experiment.schedule import Prune
from labledger.ledger.database.model import Stop
from labledger.records.attempt_result import AttemptResult
from labledger.records.outcomes import NEVER_RUN, SlotStatus, StopCause
from labledger.records.resource_pressure import TimeoutCounts, pressure_of

PATIENCE_S = 600.0
"""How long a pause may last, in seconds, before the run stops, resumable."""

REFUSALS_BEFORE_PAUSE = 5
"""How many trials in a row must fail to start before dispatch pauses."""

_FIRST_INTERVAL_S = 0.5
_MAX_INTERVAL_S = 10.0

CheckCause = Callable[[], str | None]
"""Returns why dispatch cannot continue yet, or None once the cause has gone."""


@dataclass(slots=True)
class DispatchPause:
    """A pause of dispatch for one cause.

    The time between two checks doubles and is randomized, so that several coordinators do not
    query an engine that was just restarted at the same moment. If the cause returns before any
    result was made durable, the earlier pause continues, so that patience also runs out if the
    cause comes and goes.
    """

    cause: str
    check_cause: CheckCause
    emit: Listener
    patience_s: float
    active: bool = False
    _paused_since: float | None = None
    _backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_INTERVAL_S, _MAX_INTERVAL_S))
    _next_check: float = 0.0

    def begin(self, message: str) -> None:
        """Pause dispatch from now on. `message` says what is known of the cause."""
        if self.active:
            return
        self.active = True
        now = clock.monotonic()
        if self._paused_since is None:
            self._paused_since = now
            self._backoff.reset()
        self._schedule_check(now)
        self.emit(
            run_event(
                "dispatch_paused",
                cause=self.cause,
                message=f"{message}; dispatch is paused until this is fixed (for at most "
                f"{self.patience_s:.0f} s); running trials continue",
            )
        )

    def record_progress(self) -> None:
        """Record that a trial's result was made durable: the next pause gets its full patience."""
        if not self.active:
            self._paused_since = None

    def check(self) -> str | None:
        """Check whether the cause has gone, no more often than the backoff allows.

        Return a reason to stop the run once the pause has lasted longer than `patience_s`, else
        None.
        """
        now = clock.monotonic()
        if not self.active or self._paused_since is None or now < self._next_check:
            return None
        remaining_cause = self.check_cause()
        paused_s = now - self._paused_since
        if remaining_cause is None and paused_s <= self.patience_s:
            self.end()
        elif paused_s > self.patience_s:
            return f"{remaining_cause or self.cause} for {self.patience_s:.0f} s"
        else:
            self._schedule_check(now)
        return None

    def end(self) -> None:
        """Resume dispatch."""
        if self.active and self._paused_since is not None:
            self.active = False
            seconds = round(clock.monotonic() - self._paused_since, 1)
            self.emit(run_event("dispatch_resumed", cause=self.cause, seconds=seconds))

    def _schedule_check(self, now: float) -> None:
        self._next_check = now + self._backoff.next_s() * random.uniform(0.75, 1.25)  # noqa: S311


@dataclass(slots=True)
class Refusals:
    """How many trials in a row could not be started. The engine or the trials may be at fault."""

    in_row: int = 0
    last: float = 0.0
    """When the last of them was refused, by the monotonic clock."""
    message: str = ""
    """Why the last of them could not be started."""

    def record(self, message: str) -> None:
        self.in_row += 1
        self.last = clock.monotonic()
        self.message = message

    def record_start(self, created: float) -> bool:
        """Record that a container created at `created` (monotonic clock) could be started.

        Return whether that was after the last refusal: then the engine does not refuse everything.
        """
        is_newer = created > self.last
        if is_newer:
            self.in_row = 0
        return is_newer


@dataclass(slots=True)
class DispatchPauses:
    """Every cause that can pause a run's dispatch."""

    emit: Listener
    patience_s: float
    find_shortage: CheckCause
    """Returns which disk lacks how much space, or None."""
    engine: DispatchPause = field(init=False)
    disk: DispatchPause = field(init=False)
    refusals: DispatchPause = field(init=False)
    _refused: Refusals = field(default_factory=Refusals)
    _allowed_probes: int = 0
    """How many trials may be dispatched as a test while the engine refuses them."""

    def __post_init__(self) -> None:
        self.engine = self._pause(StopCause.ENGINE, _check_engine)
        self.disk = self._pause(StopCause.DISK, self.find_shortage)
        self.refusals = self._pause(StopCause.REFUSALS, self._allow_probe)

    def _pause(self, cause: StopCause, check_cause: CheckCause) -> DispatchPause:
        return DispatchPause(cause.value, check_cause, self.emit, self.patience_s)

    @property
    def active(self) -> bool:
        return any(pause.active for pause in self._all)

    def allowed_dispatches(self, wanted: int) -> int:
        """Return how many of `wanted` trials may be dispatched now."""
        shortage = self.find_shortage()
        if shortage is not None:
            self.disk.begin(shortage)
        if self.engine.active or self.disk.active:
            return 0
        return min(wanted, self._allowed_probes) if self.refusals.active else wanted

    def record_dispatches(self, count: int) -> None:
        """Record that `count` trials were dispatched."""
        self._allowed_probes = max(0, self._allowed_probes - count)

    def record_refusal(self, message: str) -> None:
        """Record that a trial could not be started."""
        self._refused.record(message)
        if self._refused.in_row >= REFUSALS_BEFORE_PAUSE:
            self.refusals.begin(
                f"{self._refused.in_row} trials in a row could not be started: {message}"
            )

    def record_start(self, created: float) -> None:
        """Record that a container created at `created` (monotonic clock) could be started."""
        if self._refused.record_start(created):
            self.refusals.end()

    def record_progress(self) -> None:
        """Record that the result of a trial that ran was made durable."""
        for pause in self._all:
            pause.record_progress()

    def check(self) -> Stop | None:
        """Check each active pause whose backoff is over. Return why to stop the run, or None."""
        for pause in self._all:
            if (message := pause.check()) is not None:
                return Stop(pause.cause, message)
        return None

    @property
    def _all(self) -> tuple[DispatchPause, DispatchPause, DispatchPause]:
        return self.engine, self.disk, self.refusals

    def _allow_probe(self) -> str:
        """Allow one dispatch: only a trial that starts shows that the engine works again."""
        self._allowed_probes = 1
        return f"no trial could be started ({self._refused.message})"


def _check_engine() -> str | None:
    try:
        Engine().connect().close()
    except EngineUnavailable as error:
        return error.message
    return None


_ERRORS = frozenset({SlotStatus.SETUP_ERROR, SlotStatus.GRADE_ERROR, SlotStatus.INFRA_ERROR})
"""Statuses that say nothing about an agent."""

_MIN_SLOTS = 10
"""The rate of fewer slots is not evaluated: it would say little."""

REGRADING_ERRORS = frozenset({SlotStatus.GRADE_ERROR})
"""The errors of a regrading. Other statuses come unchanged from the run that it regrades."""


REGRADING_LIMIT = 0.5
"""The largest share of errors in a regrading, unless `--max-error-rate` sets another."""


@dataclass(slots=True)
class ErrorRate:
    """The share of errors among the slots that were committed after a trial."""

    limit: float | None
    """The largest share allowed; None allows any."""
    error_statuses: frozenset[SlotStatus] = _ERRORS
    committed: int = 0
    errors: int = 0
    regraded_slots: int | None = None
    """How many slots a regrading has; None for any other run."""

    @classmethod
    def of_regrading(
        cls, limit: float | None, slots: int, statuses: Iterable[Mapping[str, int]]
    ) -> Self:
        """Return the share of a regrading of so many slots.

        `statuses` are the numbers of its committed slots by status.
        """
        limit = REGRADING_LIMIT if limit is None else limit
        rate = cls(limit, REGRADING_ERRORS, regraded_slots=slots)
        for counts in statuses:
            for status, count in counts.items():
                rate.count(SlotStatus(status), count)
        return rate

    def count(self, status: SlotStatus, slots: int = 1) -> None:
        """Count committed slots of one status. Slots that were never run do not count."""
        if status not in NEVER_RUN:
            self.committed += slots
            self.errors += slots * (status in self.error_statuses)

    @property
    def is_exceeded(self) -> bool:
        return self.limit is not None and self.errors > self.limit * self.committed

    def exceeds(self, share: float | None) -> bool:
        """Return whether more than a share of enough slots are errors; None is no share."""
        total = _MIN_SLOTS if self.regraded_slots is None else self.regraded_slots
        is_enough = self.committed >= min(_MIN_SLOTS, total)
        return share is not None and is_enough and self.errors > share * self.committed

    @property
    def sentence(self) -> str:
        """How many of the slots are errors."""
        statuses = " or ".join(sorted(self.error_statuses))
        is_regrading = self.regraded_slots is not None
        slots = "slots of the regrading" if is_regrading else "slots committed since this start"
        share = f"{self.errors / self.committed:.0%}"
        return f"{self.errors} of {self.committed} {slots} ({share}) ended as {statuses}"

    def is_last(self, schedule_idx: int) -> bool:
        """Return whether the commit of a slot completes the regrading; False for other runs."""
        return schedule_idx + 1 == self.regraded_slots

    def stop_cause(self) -> str | None:
        """Return why the run should stop, or None while the share is within the limit."""
        if not self.exceeds(self.limit):
            return None
        what_follows = "fix the cause, or resume with a higher rate"
        if self.regraded_slots is not None:
            what_follows = "it is not completed, so that the earlier scores stay current"
        return f"{self.sentence}: more than --max-error-rate {self.limit:g}; {what_follows}"


class Pruning:
    """Counts, for each variant, how many committed slots in a row did not complete.

    A slot counts as failed when its status is not `completed`; a verdict of `fail` is a result,
    not a failure. A skipped slot does not change the count.
    """

    def __init__(self, prune: Prune | None, failures: Mapping[str, int]) -> None:
        self._limit = None if prune is None else prune.max_consecutive_failures
        self._failures = Counter(failures)

    def count(self, variant_id: str, status: SlotStatus) -> None:
        """Count a slot that is committed."""
        if status is SlotStatus.COMPLETED:
            self._failures[variant_id] = 0
        elif status not in NEVER_RUN:
            self._failures[variant_id] += 1

    def is_pruned(self, variant_id: str) -> bool:
        return self._limit is not None and self._failures[variant_id] >= self._limit

    def reason(self, variant_id: str) -> str:
        return f"variant {variant_id} failed {self._failures[variant_id]} slots in a row"


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
