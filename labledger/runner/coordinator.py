"""The coordinator: dispatches slots in order, and commits each in its turn, one transaction each.

It does one thing at a time, and fills the places that are free each time: what is dispatched next
is journaled in the transaction of the result that made room for it.

It may die at any line. What it had dispatched goes on without it, and the next coordinator finds
every trial again: committed, staged, or in its container.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

from labledger.errors import EngineUnavailable, LabLedgerError, NoRoom
from labledger.ledger.model import RunInfo, Stop
from labledger.records import NOT_STARTED, JsonObject, StopCause, TrialResult
from labledger.runner.bookkeeping import Bookkeeper
from labledger.runner.events import Listener, event
from labledger.runner.executors import LocalTrials, taken
from labledger.runner.holds import REFUSALS, Holds
from labledger.runner.keeping import Keep
from labledger.runner.running import RunningTrials
from labledger.runner.slots import SlotQueue
from labledger.runner.stopping import StopRequest
from labledger.trial.collect import CONTAINER_KILLED
from labledger.trial.container import thread_engine
from labledger.trial.contract import TrialSpec
from labledger.trial.gate import StartRefused
from labledger.trial.grading import DISK_FULL
from labledger.trial.identity import find_container, kill_container
from labledger.trial.regrading import is_carried_over
from labledger.trial.uncollected import OutputUnreadable

_POLL_S = 0.25
_MOST_AT_ONCE = 256
"""How many trials are journaled in one transaction, so that the first need not wait for the last.
"""
_MOST_REMOVING = 2
"""How many times as many trials may await their removal as may be in hand: their folders fill the
disk, and no faster than they are removed."""
_COMMITS_A_RESULT = 4
"""How many slots that waited for their turn are committed for each result that is taken: the fewer
wait, the more results are committed without being staged first.
"""
_STOPPED = "a second Ctrl-C ended its container; its agent had begun"


@dataclass(slots=True)
class Coordinator:
    """Runs what is left of one run. Owns the writer while it does."""

    run: RunInfo
    books: Bookkeeper
    queue: SlotQueue
    trials: LocalTrials
    retry: JsonObject
    """`max_attempts` and `retry_on`, as resolved."""
    holds: Holds
    keep: Keep
    stop: StopRequest
    tell: Listener
    trouble: Stop | None = None
    """Why nothing more is dispatched, where that was not asked for."""
    _running: RunningTrials = field(default_factory=RunningTrials)
    _discarded: SimpleQueue[Future[None]] = field(default_factory=SimpleQueue)
    """Removals that have ended; each tells of its end itself."""
    _removing: int = 0
    """How many removals have not ended, or were not told of."""
    _lost: set[tuple[int, int]] = field(default_factory=set)
    """Slot and attempt of trials without a result yet; they are journalled already."""
    _exhausted: bool = False
    _heeded: int = 0
    """The level of the stop request that was told of."""
    _warned: set[str] = field(default_factory=set)
    _ticked: float = 0.0

    def execute(self) -> bool:
        """Run until every slot is committed or the run is stopped. True when all are committed."""
        try:
            self.books.renew()
            self.books.commit_ready()
            self._look_for_trouble(self.books.trouble)
            while self._advance():
                pass
        except BaseException:
            # The containers are left to whoever goes on with the run.
            self.trials.abandon()
            raise
        finally:
            self.trials.shutdown()
        self._reap_discards()
        return self.books.next_idx == self.run.total_slots

    def _advance(self) -> bool:
        """Take one result, commit a few slots, fill the places; or wait. False at the run's end."""
        self._heed_stop()
        advanced = self._take_next()
        for _ in range(_COMMITS_A_RESULT):
            if not self._commit_next():
                break
            advanced = True
        self._look_around()
        advanced = self._dispatch() or advanced
        if advanced:
            if time.monotonic() - self._ticked > _POLL_S:
                self._tick()
            return True
        if not (self._running or self._removing) and (self._stopping or not self.holds.last):
            return False
        self._kill_if_asked()
        self._tick()
        if self._running:
            self._running.wait(_POLL_S)
        else:
            self._await_discard(_POLL_S)
        return True

    # -- dispatching

    def _dispatch(self) -> bool:
        """Fill the places that are still free.

        True where something was dispatched, or can be committed now.
        """
        was_ready = self.books.is_ready
        specs = self._choose()
        if not specs:
            return self.books.is_ready and not was_ready
        return self._dispatch_with(self.books.journal, specs)

    def _dispatch_with(
        self, write: Callable[[list[TrialSpec]], bool], specs: list[TrialSpec]
    ) -> bool:
        """Have `write` journal these trials, with what else it writes, and start them then.

        False where nothing was written; they are dispatched another time.
        """
        if not write([spec for spec in specs if _key(spec) not in self._lost]):
            for spec in specs:
                self.queue.again(spec)
            return False
        if self._stopping and not self._only_collects:
            # Asked for meanwhile: they are journaled, and whoever resumes the run starts them.
            return True
        self.holds.dispatched(len(specs))
        for spec in specs:
            self._running.add(self.trials.submit(spec), spec)
            self.tell(event("slot_dispatched", **_about(spec)))
        return True

    def _choose(self) -> list[TrialSpec]:
        """What to dispatch next, no more than there are places for."""
        self._look_for_trouble(self.books.trouble)
        fills = not self._stopping or self._only_collects
        wanted = self.trials.capacity - len(self._running) if fills else 0
        wanted = min(wanted, _MOST_REMOVING * self.trials.capacity - self._removing)
        allowed = min(self.holds.allowance(wanted), _MOST_AT_ONCE) if wanted > 0 else 0
        specs: list[TrialSpec] = []
        while len(specs) < allowed and (spec := self._next_spec()) is not None:
            specs.append(spec)
        return specs

    def _choose_beside(self) -> list[TrialSpec]:
        """The same, beside a result that is about to be written, where that takes no time."""
        return [] if self._only_collects else self._choose()

    def _next_spec(self) -> TrialSpec | None:
        """What to dispatch next: slots begun before new ones, unless the engine refuses those."""
        if self._only_collects:
            return self._next_paid()
        if self.holds.refusals.lasts:
            return self._next_fresh() or self.queue.next_last()
        return self.queue.next_again() or self._next_fresh() or self.queue.next_last()

    def _next_paid(self) -> TrialSpec | None:
        """The next trial whose container an earlier coordinator started."""
        while (spec := self.queue.next_again() or self._next_fresh()) is not None:
            if spec.container_may_exist and _has_started(spec):
                return spec
        return None

    def _next_fresh(self) -> TrialSpec | None:
        """The next slot that needs a trial; staged and pruned slots need none.

        None also as soon as one that needs none can be committed: that comes first.
        """
        while not self._exhausted:
            slot = self.queue.next_slot()
            if slot is None:
                self._exhausted = True
                return None
            if slot.schedule_idx < self.books.next_idx or slot.schedule_idx in self.books.staged:
                continue
            if self._only_collects and not self.queue.was_begun(slot):
                continue
            spec, why = None, self.queue.never_ran(slot)
            if why is None:
                spec = self.queue.spec(slot)
                if self.books.pruning.is_pruned(slot.variant_id) and not spec.container_may_exist:
                    why = self.books.pruning.reason(slot.variant_id)
            if why is None:
                return spec
            self.books.skip(slot.schedule_idx, why)
            if self.books.is_ready:
                return None
        return None

    @property
    def _stopping(self) -> bool:
        return self.stop.level > 0 or self.trouble is not None

    @property
    def _only_collects(self) -> bool:
        """True where nothing is started for want of budget: what has been is paid for."""
        return self.stop.level == 0 and self.trouble is not None and self.books.is_spent

    def _heed_stop(self) -> None:
        if self._stopping:
            self.trials.close_gate()
        while self._heeded < self.stop.level:
            self._heeded += 1
            self.tell(event("stopping", level=self._heeded))
            self._kill_if_asked()

    def _kill_if_asked(self) -> None:
        """End every container, at the second Ctrl-C and ever again while nothing else happens.

        A trial may have passed the gate just before it was closed.
        """
        if self._heeded < 2 or not self.trials.may_start:
            return
        for spec in self._running:
            try:
                kill_container(thread_engine(), spec)
            except LabLedgerError as error:
                self._warn(error.message)

    # -- collecting

    def _take_next(self) -> bool:
        """Make the result of a trial that has ended durable. False where none has."""
        ended = self._running.take()
        if ended is not None:
            self._take(*ended)
        return ended is not None

    def _commit_next(self) -> bool:
        """Commit the next slot where its turn has come. False where that is not so, or failed."""
        if not self.books.is_ready:
            return False
        specs = self._choose_beside() if self.books.note_next() else []
        return self._dispatch_with(self.books.commit_next, specs)

    def _look_around(self) -> None:
        """What is looked after however much else there is to do."""
        for spec, text in self.trials.noted():
            self._tell_note(spec, text)
        for spec in self.trials.paused():
            self._warn_of_pause(spec)
        self._reap_discards()
        self.books.renew()
        self.holds.started(self.trials.last_good)
        self._look_for_trouble(self.holds.look)

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        # Trials that run are to know when a disk was full, also where nothing is dispatched.
        self.holds.allowance(0)
        running, waiting = len(self._running), len(self.books.staged)
        self.tell(event("tick", running=running, waiting=waiting, removing=self._removing))

    def _look_for_trouble(self, look: Callable[[], Stop | None]) -> None:
        """Stop dispatching for good where `look` gives a reason to; the first one found stands."""
        if self.trouble is not None:
            return
        self.trouble = look()
        if self.trouble is not None and self.trouble.cause == StopCause.BUDGET:
            self.books.budget.stop(in_flight=min(len(self._running), self.trials.width))

    def _take(self, future: Future[TrialResult], spec: TrialSpec) -> None:
        try:
            result = future.result()
        except StartRefused:
            return
        except EngineUnavailable as error:
            self.holds.engine.begin(error.message)
            self._look_again(spec)
            return
        except NoRoom as error:
            self.holds.disk.begin(error.message)
            self._look_again(spec)
            return
        except OutputUnreadable as error:
            self.trouble = Stop(StopCause.UNCOLLECTED, error.message)
            self._warn(error.message)
            return
        if is_carried_over(spec):
            # What it says of engine, disk or container was so when its agent ran.
            self._keep(result, spec)
            return
        if self.stop.level > 1 and result.reason == CONTAINER_KILLED:
            self._watch_discard(self.trials.withdraw(spec, _STOPPED))
            return
        if result.reason == DISK_FULL:
            self.holds.disk.begin(result.message or "")
        has_run = result.reason not in NOT_STARTED
        if not has_run:
            self.holds.refused(result.message or "")
        if not has_run and self.holds.refusals.lasts:
            self._look_again(spec)
        elif self._keep(result, spec) and has_run:
            self.holds.progressed()

    def _look_again(self, spec: TrialSpec) -> None:
        """Have a trial without a result looked for again: its container may live on."""
        self._lost.add(_key(spec))
        self.queue.again(spec)

    def _keep(self, result: TrialResult, spec: TrialSpec) -> bool:
        """Make a result durable, and say whether that could be done."""
        retry = self.retry
        for text in result.notes:
            self._tell_note(spec, text)
        again = result.status in retry["retry_on"] and result.attempt < retry["max_attempts"]
        again = again and not is_carried_over(spec)
        self.books.note(result, final=not again)
        # A retry goes before what is new, and can follow only when this attempt is durable.
        specs = [] if again else self._choose_beside()
        if not self._dispatch_with(partial(self.books.keep, result, final=not again), specs):
            # Its container is there still, to be collected again.
            self._look_again(spec)
            return False
        if again:
            # What was refused may be its own fault or the engine's: others tell which.
            others_first = REFUSALS if result.reason in NOT_STARTED else 0
            self.queue.retry(spec, others_first=others_first)
        self._discard(spec, keep_folder=self.keep.holds(result.status, result.verdict))
        return True

    # -- removing

    def _discard(self, spec: TrialSpec, *, keep_folder: bool) -> None:
        self._watch_discard(self.trials.discard(spec, keep_folder=keep_folder))

    def _watch_discard(self, future: Future[None]) -> None:
        self._removing += 1
        future.add_done_callback(self._discarded.put)

    def _await_discard(self, timeout_s: float) -> None:
        """Return when a removal has ended, after `timeout_s` at the latest."""
        try:
            self._reap(self._discarded.get(timeout=timeout_s))
        except Empty:
            return

    def _reap_discards(self) -> None:
        for future in taken(self._discarded):
            self._reap(future)

    def _reap(self, future: Future[None]) -> None:
        """Tell of a removal where it failed; the sweep at the run's end tries again."""
        self._removing -= 1
        error = future.exception()
        if error is not None:
            self._warn(f"a trial was not cleaned up yet: {error}")

    def _tell_note(self, spec: TrialSpec, reason: str) -> None:
        """Tell that an attempt is begun anew, and why, once."""
        idx, attempt = _key(spec)
        message = f"slot {idx}, attempt {attempt}, is run again: {reason}"
        self._warn(message, schedule_idx=idx, attempt=attempt, reason=reason)

    def _warn_of_pause(self, spec: TrialSpec) -> None:
        idx, attempt = _key(spec)
        message = (
            f"slot {idx}, attempt {attempt}: its container is paused and holds its place until "
            f"its deadline; `docker unpause {spec.container}` lets it go on"
        )
        self._warn(message, schedule_idx=idx, attempt=attempt)

    def _warn(self, message: str, **about: object) -> None:
        """Tell of something wrong, once."""
        if message not in self._warned:
            self._warned.add(message)
            self.tell(event("warning", message=message, **about))


def _has_started(spec: TrialSpec) -> bool:
    try:
        state = find_container(thread_engine(), spec)
    except LabLedgerError:
        return False
    return state is not None and state.has_started


def _key(spec: TrialSpec) -> tuple[int, int]:
    return spec.slot.schedule_idx, spec.attempt


def _about(spec: TrialSpec) -> dict[str, object]:
    return {"schedule_idx": spec.slot.schedule_idx, **spec.ids.as_json(), "attempt": spec.attempt}
