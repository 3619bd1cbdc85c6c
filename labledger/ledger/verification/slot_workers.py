"""Other processes that check ranges of slots, each on a connection of its own.

What is committed never changes, so ranges that one process has listed are the same for all. A
worker is a program of its own that is asked over pipes: the program that verifies may be anybody's
and have threads, so it is neither forked nor started a second time. A worker that fails is done
without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO, NamedTuple

from labledger.ledger.database.sqlite import readonly_engine
from labledger.ledger.verification.slot_checks import Checked, SlotChecks
from labledger.storage.artifact_store import ArtifactStore

_WORTH_IT = 4
"""Ranges from which on a process more is worth its start."""
_MOST = 8


class SlotRange(NamedTuple):
    """Slots of a run, from `start` to `stop` (not included)."""

    run_no: int
    run_id: str
    start: int
    stop: int


Finish = Callable[[Callable[[SlotRange], Checked]], list[Checked]]
"""Checks what no worker has taken yet, waits for the workers, and returns the results in order."""


@contextmanager
def started(
    path: Path | None,
    store: ArtifactStore | None,
    ranges: Sequence[SlotRange],
    processes: int | None,
) -> Iterator[Finish]:
    """Start to check `ranges` of the ledger at `path`, in up to `processes` with this one."""
    waiting = deque(enumerate(ranges))
    results: dict[int, Checked] = {}
    wanted = processes or min(len(os.sched_getaffinity(0)), _MOST)
    count = 0 if path is None or len(ranges) < _WORTH_IT else wanted - 1
    workers = [_start(path, store) for _ in range(count) if path is not None]
    threads = [Thread(target=_feed, args=(w, waiting, results), daemon=True) for w in workers]
    for thread in threads:
        thread.start()

    def finish(check: Callable[[SlotRange], Checked]) -> list[Checked]:
        _check_waiting(waiting, results, check)
        for thread in threads:
            thread.join()
        _check_waiting(waiting, results, check)  # What a worker that failed has put back.
        return [results[number] for number in range(len(ranges))]

    try:
        yield finish
    finally:
        waiting.clear()
        for worker in workers:
            worker.kill()
            worker.communicate()


def _check_waiting(
    waiting: deque[tuple[int, SlotRange]],
    results: dict[int, Checked],
    check: Callable[[SlotRange], Checked],
) -> None:
    while True:
        try:
            number, place = waiting.popleft()
        except IndexError:
            return
        results[number] = check(place)


def _start(path: Path, store: ArtifactStore | None) -> subprocess.Popen[str]:
    known = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(path), "" if store is None else str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": known, "PYTHONIOENCODING": "utf-8:surrogatepass"},
        encoding="utf-8",
        errors="surrogatepass",
    )


def _feed(
    worker: subprocess.Popen[str],
    waiting: deque[tuple[int, SlotRange]],
    results: dict[int, Checked],
) -> None:
    """Ask a worker for one range after the other, until none is left or it fails."""
    stdin, stdout = worker.stdin, worker.stdout
    if stdin is None or stdout is None:
        return
    while True:
        try:
            number, place = waiting.popleft()
        except IndexError:
            return
        try:
            results[number] = _ask(stdin, stdout, place)
        except (OSError, ValueError, TypeError):
            waiting.append((number, place))
            return


def _ask(stdin: IO[str], stdout: IO[str], place: SlotRange) -> Checked:
    stdin.write(json.dumps(place) + "\n")
    stdin.flush()
    slots, artifacts, messages = json.loads(stdout.readline())
    return Checked(slots, artifacts, [(idx, message) for idx, message in messages])


def serve(path: Path, store: ArtifactStore | None) -> None:
    """Check the ranges that stdin asks for, one a line, until it ends."""
    engine = readonly_engine(path)
    with engine.connect() as connection:
        checks = SlotChecks(connection, store)
        for line in sys.stdin:
            place = SlotRange(*json.loads(line))
            checked = checks.check(*place)
            answer = [checked.slots, checked.artifacts, checked.messages]
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    engine.dispose()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve(Path(sys.argv[1]), ArtifactStore(Path(sys.argv[2])) if sys.argv[2] else None)
