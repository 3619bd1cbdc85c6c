"""The trials that the coordinator has dispatched and whose results it has not taken.

Each future announces its own end, so that the cost of waiting does not grow with the number of
running trials. Used by the coordinator's thread alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from heapq import heappop, heappush
from queue import Empty, SimpleQueue

from labledger.records.attempt_result import AttemptResult
from labledger.runner.trial_executor import drain
from labledger.trial.contract import AttemptSpec


class RunningTrials:
    """Dispatched trials whose results were not taken yet."""

    def __init__(self) -> None:
        self._specs: dict[Future[AttemptResult], AttemptSpec] = {}
        self._arrived: SimpleQueue[Future[AttemptResult]] = SimpleQueue()
        """Filled by the threads of the trials."""
        self._ended: list[tuple[int, int, Future[AttemptResult]]] = []
        """A heap: slot, attempt, and the trial itself."""

    def __len__(self) -> int:
        return len(self._specs)

    def __iter__(self) -> Iterator[AttemptSpec]:
        return iter(self._specs.values())

    def add(self, future: Future[AttemptResult], spec: AttemptSpec) -> None:
        """Add a trial that was submitted."""
        self._specs[future] = spec
        future.add_done_callback(self._arrived.put)

    def take(self) -> tuple[Future[AttemptResult], AttemptSpec] | None:
        """Remove and return the ended trial with the lowest slot, or None if none has ended.

        In schedule order, most results are committed at once instead of being staged first.
        """
        for future in drain(self._arrived):
            self._push(future)
        if not self._ended:
            return None
        future = heappop(self._ended)[-1]
        return future, self._specs.pop(future)

    def wait(self, timeout_s: float) -> None:
        """Return when a trial has ended, after `timeout_s` at the latest."""
        try:
            self._push(self._arrived.get(timeout=timeout_s))
        except Empty:
            return

    def _push(self, future: Future[AttemptResult]) -> None:
        spec = self._specs[future]
        heappush(self._ended, (spec.slot.schedule_idx, spec.attempt, future))
