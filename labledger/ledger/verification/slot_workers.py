"""Check ranges of slots in other processes, each with its own connection.

What is committed never changes, so ranges that one process has listed are the same for all. A
worker is a program of its own that answers over pipes: the caller may be any program and have
threads, so it is neither forked nor started a second time. The ranges of a worker that fails are
checked by the caller.
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
from labledger.ledger.verification.slot_checks import CheckedSlots, SlotChecks
from labledger.storage.artifact_store import ArtifactStore

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
    results: dict[int, CheckedSlots] = {}
    wanted = processes or min(len(os.sched_getaffinity(0)), _MAX_PROCESSES)
    count = 0 if path is None or len(ranges) < _MIN_RANGES else wanted - 1
    workers = [_start(path, store) for _ in range(count) if path is not None]
    threads = [Thread(target=_feed, args=(w, waiting, results), daemon=True) for w in workers]
    for thread in threads:
        thread.start()

    def finish(check: Callable[[SlotRange], CheckedSlots]) -> list[CheckedSlots]:
        _check_waiting(waiting, results, check)
        for thread in threads:
            thread.join()
        _check_waiting(waiting, results, check)  # Ranges of workers that failed.
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


def _start(path: Path, store: ArtifactStore | None) -> subprocess.Popen[str]:
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
    """Have a worker check one range after the other, until none is left or it fails."""
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
    slots, artifacts, messages = json.loads(stdout.readline())
    return CheckedSlots(slots, artifacts, [(idx, message) for idx, message in messages])


def serve(path: Path, store: ArtifactStore | None) -> None:
    """Check the ranges that stdin names, one a line, until it ends."""
    engine = readonly_engine(path)
    with engine.connect() as connection:
        checks = SlotChecks(connection, store)
        for line in sys.stdin:
            checked = checks.check(*SlotRange(*json.loads(line)))
            answer = [checked.slots, checked.artifacts, checked.messages]
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    engine.dispose()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve(Path(sys.argv[1]), ArtifactStore(Path(sys.argv[2])) if sys.argv[2] else None)
