"""The attempts to dispatch next, and those that were submitted and have not been handled.

Retries and requeued attempts come first, then the slots of the schedule in order. A slot that an
earlier coordinator dispatched continues with that attempt. The schedule is read in chunks, so that
memory stays flat and no read transaction stays open. Each future of a submitted attempt announces
its own end, so that the cost of waiting does not grow with the number of attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from heapq import heappop, heappush
from itertools import islice
from queue import Empty, SimpleQueue

from labledger.execution.local_executor import drain
from labledger.experiment.task_row import Task
from labledger.ledger.database.model import RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.records.attempt_result import AttemptResult, digest_of
from labledger.records.identity import Slot, TrialIds
from labledger.records.slot_records import SlotRecords
from labledger.trial.attempt_spec import AttemptSpec, StoredTrial, TrialPlan
from labledger.trial.regrading.regraded_trial import RegradedTrial
from labledger.trial.trial_kind import FreshTrial
from labledger.upkeep.unfinished_slots import UnfinishedSlot

_CHUNK = 512


class StoredTrials:
    """The committed trials of the root run of a regrading, read slot by slot from the ledger."""

    def __init__(self, reader: LedgerReader, run_id: str) -> None:
        self._reader = reader
        self._run_id = run_id
        self._last_records: SlotRecords | None = None

    def reason_not_stored(self, schedule_idx: int) -> str | None:
        """Return why a slot's trial was never run, or None if it was run."""
        records = self._records(schedule_idx)
        return None if records.trials else records.reason or records.status.value

    def trial(self, schedule_idx: int) -> StoredTrial:
        """Return a stored trial: its records, and the small artifacts of its last attempt."""
        records = self._records(schedule_idx)
        (record,) = records.objects("trials")
        evidence = records.objects("evidence")[-1]
        references = evidence["evidence"].values()
        digests = [digest_of(reference) for reference in references]
        contents = self._reader.small_artifacts(digests)
        return StoredTrial(TrialIds(**record["ids"]), record, evidence, contents)

    def _records(self, schedule_idx: int) -> SlotRecords:
        if self._last_records is None or self._last_records.schedule_idx != schedule_idx:
            self._last_records = next(
                self._reader.slot_records(self._run_id, schedule_idx, schedule_idx + 1)
            )
        return self._last_records


class SlotQueue:
    """The schedule of a run from its first uncommitted slot, and the attempts of its slots."""

    def __init__(
        self,
        reader: LedgerReader,
        run: RunInfo,
        plans: Mapping[str, TrialPlan],
        unfinished: Mapping[int, UnfinishedSlot],
        stored_trials: StoredTrials | None = None,
    ) -> None:
        """`stored_trials` are those that a regrading grades again; None for any other run."""
        self._reader = reader
        self._run = run
        self._plans = plans
        self._unfinished = unfinished
        self._chunk: deque[Slot] = deque()
        self._next_idx = run.next_schedule_idx
        self._task: Task | None = None
        self._stored_trials = stored_trials

    @property
    def upcoming_idx(self) -> int:
        """The slot that `next_slot` returns next, unless the schedule ends before it."""
        return self._next_idx - len(self._chunk)

    def next_slot(self) -> Slot | None:
        """Return the next slot of the schedule, or None at its end."""
        if not self._chunk:
            slots = self._reader.slots(self._run.run_id, self._next_idx)
            self._chunk.extend(islice(slots, _CHUNK))
            self._next_idx += len(self._chunk)
        return self._chunk.popleft() if self._chunk else None

    def reason_never_run(self, slot: Slot) -> str | None:
        """Return why a regrading has no trial to grade for a slot.

        None if there is a trial, and for a run that is not a regrading.
        """
        if self._stored_trials is None:
            return None
        return self._stored_trials.reason_not_stored(slot.schedule_idx)

    def was_dispatched(self, slot: Slot) -> bool:
        """Return whether an earlier coordinator may have created a container for a slot."""
        unfinished = self._unfinished.get(slot.schedule_idx)
        return unfinished is not None and unfinished.container_may_exist

    def spec(self, slot: Slot) -> AttemptSpec:
        """Return the specification of the attempt with which a slot begins or continues."""
        never_dispatched = UnfinishedSlot(1, staged=False, container_may_exist=False)
        unfinished = self._unfinished.get(slot.schedule_idx, never_dispatched)
        stored = self._stored_trials
        return AttemptSpec(
            plan=self._plans[slot.variant_id],
            slot=slot,
            run_id=self._run.run_id,
            attempt=unfinished.attempt,
            task=self._task_of(slot),
            kind=FreshTrial() if stored is None else RegradedTrial(stored.trial(slot.schedule_idx)),
            container_may_exist=unfinished.container_may_exist,
            host=unfinished.host,
        )

    def _task_of(self, slot: Slot) -> Task:
        """Return the task of a slot. The last one is cached: neighbouring slots often share it."""
        if self._task is None or self._task.task_id != slot.task_id:
            self._task = Task.of_row(self._reader.task(self._run.run_id, slot.task_id))
        return self._task


class PendingAttempts:
    """Submitted attempts, until `pop_ended` returns them."""

    def __init__(self) -> None:
        self._specs: dict[Future[AttemptResult], AttemptSpec] = {}
        self._newly_ended: SimpleQueue[Future[AttemptResult]] = SimpleQueue()
        """Filled by the executor's threads, emptied into `_ended`."""
        self._ended: list[tuple[int, int, Future[AttemptResult]]] = []
        """A heap of slot, attempt number and future."""

    def __len__(self) -> int:
        return len(self._specs)

    def __iter__(self) -> Iterator[AttemptSpec]:
        return iter(self._specs.values())

    def add(self, future: Future[AttemptResult], spec: AttemptSpec) -> None:
        """Add an attempt that was submitted."""
        self._specs[future] = spec
        future.add_done_callback(self._newly_ended.put)

    def pop_ended(self) -> tuple[Future[AttemptResult], AttemptSpec] | None:
        """Remove and return the ended attempt with the lowest slot, or None if none has ended.

        In schedule order, most results are committed at once instead of being staged first.
        """
        for future in drain(self._newly_ended):
            self._push_ended(future)
        if not self._ended:
            return None
        future = heappop(self._ended)[-1]
        return future, self._specs.pop(future)

    def wait_for_next_end(self, timeout_s: float) -> None:
        """Return when another attempt ends, after `timeout_s` at the latest.

        Attempts that have ended already are not waited for: call it after `pop_ended` returned
        None.
        """
        try:
            self._push_ended(self._newly_ended.get(timeout=timeout_s))
        except Empty:
            return

    def _push_ended(self, future: Future[AttemptResult]) -> None:
        spec = self._specs[future]
        heappush(self._ended, (*spec.key, future))
