"""Where trials run: threads of this process, behind `concurrent.futures.Executor`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TypeVar

from labledger.records import TrialResult
from labledger.runner.keeping import put_away
from labledger.trial.contract import TrialSpec
from labledger.trial.gate import StartLimiter, use_limiter
from labledger.trial.traces import report_restarts_to
from labledger.trial.worker import cancel_attempt, remove_attempt, run_attempt

MAX_AHEAD = 4

_T = TypeVar("_T")


class LocalTrials:
    """Runs at most `width` trials at once, and prepares a few more meanwhile.

    Containers of the next trials are created and those of the last removed while others run, so
    that the engine's own time is not added to the trials'.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.capacity = width + min(width, MAX_AHEAD)
        self._gate = StartLimiter(width)
        self._noted: SimpleQueue[tuple[TrialSpec, str]] = SimpleQueue()
        self._trials: Executor = ThreadPoolExecutor(
            self.capacity, "trial", initializer=self._begin_thread
        )
        self._discards: Executor = ThreadPoolExecutor(min(width, MAX_AHEAD), "discard")

    def _begin_thread(self) -> None:
        use_limiter(self._gate)
        report_restarts_to(lambda spec, text: self._noted.put((spec, text)))

    @property
    def last_good(self) -> float:
        """When the newest container that could be started was created, by the monotonic clock."""
        return self._gate.last_good

    def submit(self, spec: TrialSpec) -> Future[TrialResult]:
        return self._trials.submit(run_attempt, spec)

    def discard(self, spec: TrialSpec, *, keep_folder: bool) -> Future[None]:
        """Remove what a trial left on this machine; its folder may be kept."""
        return self._discards.submit(_discard, spec, keep_folder)

    def withdraw(self, spec: TrialSpec, why: str) -> Future[None]:
        return self._discards.submit(cancel_attempt, spec, why)

    def noted(self) -> list[tuple[TrialSpec, str]]:
        """Trials that are begun anew, and why, since this was last asked."""
        return list(taken(self._noted))

    def paused(self) -> list[TrialSpec]:
        """Trials whose containers were found to be paused since this was last asked."""
        return list(taken(self._gate.paused))

    def close_gate(self) -> None:
        """Let no further trial start; those that run go on."""
        self._gate.close()

    def start_until(self, moment: float) -> None:
        """Let nothing be started or touched after a moment, until another one is named."""
        self._gate.allow_until(moment)

    @property
    def may_start(self) -> bool:
        """True while the run certainly belongs to this process."""
        return self._gate.starting_allowed

    def abandon(self) -> None:
        """Stop watching the trials that run; their containers go on by themselves."""
        self._gate.abandon()
        self._discards.shutdown(wait=False, cancel_futures=True)

    def shutdown(self) -> None:
        """Let nothing more start, and return when every trial and every removal has ended."""
        self._gate.close()
        self._trials.shutdown(wait=True)
        self._discards.shutdown(wait=True)


def taken(queue: SimpleQueue[_T]) -> Iterator[_T]:
    """What waits in a queue."""
    try:
        while True:
            yield queue.get_nowait()
    except Empty:
        return


def _discard(spec: TrialSpec, keep_folder: bool) -> None:
    remove_attempt(spec, keep_folder=keep_folder)
    if keep_folder:
        put_away(spec.folder)
