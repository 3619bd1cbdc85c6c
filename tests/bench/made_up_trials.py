"""`labledger` with trials that are made up instead of run; says at its end what that took.

    python -m bench.made_up_trials BEGUN first -- COMMAND…
    python -m bench.made_up_trials BEGUN whole HALF IDX -- COMMAND…

`first` ends the process, as a kill would, at the first dispatch. `whole` goes on to the end, and
copies the lab folder to HALF when slot IDX is dispatched. BEGUN is when the caller started this
process (`time.monotonic`). The last line on stdout is the report, as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from concurrent.futures import Future
from pathlib import Path

from bench import synthetic
from bench.peak import memory_mb
from labledger.cli import app
from labledger.records import TrialResult
from labledger.runner import session
from labledger.runner.executors import LocalTrials
from labledger.trial import traces
from labledger.trial.contract import TrialSpec

_LOOK_EVERY = 500
_SLOW_EVERY, _SLOW_S = 50, 0.05
"""Now and then a trial takes its time, and those behind it are staged."""


class Watch:
    """What is noted while the coordinator works."""

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.first_dispatch: float | None = None
        self.dispatches = 0
        self.memory_mb: list[float] = []
        """What the process held while it dispatched, now and then."""

    def dispatched(self) -> None:
        if self.first_dispatch is None:
            self.first_dispatch = time.monotonic()
        if self.dispatches % _LOOK_EVERY == 0:
            self.memory_mb.append(memory_mb("VmRSS"))
        self.dispatches += 1

    def report(self) -> None:
        assert self.first_dispatch is not None, "nothing was dispatched"
        found = {
            "first_dispatch_s": self.first_dispatch - self.begun,
            "seconds": time.monotonic() - self.first_dispatch,
            "first_mb": self.memory_mb[0],
            "last_mb": self.memory_mb[-1],
            "peak_mb": memory_mb("VmHWM"),
        }
        print(json.dumps(found), flush=True)


class MadeUpTrials(LocalTrials):
    """The executor of a run, but for what its trials are."""

    watch: Watch
    half: Path | None = None
    half_idx = -1

    def submit(self, spec: TrialSpec) -> Future[TrialResult]:
        self.watch.dispatched()
        if self.half is None:
            self.watch.report()
            os._exit(0)
        if spec.slot.schedule_idx == self.half_idx:
            # In the coordinator's thread, between two transactions: the copy is a whole ledger.
            shutil.copytree(spec.plan.run_dir.parents[1], self.half, ignore=_shared_memory)
        return self._trials.submit(_made_up, spec)

    def discard(self, spec: TrialSpec, *, keep_folder: bool) -> Future[None]:
        del keep_folder  # There is none.
        traces.forget(spec.folder)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _made_up(spec: TrialSpec) -> TrialResult:
    if spec.slot.schedule_idx % _SLOW_EVERY == 0:
        time.sleep(_SLOW_S)
    return synthetic.result(spec.run_id, spec.slot, spec.attempt)


def _shared_memory(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith("-shm")]


def main() -> None:
    split = sys.argv.index("--")
    begun, mode, *rest = sys.argv[1:split]
    MadeUpTrials.watch = Watch(float(begun))
    if mode == "whole":
        MadeUpTrials.half, MadeUpTrials.half_idx = Path(rest[0]), int(rest[1])
    session.LocalTrials = MadeUpTrials  # type: ignore[attr-defined,misc]
    sys.argv = ["labledger", *sys.argv[split + 1 :]]
    try:
        app.main()
    except SystemExit as ended:
        if ended.code != 0:
            raise
    MadeUpTrials.watch.report()


if __name__ == "__main__":
    main()
