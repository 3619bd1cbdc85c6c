"""`labledger` with made-up trials; reports time and memory at its end.

    python -m bench.made_up_trials BEGUN first -- COMMAND…
    python -m bench.made_up_trials BEGUN whole HALF IDX -- COMMAND…
    python -m bench.made_up_trials BEGUN timed SECONDS -- COMMAND…

`first` ends the process like a kill at the first dispatch. `whole` copies the lab to HALF at slot
IDX. In `timed`, each trial takes about SECONDS. BEGUN is the start (`time.monotonic`).
"""

from __future__ import annotations

import heapq
import json
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from bench import synthetic
from bench.peak import memory_mb
from labledger.cli import app
from labledger.execution.local_executor import LocalExecutor
from labledger.export.mirrors import MirrorWriter
from labledger.ledger.writer import LedgerWriter
from labledger.records.attempt_result import AttemptResult
from labledger.runner.coordination import run_executor
from labledger.runner.coordination.attempt_queues import NextAttempts
from labledger.trial import attempt_notes
from labledger.trial.attempt_spec import AttemptSpec

_LOOK_EVERY = 500
_PARTS: dict[str, tuple[type, tuple[str, ...]]] = {
    "transactions": (
        LedgerWriter,
        ("commit_result", "commit_staged", "stage", "journal_dispatch"),
    ),
    "choosing and placing": (NextAttempts, ("place",)),
    "mirrors": (MirrorWriter, ("append",)),
}
"""Named methods of the coordinator's thread whose processor time is reported."""
_SLOW_EVERY, _SLOW_S = 50, 0.05
"""Every so many trials, one is slow, so that later ones are staged."""


class Watch:
    """Measurements while the coordinator works."""

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.first_dispatch: float | None = None
        self.first_cpu_s = 0.0
        self.dispatches = 0
        self.memory_mb: list[float] = []
        """The memory of the process at some dispatches."""
        self.parts_s = dict.fromkeys(_PARTS, 0.0)
        """The processor time of the thread in the methods of `_PARTS`."""

    def time_parts(self) -> None:
        for name, (owner, methods) in _PARTS.items():
            for method in methods:
                setattr(owner, method, self._timed(name, getattr(owner, method)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.parts_s[name] += time.thread_time() - begun

        return timed

    def dispatched(self) -> None:
        if self.first_dispatch is None:
            self.first_dispatch, self.first_cpu_s = time.monotonic(), time.process_time()
        if self.dispatches % _LOOK_EVERY == 0:
            self.memory_mb.append(memory_mb("VmRSS"))
        self.dispatches += 1

    def report(self) -> None:
        assert self.first_dispatch is not None, "nothing was dispatched"
        report = {
            "first_dispatch_s": self.first_dispatch - self.begun,
            "seconds": time.monotonic() - self.first_dispatch,
            "first_mb": self.memory_mb[0],
            "last_mb": self.memory_mb[-1],
            "peak_mb": memory_mb("VmHWM"),
            "cpu_s": time.process_time() - self.first_cpu_s,
            "parts_s": self.parts_s,
        }
        print(json.dumps(report), flush=True)


class MadeUpTrials(LocalExecutor):
    """The executor of a run, with made-up trials."""

    watch: Watch
    half: Path | None = None
    half_idx = -1

    def submit(self, spec: AttemptSpec) -> Future[AttemptResult]:
        self.watch.dispatched()
        if self.half is None:
            self.watch.report()
            os._exit(0)
        if spec.slot.schedule_idx == self.half_idx:
            # In the coordinator's thread, between two transactions: the copy is a whole ledger.
            shutil.copytree(spec.plan.run_dir.parents[1], self.half, ignore=_shared_memory)
        return self._trials.submit(_made_up, spec)

    def remove(self, spec: AttemptSpec, *, keep_folder: bool) -> Future[None]:
        del keep_folder  # There is none.
        return _forgotten(spec)


class TimedTrials(LocalExecutor):
    """Trials that take time without threads; a limited number runs at once."""

    watch: Watch
    seconds = 0.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._going: list[tuple[float, int, Future[AttemptResult], AttemptSpec]] = []
        """A heap by the moment at which they end."""
        self._changed = threading.Condition()
        threading.Thread(target=self._end_each, daemon=True).start()

    def submit(self, spec: AttemptSpec) -> Future[AttemptResult]:
        self.watch.dispatched()
        future: Future[AttemptResult] = Future()
        # Not in the order in which they began.
        lasts = self.seconds * random.uniform(0.9, 1.1)
        with self._changed:
            number = self.watch.dispatches
            heapq.heappush(self._going, (time.monotonic() + lasts, number, future, spec))
            self._changed.notify()
        return future

    def remove(self, spec: AttemptSpec, *, keep_folder: bool) -> Future[None]:
        del keep_folder
        return _forgotten(spec)

    def _end_each(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._going)
                left = self._going[0][0] - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                _, _, future, spec = heapq.heappop(self._going)
            future.set_result(synthetic.result(spec.run_id, spec.slot, spec.attempt))


def _forgotten(spec: AttemptSpec) -> Future[None]:
    attempt_notes.remove_notes(spec.container.folder, by_this_process=not spec.container_may_exist)
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _made_up(spec: AttemptSpec) -> AttemptResult:
    if spec.slot.schedule_idx % _SLOW_EVERY == 0:
        time.sleep(_SLOW_S)
    return synthetic.result(spec.run_id, spec.slot, spec.attempt)


def _shared_memory(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith("-shm")]


def main() -> None:
    split = sys.argv.index("--")
    begun, mode, *rest = sys.argv[1:split]
    watch = Watch(float(begun))
    executor: type[LocalExecutor] = MadeUpTrials
    MadeUpTrials.watch = TimedTrials.watch = watch
    if mode == "whole":
        MadeUpTrials.half, MadeUpTrials.half_idx = Path(rest[0]), int(rest[1])
    elif mode == "timed":
        TimedTrials.seconds = float(rest[0])
        watch.time_parts()
        executor = TimedTrials
    assert vars(run_executor)["LocalExecutor"] is LocalExecutor, "the trials would be real"
    vars(run_executor)["LocalExecutor"] = executor
    sys.argv = ["labledger", *sys.argv[split + 1 :]]
    try:
        app.main()
    except SystemExit as ended:
        if ended.code != 0:
            raise
    watch.report()


if __name__ == "__main__":
    main()
