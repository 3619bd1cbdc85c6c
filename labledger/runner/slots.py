"""Which slots to run next, in schedule order, with what earlier coordinators left of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from labledger.ledger.model import RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject, Slot
from labledger.runner.earlier import EarlierTrials
from labledger.runner.recovery import Leftover
from labledger.trial.contract import TrialPlan, TrialSpec

_CHUNK = 512


class SlotQueue:
    """Hands out trial specs: retries first, then the schedule from where the ledger stands.

    Reads the schedule in chunks, so that memory stays flat and no read transaction stays open.
    """

    def __init__(
        self,
        reader: LedgerReader,
        run: RunInfo,
        plans: Mapping[str, TrialPlan],
        left: Mapping[int, Leftover],
    ) -> None:
        self._reader = reader
        self._run = run
        self._plans = plans
        self._left = left
        self._again: deque[TrialSpec] = deque()
        self._later: deque[tuple[int, TrialSpec]] = deque()
        self._handed_out = 0
        self._chunk: deque[Slot] = deque()
        self._next_idx = run.next_schedule_idx
        self._task: tuple[str, JsonObject] = ("", {})
        self._earlier = EarlierTrials.of_regrading(reader, run)

    def retry(self, spec: TrialSpec, *, others_first: int = 0) -> None:
        """Have the slot run again, as its next attempt, when so many new ones have been tried."""
        following = replace(spec, attempt=spec.attempt + 1, container_may_exist=False)
        if others_first:
            self._later.append((self._handed_out + others_first, following))
        else:
            self._again.append(following)

    def again(self, spec: TrialSpec) -> None:
        """Have the same attempt looked for again, of which nothing is known."""
        self._again.append(replace(spec, container_may_exist=True))

    def next_again(self) -> TrialSpec | None:
        """A slot that was begun before, if it is time for one."""
        if self._later and self._later[0][0] <= self._handed_out:
            return self._later.popleft()[1]
        return self._again.popleft() if self._again else None

    def next_last(self) -> TrialSpec | None:
        """A slot that was begun before, when there are no new ones to try first."""
        return self.next_again() or (self._later.popleft()[1] if self._later else None)

    def next_slot(self) -> Slot | None:
        """The next slot of the schedule, or None at its end."""
        if not self._chunk:
            slots = self._reader.slots(self._run.run_id, self._next_idx)
            self._chunk.extend(islice(slots, _CHUNK))
            self._next_idx += len(self._chunk)
        if not self._chunk:
            return None
        self._handed_out += 1
        return self._chunk.popleft()

    def never_ran(self, slot: Slot) -> str | None:
        """Of a regrading: why there is nothing to judge, where its slot was never run."""
        return None if self._earlier is None else self._earlier.why_none(slot.schedule_idx)

    def was_begun(self, slot: Slot) -> bool:
        """True where an earlier coordinator may have created its container."""
        left = self._left.get(slot.schedule_idx)
        return left is not None and left.may_exist

    def spec(self, slot: Slot) -> TrialSpec:
        """What a worker needs for a slot, with the attempt to go on with."""
        left = self._left.get(slot.schedule_idx, Leftover(1, staged=False, may_exist=False))
        return TrialSpec(
            plan=self._plans[slot.variant_id],
            slot=slot,
            run_id=self._run.run_id,
            attempt=left.attempt,
            task=self._task_row(slot.task_id),
            container_may_exist=left.may_exist,
            regraded_trial=None
            if self._earlier is None
            else self._earlier.trial(slot.schedule_idx),
        )

    def _task_row(self, task_id: str) -> JsonObject:
        """A frozen task row; neighbours in the schedule often share one."""
        if self._task[0] != task_id:
            self._task = (task_id, self._reader.task(self._run.run_id, task_id))
        return self._task[1]
