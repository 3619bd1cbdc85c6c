"""Finding every committed row that was changed, removed or inserted after its commit.

Damage of any kind is a finding and hides nothing: what cannot be read is named, and the rest is
still checked. Large ledgers are checked by several processes, each with some ranges of slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labledger.ledger.database import migrations, schema_checks
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import readonly_engine, translated
from labledger.ledger.read import gradings
from labledger.ledger.read.lookup import run_number
from labledger.ledger.verification import frozen_files, run_checks, slot_workers
from labledger.ledger.verification.slot_checks import UNREADABLE, Check, Checked, SlotChecks
from labledger.ledger.verification.slot_workers import SlotRange
from labledger.storage.artifact_store import ArtifactStore

_RUNS_SQL = "SELECT run_no, run_id FROM run ORDER BY run_no"
_RANGES_SQL = """
SELECT schedule_idx FROM (
  SELECT schedule_idx, row_number() OVER (ORDER BY schedule_idx) - 1 AS place
  FROM slot_commit WHERE run_no = ?)
WHERE place % ? = 0 ORDER BY schedule_idx"""
_LAST_SQL = "SELECT max(schedule_idx) FROM slot_commit WHERE run_no = ?"
_RANGE = 1_000
"""Commits that are checked at once."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the ledger that is not as it was committed."""

    run_id: str | None
    """None where it concerns the file as a whole."""
    schedule_idx: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What was looked at, and what was found."""

    runs: int
    slots: int
    """Commits whose digests were recomputed."""
    artifacts: int
    """Artifacts of evidence whose content was read."""
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        return not self.findings


def verify(
    path: Path,
    run_id: str | None = None,
    store: ArtifactStore | None = None,
    *,
    processes: int | None = None,
) -> Verification:
    """Check one run, or all runs and all artifacts, against their digests.

    So too the files and workspaces that a run was started with.

    Reads one state of the ledger in flat memory, a large one in as many processes as there are
    processors, or in `processes`. What cannot be seen: the loss of a run's newest commits together
    with its progress, as an older copy of the ledger would show; the mirrors and the summary's
    `chain_head` tell. Raises `RunNotFound` and what `migrate.check_current` raises.
    """
    engine = readonly_engine(path)
    try:
        with translated("verify the ledger", path), engine.connect() as connection:
            migrations.check_revision(connection, path)
            store = store or ArtifactStore(path.parent / "artifacts")
            checker = _Checker(connection, store, None)
            return checker.check(None if run_id is None else [run_id], path, processes)
    finally:
        engine.dispose()


def verify_snapshot(
    connection: Connection,
    store: ArtifactStore | None,
    run_ids: Sequence[str],
    also: Check,
) -> Verification:
    """`verify` of some runs on a connection that keeps to one state of the ledger.

    `also` makes sentences of what else it finds in a commit. Without a store no artifact is looked
    at. A regrading may lack its root, and a run the files that it was started with.
    """
    return _Checker(connection, store, also).check(run_ids)


class _Checker:
    """One pass over a snapshot of the ledger."""

    def __init__(
        self, connection: Connection, store: ArtifactStore | None, also: Check | None
    ) -> None:
        self._connection = connection
        self._store = store
        self._slots = SlotChecks(connection, store, also)

    def check(
        self,
        run_ids: Sequence[str] | None,
        path: Path | None = None,
        processes: int | None = None,
    ) -> Verification:
        """Check some runs, or all. `path` is the ledger's, where other processes may open it."""
        findings: list[Finding] = []
        runs = self._runs(run_ids, findings)
        ranges = [found for run_no, run_id in runs for found in self._ranges(run_no, run_id)]
        with slot_workers.started(path, self._store, ranges, processes) as checked_elsewhere:
            self._of_file(findings)
            for run_no, run_id in runs:
                store = None if path is None else self._store
                found = run_checks.problems(self._connection, run_no, run_id, store)
                findings += [Finding(run_id, idx, message) for idx, message in found]
                if path is not None:
                    findings += self._of_start(run_no, run_id)
            by_range = checked_elsewhere(self._check_range)
        total = Checked()
        in_slots: list[Finding] = []
        for place, checked in zip(ranges, by_range, strict=True):
            total.add(checked)
            in_slots += [Finding(place.run_id, *message) for message in checked.messages]
        findings = [*(f for f in findings if f.run_id is None), *in_slots,
                    *(f for f in findings if f.run_id is not None)]  # fmt: skip
        return Verification(len(runs), total.slots, total.artifacts, tuple(dict.fromkeys(findings)))

    def _check_range(self, place: SlotRange) -> Checked:
        return self._slots.check(place.run_no, place.run_id, place.start, place.stop)

    def _runs(
        self, run_ids: Sequence[str] | None, findings: list[Finding]
    ) -> list[tuple[int, str]]:
        """Number and id of these runs, or of all that can be read."""
        if run_ids is not None:
            return [(run_number(self._connection, run_id), run_id) for run_id in run_ids]
        runs: list[tuple[int, str]] = []
        try:
            for run_no, run_id in self._connection.exec_driver_sql(_RUNS_SQL):
                runs.append((run_no, run_id))
        except UNREADABLE as error:
            findings.append(Finding(None, None, f"the list of runs cannot be read: {error}"))
        return runs

    def _of_file(self, findings: list[Finding]) -> None:
        """The file as a whole: its pages, its foreign keys, its schema, its own description."""
        try:
            for message in schema_checks.problems(self._connection):
                findings.append(Finding(None, None, message))  # noqa: PERF401
        except UNREADABLE as error:
            findings.append(Finding(None, None, f"SQLite cannot check the file: {error}"))

    def _of_start(self, run_no: int, run_id: str) -> Iterator[Finding]:
        """What the run was started with, and the run that a regrading judges again."""

        def messages() -> Iterator[tuple[None, str]]:
            assert self._store is not None
            yield from (
                (None, m) for m in frozen_files.problems(self._connection, self._store, run_no)
            )
            for name, root_id in gradings.find_orphan_regradings(self._connection):
                if name == run_id:
                    yield None, f"it regrades {root_id}, which the ledger does not hold"

        found = run_checks.guarded("what it was started with cannot be read", messages)
        yield from (Finding(run_id, None, message) for _, message in found)

    def _ranges(self, run_no: int, run_id: str) -> list[SlotRange]:
        """Ranges that together hold every commit of a run."""
        try:
            starts = self._connection.exec_driver_sql(_RANGES_SQL, (run_no, _RANGE)).scalars().all()
            last = self._connection.exec_driver_sql(_LAST_SQL, (run_no,)).scalar()
        except UNREADABLE:
            return [SlotRange(run_no, run_id, 0, 1 << 40)]
        stops = [*starts[1:], (last or 0) + 1]
        return [
            SlotRange(run_no, run_id, start, stop)
            for start, stop in zip(starts, stops, strict=bool(starts))
        ]
