"""The coordinator: dispatches slots in order, and commits each in its turn, one transaction each.

It may die at any line. What it had dispatched goes on without it, and the next coordinator finds
every trial again: committed, staged, or in its container.
"""

from __future__ import annotations

import platform
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from labledger import clock, faults
from labledger.errors import EngineUnavailable, LabLedgerError
from labledger.export.mirrors import MirrorWriter
from labledger.ledger.model import Dispatch, Lease, RunInfo
from labledger.ledger.writer import LedgerWriter
from labledger.records import JsonObject, SlotRecords, SlotStatus, TrialResult
from labledger.runner.events import Listener, event
from labledger.runner.executors import LocalTrials
from labledger.runner.outage import Outage
from labledger.runner.ownership import Heartbeat
from labledger.runner.pruning import Pruning
from labledger.runner.slots import SlotQueue
from labledger.runner.stopping import StopRequest
from labledger.trial.collect import CONTAINER_KILLED
from labledger.trial.container import thread_engine
from labledger.trial.contract import TrialSpec
from labledger.trial.gate import NotStarted
from labledger.trial.worker import Uncollected

_POLL_S = 0.25


@dataclass(slots=True)
class Coordinator:
    """Runs what is left of one run. Owns the writer while it does."""

    run: RunInfo
    lease: Lease
    writer: LedgerWriter
    mirrors: MirrorWriter
    queue: SlotQueue
    trials: LocalTrials
    pruning: Pruning
    retry: JsonObject
    """`max_attempts` and `retry_on`, as resolved."""
    staged: dict[int, int]
    """Attempt of each final result that is staged, by `schedule_idx`."""
    outage: Outage
    stop: StopRequest
    tell: Listener
    next_idx: int = 0
    """The slot to commit next: all before it are committed."""
    trouble: str | None = None
    """Why nothing more is dispatched, where that was not asked for."""
    _running: dict[Future[TrialResult], TrialSpec] = field(default_factory=dict)
    _discards: set[Future[None]] = field(default_factory=set)
    _skipped: dict[int, str] = field(default_factory=dict)
    _lost: set[tuple[int, int]] = field(default_factory=set)
    """Slot and attempt of trials that an outage took out of sight; they are journalled already."""
    _exhausted: bool = False
    _heeded: int = 0
    """The level of the stop request that was told of."""
    _warned: set[str] = field(default_factory=set)
    _heartbeat: Heartbeat = field(init=False)

    def __post_init__(self) -> None:
        self._heartbeat = Heartbeat(self.writer, self.lease, self.trials, self.tell)

    def execute(self) -> bool:
        """Run until every slot is committed or the run is stopped. True when all are committed."""
        self.next_idx = self.run.next_schedule_idx
        try:
            self._heartbeat.beat()
            self._commit_ready()
            while self._dispatch() or self._running:
                self._heed_stop()
                self._collect()
        except BaseException:
            # The containers are left to whoever goes on with the run.
            self.trials.abandon()
            raise
        finally:
            self.trials.shutdown()
        self._reap_discards()
        return self.next_idx == self.run.total_slots

    # -- dispatching

    def _dispatch(self) -> bool:
        """Fill the executor. True while there is something to come."""
        specs: list[TrialSpec] = []
        while self._may_dispatch and len(self._running) + len(specs) < self.trials.capacity:
            spec = self.queue.next_again() or self._next_fresh()
            if spec is None:
                break
            specs.append(spec)
        self._journal([spec for spec in specs if _key(spec) not in self._lost])
        for spec in specs:
            self._running[self.trials.submit(spec)] = spec
            self.tell(event("slot_dispatched", **_about(spec)))
        return bool(specs) or (self.outage.lasts and not self._stopping)

    def _journal(self, specs: list[TrialSpec]) -> None:
        """Note durably that these containers may exist from now on."""
        if specs:
            now, host = clock.utc_now(), platform.node()
            self.writer.journal_dispatch(
                self.lease,
                [Dispatch(s.slot.schedule_idx, s.attempt, s.container, host, now) for s in specs],
            )

    @property
    def _may_dispatch(self) -> bool:
        return not self._stopping and not self.outage.lasts

    def _next_fresh(self) -> TrialSpec | None:
        """The next slot that needs a trial; staged and pruned slots need none."""
        while not self._exhausted:
            slot = self.queue.next_slot()
            if slot is None:
                self._exhausted = True
                return None
            if slot.schedule_idx < self.next_idx or slot.schedule_idx in self.staged:
                continue
            spec = self.queue.spec(slot)
            if self.pruning.is_pruned(slot.variant_id) and not spec.may_exist:
                self._skipped[slot.schedule_idx] = self.pruning.reason(slot.variant_id)
                self._commit_ready()
                continue
            return spec
        return None

    @property
    def _stopping(self) -> bool:
        return self.stop.level > 0 or self.trouble is not None

    def _heed_stop(self) -> None:
        if self._stopping:
            self.trials.close_gate()
        while self._heeded < self.stop.level:
            self._heeded += 1
            self.tell(event("stopping", level=self._heeded))
        if self._heeded > 1 and self.trials.may_start:
            # Every time anew: a trial may have passed the gate just before it was closed.
            for spec in self._running.values():
                try:
                    thread_engine().kill(spec.container)
                except LabLedgerError as error:
                    self._warn(error.message)

    # -- collecting

    def _collect(self) -> None:
        """Wait a moment for trials to end, make each result durable, and commit what can be."""
        if self._running:
            done, _ = wait(self._running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        else:
            done = set()
            time.sleep(_POLL_S)
        for future in sorted(done, key=lambda f: self._running[f].slot.schedule_idx):
            self._take(future, self._running.pop(future))
        self._commit_ready()
        self._reap_discards()
        self._heartbeat.beat()
        self._look_for_engine()
        self.tell(event("tick", running=len(self._running), waiting=len(self.staged)))

    def _look_for_engine(self) -> None:
        """In an outage, ask the engine from time to time; give up when that was long enough."""
        if self.outage.lasts:
            self.trouble = self.trouble or self.outage.look()

    def _take(self, future: Future[TrialResult], spec: TrialSpec) -> None:
        try:
            result = future.result()
        except NotStarted:
            return
        except EngineUnavailable as error:
            # Nobody's fault and no result: its container may live on, and is looked for again.
            self.outage.begin(error.message)
            self._lost.add(_key(spec))
            self.queue.again(spec)
            return
        except Uncollected as error:
            self.trouble = error.message
            self._warn(error.message)
            return
        if self.stop.level > 1 and result.reason == CONTAINER_KILLED:
            self._discard(spec)
            return
        self._keep(result, spec)

    def _keep(self, result: TrialResult, spec: TrialSpec) -> None:
        """Make a result durable: committed where it is its turn, staged otherwise."""
        retry = self.retry
        again = result.status in retry["retry_on"] and result.attempt < retry["max_attempts"]
        records = None
        if not again and result.schedule_idx == self.next_idx:
            faults.reached("before_commit", result.schedule_idx)
            records = self.writer.commit_result(self.lease, result)
        else:
            faults.reached("before_stage", result.schedule_idx)
            self.writer.stage(self.lease, result, final=not again)
            faults.reached("after_stage", result.schedule_idx)
        self.tell(
            event(
                "trial_finished",
                **_about(spec),
                status=result.status.value,
                reason=result.reason,
                verdict=result.verdict,
                duration_ms=result.duration_ms,
                will_retry=again,
            )
        )
        if again:
            self.queue.retry(spec)
        elif records is not None:
            self._committed(records)
        else:
            self.staged[result.schedule_idx] = result.attempt
        self._discard(spec)

    # -- committing

    def _commit_ready(self) -> None:
        """Commit every slot whose turn has come."""
        while True:
            if self.next_idx in self.staged:
                records = self.writer.commit_staged(self.lease, self.next_idx)
                del self.staged[self.next_idx]
            elif self.next_idx in self._skipped:
                records = self.writer.commit_unexecuted(
                    self.lease,
                    self.next_idx,
                    SlotStatus.SKIPPED_PRUNED,
                    self._skipped.pop(self.next_idx),
                )
            else:
                return
            self._committed(records)

    def _committed(self, records: SlotRecords) -> None:
        faults.reached("after_commit", records.schedule_idx)
        self._heartbeat.beat()
        self.mirrors.append(records)
        self.next_idx = records.schedule_idx + 1
        self.pruning.note(records.variant_id, records.status)
        self.tell(
            event(
                "slot_committed",
                schedule_idx=records.schedule_idx,
                variant_id=records.variant_id,
                status=records.status.value,
                verdict=records.verdict,
                running=len(self._running),
                waiting=len(self.staged),
            )
        )

    # -- removing

    def _discard(self, spec: TrialSpec) -> None:
        self._discards.add(self.trials.discard(spec))

    def _reap_discards(self) -> None:
        """Tell of removals that failed; the sweep at the run's end tries again."""
        for future in [future for future in self._discards if future.done()]:
            self._discards.discard(future)
            error = future.exception()
            if error is not None:
                self._warn(f"a trial was not cleaned up yet: {error}")

    def _warn(self, message: str) -> None:
        """Tell of something wrong, once."""
        if message not in self._warned:
            self._warned.add(message)
            self.tell(event("warning", message=message))


def _key(spec: TrialSpec) -> tuple[int, int]:
    return spec.slot.schedule_idx, spec.attempt


def _about(spec: TrialSpec) -> dict[str, object]:
    return {"schedule_idx": spec.slot.schedule_idx, **spec.ids.as_json(), "attempt": spec.attempt}
