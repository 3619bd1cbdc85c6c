"""Verify a ledger: find every committed row that was changed, removed or inserted later.

Nothing is changed. Damage is a finding and hides nothing: unreadable rows are named, and the rest
is still checked. Several processes check large ledgers. A worker is this module as a separate
program, because the caller may have threads, which a fork does not survive.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO, NamedTuple

from labledger.files.artifact_store import ArtifactStore
from labledger.host_programs import module_command
from labledger.ledger.checking import run_checks
from labledger.ledger.checking.slot_checks import (
    UNREADABLE,
    CheckedSlots,
    CommitCheck,
    Message,
    Piece,
    SlotChecks,
)
from labledger.ledger.database import migrations
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import reading
from labledger.ledger.rows import tombstones
from labledger.ledger.rows.lookup import run_number

_RUNS_SQL = "SELECT run_no, run_id FROM run ORDER BY run_no"
_RANGES_SQL = """
SELECT schedule_idx FROM (
  SELECT schedule_idx, row_number() OVER (ORDER BY schedule_idx) - 1 AS position
  FROM slot_commit WHERE run_no = ?)
WHERE position % ? = 0 ORDER BY schedule_idx"""
_LAST_SLOT_SQL = "SELECT max(schedule_idx) FROM slot_commit WHERE run_no = ?"
_COMMITS_PER_RANGE = 1_000
_MIN_RANGES = 4
"""With fewer ranges, starting workers takes longer than it saves."""
_MAX_PROCESSES = 8


@dataclass(frozen=True, slots=True)
class LedgerFinding:
    """A difference between the ledger and the committed rows."""

    run_id: str | None
    """None if it concerns the whole file."""
    schedule_idx: int | None
    message: str

    def line(self, path: Path) -> str:
        """Return one line for a person. `path` is the ledger's path."""
        slot = "" if self.schedule_idx is None else f" slot {self.schedule_idx}"
        return f"{self.run_id or path}{slot}: {self.message}"


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """How much was checked, and the findings."""

    runs: int
    slots: int
    """Commits whose digests were recomputed."""
    artifacts: int
    """Artifacts of evidence whose content was read."""
    findings: tuple[LedgerFinding, ...]
    mirrors: Mapping[str, Mapping[str, Sequence[Piece]]] = field(repr=False, compare=False)
    """The pieces of each run's mirrors, if the run has no finding, by run and kind."""

    @property
    def is_clean(self) -> bool:
        return not self.findings


def verify(
    path: Path,
    run_id: str | None = None,
    *,
    processes: int | None = None,
) -> VerificationResult:
    """Compare one run, or all runs, with their digests, including artifacts, frozen files and
    workspaces.

    Reads one snapshot of the ledger, in flat memory. A large ledger is read by as many processes as
    there are processors (at most 8), or by at most `processes`.

    This cannot detect that the newest commits of a run were lost together with its progress, as in
    an older copy of the ledger. Compare the mirrors, or `chain_head` in the summary. Raises
    `RunNotFound`, and the errors of `migrations.require_current`.
    """
    readable = migrations.any_revision_path(path)
    with reading(readable, "verify the ledger") as connection:
        migrations.require_current_connection(connection, path)
        checker = _Checker(connection, ArtifactStore(path.parent / "artifacts"), None)
        return checker.check(None if run_id is None else [run_id], readable, processes)


def verify_snapshot(
    connection: Connection,
    store: ArtifactStore | None,
    run_ids: Sequence[str],
    extra_check: CommitCheck,
) -> VerificationResult:
    """Verify some runs on a connection that reads one snapshot, with an extra check of each commit.

    Without a store, no artifact is checked. The root of a regrading and the frozen files of a run
    may be missing.
    """
    return _Checker(connection, store, extra_check).check(run_ids)


class SlotRange(NamedTuple):
    """Slots of a run, from `start` to `stop` (exclusive)."""

    run_no: int
    run_id: str
    start: int
    stop: int


