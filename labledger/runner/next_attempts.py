"""Which attempts of a run are dispatched next, each placed on a host.

Attempts that wait for a host come first, then requeued ones and retries, then the slots of the
schedule, as far ahead of the first uncommitted one as the window allows. Slots that are staged or
pruned are passed by. An attempt for which no host has room waits while later slots go on. Attempts
that ask for the same, with the same image, are placed or refused alike, so that only the first of
each kind is tried: a turn costs the same however many wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice

from labledger.execution.executor import TrialExecutor
from labledger.execution.placement import Needs, needs_of
from labledger.runner.commit_queue import CommitQueue
from labledger.runner.retries import RetryQueue
from labledger.runner.slot_queue import SlotQueue
from labledger.trial.attempt_spec import AttemptSpec

_MAX_KINDS_PER_TURN = 8
"""How many kinds are tried in one turn. The others have their turn after them."""


class UnplacedAttempts:
    """Attempts that wait for a host; nothing of them is journaled."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[Needs, str], list[tuple[int, int, AttemptSpec]]] = {}
        """Heaps of slot, attempt number and attempt."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, spec: AttemptSpec) -> None:
        """Let an attempt wait."""
        heap = self._kinds.setdefault(_kind_of(spec), [])
        heappush(heap, (*spec.key, spec))
        self._count += 1

    def has_like(self, spec: AttemptSpec) -> bool:
        """Return whether an attempt that asks for the same as `spec` waits."""
        return bool(self._kinds) and _kind_of(spec) in self._kinds

    def place(
        self,
        place: Callable[[AttemptSpec], AttemptSpec | None],
        limit: int,
        is_dropped: Callable[[AttemptSpec], bool],
    ) -> list[AttemptSpec]:
        """Remove and return the attempts that `place` places now, at most `limit`.

        Of each kind the lowest slots come first. Attempts for which `is_dropped` is true are
        removed as well, when it is their turn.
        """
        placed: list[AttemptSpec] = []
        for kind in list(islice(self._kinds, _MAX_KINDS_PER_TURN)):
            heap = self._kinds.pop(kind)
            while heap and len(placed) < limit:
                first = heap[0][-1]
                if not is_dropped(first):
                    spec = place(first)
                    if spec is None:
                        break
                    placed.append(spec)
                heappop(heap)
                self._count -= 1
            if heap:
                self._kinds[kind] = heap
        return placed


def _kind_of(spec: AttemptSpec) -> tuple[Needs, str]:
    return needs_of(spec), spec.image_id


MIN_WINDOW = 1000
WINDOW_PER_CAPACITY = 4
"""Default of `--window`: so many slots, or so many for each attempt that the executor takes."""
_MAX_PASSED_OVER = 256
"""How many attempts without a host are passed over before other work has its turn."""


@dataclass(slots=True)
class NextAttempts:
    """The attempts that are due, in order. What is placed is the caller's to journal and submit."""

    slot_queue: SlotQueue
    commit_queue: CommitQueue
    executor: TrialExecutor
    window: int | None = None
    """How many slots may be dispatched ahead of the first that is not committed; None for the
    default."""
    retries: RetryQueue = field(default_factory=RetryQueue)
    _unplaced: UnplacedAttempts = field(default_factory=UnplacedAttempts)
    """Attempts for which no host had room when they were due. Later slots go on meanwhile."""
    _schedule_exhausted: bool = False

    @property
    def unplaced(self) -> int:
        """How many attempts wait because no host had room for them."""
        return len(self._unplaced)

    def place(self, limit: int, *, only_started: bool, new_first: bool) -> list[AttemptSpec]:
        """Return the next attempts, placed on hosts, at most `limit`.

        With `only_started`, attempts that an earlier coordinator started. With `new_first`, while
        the engine refuses containers, slots of the schedule before requeued attempts.
        """
        if limit <= 0:
            return []
        if only_started:
            return self._place_next(limit, only_started=True, new_first=new_first)
        specs = self._unplaced.place(self.executor.place, limit, self._skip_if_pruned)
        further = limit - len(specs)
        if self._unplaced and not self.executor.has_room:
            # Attempts that were placed but not submitted already have their room.
            return specs + self._place_again(further)
        return specs + self._place_next(further, only_started=False, new_first=new_first)

    def _place_again(self, limit: int) -> list[AttemptSpec]:
        """Return requeued attempts that have a host, at most `limit`."""
        again = map(self.executor.place, self.retries.take_placed(limit))
        return [spec for spec in again if spec is not None]

    def _place_next(self, limit: int, *, only_started: bool, new_first: bool) -> list[AttemptSpec]:
        """Return the next attempts, placed on hosts, at most `limit`.

        Those that ask for more than any host with room offers are passed over, and wait.
        """
        specs: list[AttemptSpec] = []
        passed_over = 0
        while len(specs) < limit and passed_over < _MAX_PASSED_OVER:
            spec = self._next_spec(only_started=only_started, new_first=new_first)
            if spec is None:
                break
            must_wait = not spec.host and self._unplaced.has_like(spec)
            placed = None if must_wait else self.executor.place(spec)
            if placed is not None:
                specs.append(placed)
                continue
            self._unplaced.add(spec)
            passed_over += 1
            if not self.executor.has_room:
                break
        return specs

    def _next_spec(self, *, only_started: bool, new_first: bool) -> AttemptSpec | None:
        """Return the next attempt: a requeued one first, unless `new_first`."""
        if only_started:
            return self._next_started()
        if new_first:
            # New slots first: another trial may start. `next_deferred` also has requeued attempts.
            return self._next_new(only_started=False) or self.retries.next_deferred()
        requeued = self.retries.next()
        return requeued or self._next_new(only_started=False) or self.retries.next_deferred()

    def _skip_if_pruned(self, spec: AttemptSpec) -> bool:
        """Skip the slot of an attempt without a host if its variant is pruned by now."""
        pruning = self.commit_queue.pruning
        if spec.attempt > 1 or not pruning.is_pruned(spec.slot.variant_id):
            return False
        reason = pruning.reason(spec.slot.variant_id)
        self.commit_queue.skip_slot(spec.slot.schedule_idx, reason)
        return True

    def _next_started(self) -> AttemptSpec | None:
        """Return the next attempt whose container an earlier coordinator started."""
        while (spec := self.retries.next() or self._next_new(only_started=True)) is not None:
            if spec.container_may_exist and self.executor.has_started(spec):
                return spec
        return None

    def _next_new(self, *, only_started: bool) -> AttemptSpec | None:
        """Return the first attempt of the next slot that needs one. Staged and pruned slots do not.

        Return None at the end of the schedule, and also as soon as a slot that will not run is
        ready to commit: committing comes first.
        """
        while not self._schedule_exhausted:
            if not only_started and self._window_is_full:
                return None
            slot = self.slot_queue.next_slot()
            if slot is None:
                self._schedule_exhausted = True
                return None
            self.retries.count_slot()
            idx = slot.schedule_idx
            if idx < self.commit_queue.next_idx or idx in self.commit_queue.staged:
                continue
            if only_started and not self.slot_queue.was_dispatched(slot):
                continue
            spec, skip_reason = None, self.slot_queue.reason_never_run(slot)
            if skip_reason is None:
                spec = self.slot_queue.spec(slot)
                pruning = self.commit_queue.pruning
                if pruning.is_pruned(slot.variant_id) and not spec.container_may_exist:
                    skip_reason = pruning.reason(slot.variant_id)
            if skip_reason is None:
                return spec
            self.commit_queue.skip_slot(idx, skip_reason)
            if self.commit_queue.is_ready:
                return None
        return None

    @property
    def _window_is_full(self) -> bool:
        """Whether dispatch is so far ahead of the first uncommitted slot that it waits for it."""
        window = self.window or max(MIN_WINDOW, WINDOW_PER_CAPACITY * self.executor.capacity)
        ahead = self.slot_queue.upcoming_idx - self.commit_queue.next_idx
        return ahead >= window
