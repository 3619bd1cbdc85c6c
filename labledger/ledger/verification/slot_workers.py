"""Check ranges of slots in other processes, each with its own connection.

Committed slots never change, so that all processes see the same slots in a range. A worker is a
separate program that receives ranges and returns results through pipes. It is neither a fork of the
caller, which may have threads, nor a second start of the caller's own program. The caller checks
the ranges of a worker that fails.
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

from labledger.files.artifact_store import ArtifactStore
from labledger.files.file_contents import Piece
from labledger.ledger.database.sqlite import reading
from labledger.ledger.verification.slot_checks import CheckedSlots, SlotChecks

_MIN_RANGES = 4
"""With fewer ranges, starting workers takes longer than it saves."""
_MAX_PROCESSES = 8


class SlotRange(NamedTuple):
    """Slots of a run, from `start` to `stop` (exclusive)."""

    run_no: int
    run_id: str
    start: int
    stop: int


Finish = Callable[[Callable[[SlotRange], CheckedSlots]], list[CheckedSlots]]
"""Checks the ranges that no worker has taken, waits for the workers, and returns all results."""


@contextmanager
def start_workers(
    path: Path | None,
    store: ArtifactStore | None,
    ranges: Sequence[SlotRange],
    processes: int | None,
) -> Iterator[Finish]:
    """Start to check `ranges` of the ledger at `path`, in at most `processes`, this one included.

    Yields the function that completes the checks. Workers are ended with the block.
    """
    waiting = deque(enumerate(ranges))
    results: dict[int, CheckedSlots] = {}
    max_processes = processes or min(len(os.sched_getaffinity(0)), _MAX_PROCESSES)
    worker_count = 0 if path is None or len(ranges) < _MIN_RANGES else max_processes - 1
    workers = [_start_worker(path, store) for _ in range(worker_count) if path is not None]
    threads = [
        Thread(target=_feed, args=(worker, waiting, results), daemon=True) for worker in workers
    ]
    for thread in threads:
        thread.start()

    def finish(check: Callable[[SlotRange], CheckedSlots]) -> list[CheckedSlots]:
        _check_waiting(waiting, results, check)
        for thread in threads:
            thread.join()
        # Workers that failed have put their ranges back.
        _check_waiting(waiting, results, check)
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
    results: dict[int, CheckedSlots],
    check: Callable[[SlotRange], CheckedSlots],
) -> None:
    while True:
        try:
            number, slot_range = waiting.popleft()
        except IndexError:
            return
        results[number] = check(slot_range)


def _start_worker(path: Path, store: ArtifactStore | None) -> subprocess.Popen[str]:
    search_path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(path), "" if store is None else str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": search_path, "PYTHONIOENCODING": "utf-8:surrogatepass"},
        encoding="utf-8",
        errors="surrogatepass",
    )


def _feed(
    worker: subprocess.Popen[str],
    waiting: deque[tuple[int, SlotRange]],
    results: dict[int, CheckedSlots],
) -> None:
    """Send a worker one range after the other, until none is left or the worker fails."""
    stdin, stdout = worker.stdin, worker.stdout
    if stdin is None or stdout is None:
        return
    while True:
        try:
            number, slot_range = waiting.popleft()
        except IndexError:
            return
        try:
            results[number] = _request(stdin, stdout, slot_range)
        except (OSError, ValueError, TypeError):
            waiting.append((number, slot_range))
            return


def _request(stdin: IO[str], stdout: IO[str], slot_range: SlotRange) -> CheckedSlots:
    stdin.write(json.dumps(slot_range) + "\n")
    stdin.flush()
    slots, artifacts, messages, mirrors = json.loads(stdout.readline())
    return CheckedSlots(
        slots,
        artifacts,
        [(idx, message) for idx, message in messages],
        {kind: [Piece(*piece) for piece in pieces] for kind, pieces in mirrors.items()},
    )


def serve(path: Path, store: ArtifactStore | None) -> None:
    """Check the ranges that stdin names, one a line, until it ends."""
    with reading(path, "verify the ledger") as connection:
        checks = SlotChecks(connection, store)
        for line in sys.stdin:
            checked = checks.check(*SlotRange(*json.loads(line)))
            result = [checked.slots, checked.artifacts, checked.messages, checked.mirrors]
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve(Path(sys.argv[1]), ArtifactStore(Path(sys.argv[2])) if sys.argv[2] else None)