class _Checker:
    """One pass over a snapshot of the ledger."""

    def __init__(
        self, connection: Connection, store: ArtifactStore | None, extra_check: CommitCheck | None
    ) -> None:
        self._connection = connection
        self._store = store
        self._slots = SlotChecks(connection, store, extra_check)

    def check(
        self,
        run_ids: Sequence[str] | None,
        path: Path | None = None,
        processes: int | None = None,
    ) -> VerificationResult:
        """Check some runs, or all.

        Without `path`, as for the source of an import, only this process reads the ledger. Roots of
        regradings, frozen files and files of staged events may then be missing.
        """
        findings: list[LedgerFinding] = []
        runs = self._runs(run_ids, findings)
        ranges = [
            slot_range for run_no, run_id in runs for slot_range in self._ranges(run_no, run_id)
        ]
        with _start_workers(path, self._store, ranges, processes) as finish:
            findings += self._file_findings()
            for run_no, run_id in runs:
                store = None if path is None else self._store
                problems = run_checks.find_problems(self._connection, run_no, run_id, store)
                findings += [LedgerFinding(run_id, idx, message) for idx, message in problems]
            by_range = finish(lambda slot_range: self._slots.check(*slot_range))
        totals = {run_id: CheckedSlots() for _, run_id in runs}
        slot_findings: list[LedgerFinding] = []
        for slot_range, checked in zip(ranges, by_range, strict=True):
            totals[slot_range.run_id].add(checked)
            slot_findings += [
                LedgerFinding(slot_range.run_id, *message) for message in checked.messages
            ]
        # The whole file first, then slots, then the rest of each run. Each finding appears once.
        file_findings = [finding for finding in findings if finding.run_id is None]
        run_findings = [finding for finding in findings if finding.run_id is not None]
        ordered = dict.fromkeys((*file_findings, *slot_findings, *run_findings))
        return VerificationResult(
            len(runs),
            sum(total.slots for total in totals.values()),
            sum(total.artifacts for total in totals.values()),
            tuple(ordered),
            {run_id: total.mirrors for run_id, total in totals.items()},
        )

    def _runs(
        self, run_ids: Sequence[str] | None, findings: list[LedgerFinding]
    ) -> list[tuple[int, str]]:
        """Return number and id of these runs, or of all readable runs."""
        if run_ids is not None:
            return [(run_number(self._connection, run_id), run_id) for run_id in run_ids]
        runs: list[tuple[int, str]] = []
        try:
            for run_no, run_id in self._connection.execute(_RUNS_SQL):
                runs.append((run_no, run_id))
        except UNREADABLE as error:
            findings.append(LedgerFinding(None, None, f"the list of runs cannot be read: {error}"))
        return runs

    def _file_findings(self) -> Iterator[LedgerFinding]:
        """Check the whole file: its pages, foreign keys, schema, identity and tombstones."""

        def problems() -> Iterator[Message]:
            for find in (run_checks.find_schema_problems, tombstones.find_tombstone_problems):
                yield from ((None, text) for text in find(self._connection))

        for _, message in run_checks.guarded("SQLite cannot check the file", problems):
            yield LedgerFinding(None, None, message)

    def _ranges(self, run_no: int, run_id: str) -> list[SlotRange]:
        """Return ranges that together contain every commit of a run."""
        try:
            rows = self._connection.execute(_RANGES_SQL, (run_no, _COMMITS_PER_RANGE))
            starts = list(rows.scalars())
            last = self._connection.execute(_LAST_SLOT_SQL, (run_no,)).scalar()
        except UNREADABLE:
            return [SlotRange(run_no, run_id, 0, 1 << 40)]
        stops = [*starts[1:], (last or 0) + 1]
        return [
            SlotRange(run_no, run_id, start, stop)
            for start, stop in zip(starts, stops, strict=bool(starts))
        ]


_Finish = Callable[[Callable[[SlotRange], CheckedSlots]], list[CheckedSlots]]
"""Checks the ranges that no worker has taken, waits for the workers, and returns all results."""


@contextmanager
def _start_workers(
    path: Path | None,
    store: ArtifactStore | None,
    ranges: Sequence[SlotRange],
    processes: int | None,
) -> Iterator[_Finish]:
    """Start to check `ranges` of the ledger at `path` in at most `processes`, including this one.

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
        def check_rest() -> None:
            for number, slot_range in _take(waiting):
                results[number] = check(slot_range)

        check_rest()
        for thread in threads:
            thread.join()
        check_rest()  # Workers that failed have put their ranges back.
        return [results[number] for number in range(len(ranges))]

    try:
        yield finish
    finally:
        waiting.clear()
        for worker in workers:
            worker.kill()
            worker.communicate()


def _take(waiting: deque[tuple[int, SlotRange]]) -> Iterator[tuple[int, SlotRange]]:
    """Yield one range after the other, until none remains. Other threads do the same."""
    with suppress(IndexError):
        while True:
            yield waiting.popleft()


def _start_worker(path: Path, store: ArtifactStore | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        module_command(__name__, str(path), "" if store is None else str(store.root)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="ascii",
    )


def _feed(
    worker: subprocess.Popen[str],
    waiting: deque[tuple[int, SlotRange]],
    results: dict[int, CheckedSlots],
) -> None:
    """Send a worker one range after the other, until none remains or the worker fails."""
    stdin, stdout = worker.stdin, worker.stdout
    if stdin is None or stdout is None:
        return
    for number, slot_range in _take(waiting):
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


def _serve(path: Path, store: ArtifactStore | None) -> None:
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
        _serve(Path(sys.argv[1]), ArtifactStore(Path(sys.argv[2])) if sys.argv[2] else None)
