"""The attempts that were submitted to the executor and whose results have not been handled.

They wait for a permit to run, run, or have ended. Each future announces its own end, so that the
cost of waiting does not grow with the number of attempts. Used by the coordinator's thread alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from heapq import heappop, heappush
from queue import Empty, SimpleQueue

from labledger.executors.local_executor import drain
from labledger.records.attempt_result import AttemptResult
from labledger.trial.attempt_spec import AttemptSpec


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
        heappush(self._ended, (spec.slot.schedule_idx, spec.attempt, future))
