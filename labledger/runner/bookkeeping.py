"""Makes results durable as they come, and commits each slot in its turn, one transaction each."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from labledger import clock, faults
from labledger.errors import LedgerError, LedgerFull
from labledger.export.mirrors import MirrorWriter
from labledger.ledger.model import Dispatch, Lease, Stop
from labledger.ledger.writer import LedgerWriter
from labledger.passing import has_passed
from labledger.records import SlotRecords, SlotStatus, StopCause, TrialResult
from labledger.runner.budget import Budget
from labledger.runner.error_rate import ErrorRate
from labledger.runner.events import Listener, event
from labledger.runner.holds import Hold
from labledger.runner.ownership import Heartbeat
from labledger.runner.pruning import Pruning
from labledger.trial import disks, traces
from labledger.trial.contract import TrialSpec


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a slot, as far as it matters to what is dispatched next."""

    variant_id: str
    status: SlotStatus


@dataclass(slots=True)
class Bookkeeper:
    """The coordinator's hand in the ledger. Owns the writer.

    Where the ledger's disk turns out to be full, nothing is lost: dispatch is held back, and what
    could not be written is to be written later.
    """

    lease: Lease
    writer: LedgerWriter
    mirrors: MirrorWriter
    mend_mirrors: Callable[[], None]
    """Brings the mirrors to where the ledger is."""
    pruning: Pruning
    error_rate: ErrorRate
    budget: Budget
    staged: dict[int, Ending | None]
    """What each final result that is staged comes to, by `schedule_idx`; None where an earlier
    coordinator staged it."""
    disk: Hold
    next_idx: int
    """The slot to commit next: all before it are committed."""
    heartbeat: Heartbeat
    tell: Listener
    _skipped: dict[int, str] = field(default_factory=dict)
    _unwritten: set[tuple[int, int]] = field(default_factory=set)
    """Slot and attempt of results that are counted, and not written yet."""
    _noted_idx: int = -1
    """The last slot whose ending is counted."""
    _behind: bool = False
    """True when the mirrors lack something that is committed."""

    def note(self, result: TrialResult, *, final: bool) -> None:
        """Count a result before it is written, so that what is dispatched with it heeds it.

        It is counted once, however often writing it fails.
        """
        key = result.schedule_idx, result.attempt
        if key not in self._unwritten:
            self._unwritten.add(key)
            self.budget.note(result)
        if final and result.schedule_idx == self.next_idx:
            self._note_ending(Ending(result.ids.variant_id, result.status))

    def note_next(self) -> bool:
        """Count the slot to commit next before it is committed; False where too little is known."""
        ending = self.staged.get(self.next_idx)
        if ending is not None:
            self._note_ending(ending)
        return ending is not None or self.next_idx in self._skipped

    def _note_ending(self, ending: Ending) -> None:
        if self._noted_idx < self.next_idx:
            self._noted_idx = self.next_idx
            self.pruning.note(ending.variant_id, ending.status)
            self.error_rate.note(ending.status)

    def journal(self, specs: Sequence[TrialSpec]) -> bool:
        """Note durably that these containers may exist from now on; False where that fails."""
        with self._room_needed():
            if specs:
                self.writer.journal_dispatch(self.lease, _dispatches(specs))
            return True
        return False

    def keep(self, result: TrialResult, specs: Sequence[TrialSpec] = (), *, final: bool) -> bool:
        """Make a result durable: published where it is its turn, staged otherwise.

        The dispatch of `specs` is journaled in the same transaction. False where that could not be
        done. `final` is False where another attempt follows.
        """
        idx = result.schedule_idx
        with self._room_needed():
            if final and idx == self.next_idx:
                faults.reached("before_commit", idx)
                records = self.writer.commit_result(self.lease, result, _dispatches(specs))
                self._written(result, will_retry=False)
                self._published(records)
                return True
            faults.reached("before_stage", idx)
            self.writer.stage(self.lease, result, final=final, dispatches=_dispatches(specs))
            faults.reached("after_stage", idx)
            self._written(result, will_retry=not final)
            if final:
                self.staged[idx] = Ending(result.ids.variant_id, result.status)
            return True
        return False

    def _written(self, result: TrialResult, *, will_retry: bool) -> None:
        self.note(result, final=not will_retry)
        self._unwritten.discard((result.schedule_idx, result.attempt))
        self.tell(
            event(
                "trial_finished",
                schedule_idx=result.schedule_idx,
                **result.ids.as_json(),
                attempt=result.attempt,
                status=result.status.value,
                reason=result.reason,
                verdict=result.verdict,
                duration_ms=result.duration_ms,
                **self.budget.amounts(result),
                will_retry=will_retry,
            )
        )

    def trouble(self) -> Stop | None:
        """Why no more should be dispatched, by what has been kept so far."""
        if (message := self.error_rate.trouble()) is not None:
            return Stop(StopCause.ERROR_RATE, message)
        if self.budget.used_up():
            return Stop(StopCause.BUDGET, self.budget.message())
        return None

    @property
    def is_spent(self) -> bool:
        return bool(self.budget.used_up())

    def skip(self, schedule_idx: int, reason: str) -> None:
        """Have a slot committed as not run, when its turn comes."""
        self._skipped[schedule_idx] = reason

    @property
    def is_ready(self) -> bool:
        """True while the turn of a slot has come that can be committed."""
        return self.next_idx in self.staged or self.next_idx in self._skipped

    def commit_ready(self) -> None:
        """Commit every slot whose turn has come."""
        while self.is_ready and self.commit_next():
            pass

    def commit_next(self, specs: Sequence[TrialSpec] = ()) -> bool:
        """Commit the slot whose turn has come, and journal the dispatch of `specs` with it.

        False where that could not be done.
        """
        idx = self.next_idx
        with self._room_needed():
            dispatches = _dispatches(specs)
            if idx in self.staged:
                records = self.writer.commit_staged(self.lease, idx, dispatches)
                del self.staged[idx]
            else:
                reason, status = self._skipped[idx], SlotStatus.SKIPPED_PRUNED
                records = self.writer.commit_unexecuted(self.lease, idx, status, reason, dispatches)
                del self._skipped[idx]
            self._published(records)
            return True
        return False

    def _published(self, records: SlotRecords) -> None:
        faults.reached("after_commit", records.schedule_idx)
        self._note_ending(Ending(records.variant_id, records.status))
        self.next_idx = records.schedule_idx + 1
        self.renew()
        self._mirror(records)
        if not isinstance(records.events, tuple):
            self.writer.delete_event_files(self.lease.run_id, self.next_idx)
        self.tell(
            event(
                "slot_committed",
                schedule_idx=records.schedule_idx,
                variant_id=records.variant_id,
                status=records.status.value,
                verdict=records.verdict,
                passed=has_passed(records.status, records.verdict, records.agent_exit_status),
                waiting=len(self.staged),
            )
        )

    def _mirror(self, records: SlotRecords) -> None:
        """Append to the mirrors; where they cannot follow now, they catch up later."""
        try:
            if self._behind:
                self.catch_up()
            else:
                self.mirrors.append(records)
        except LedgerError as error:
            if not self._behind:
                message = f"{error.message}; the run goes on, and the mirror catches up when it can"
                self.tell(event("warning", message=message))
            self._behind = True

    def catch_up(self) -> None:
        """Bring the mirrors to where the ledger is. Raises `LedgerError` where that fails."""
        if self._behind:
            self.mend_mirrors()
            self._behind = False

    def renew(self) -> None:
        """Keep the lease, however long a row of commits is."""
        with self._room_needed():
            self.heartbeat.beat()

    @contextmanager
    def _room_needed(self) -> Iterator[None]:
        """Where the ledger's disk is full, hold dispatch back until it is not."""
        place = self.writer.path.parent
        # The ledger's log may be emptied with any write.
        disks.check_disks([place])
        try:
            yield
        except LedgerFull as error:
            disks.record_full(place)
            self.disk.begin(error.message)


def _dispatches(specs: Sequence[TrialSpec]) -> list[Dispatch]:
    """What is to be journaled of these trials, once each new one is marked as not started."""
    for spec in specs:
        if not spec.container_may_exist:
            traces.mark_not_started(spec.folder)
    now, host = clock.utc_now(), platform.node()
    return [Dispatch(s.slot.schedule_idx, s.attempt, s.container, host, now) for s in specs]
