"""Read the ledger through a read-only connection.

A reader never writes and never takes a lock that a writer waits for. Each call reads one snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from labledger.errors import LedgerError, SlotNotFound
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.commit_rows import run_rows
from labledger.ledger.database import migrations
from labledger.ledger.database.connection import Connection, Engine
from labledger.ledger.database.model import (
    Dispatch,
    ExperimentRevision,
    Graded,
    Grading,
    LostHost,
    Note,
    PrimaryMetric,
    Rerun,
    RunInfo,
    Spent,
    StagedAttempt,
    VariantCounts,
)
from labledger.ledger.database.sqlite import readonly_engine, translated
from labledger.ledger.read import commit_stream, export_tables, gradings, runs, spending
from labledger.ledger.read.lookup import (
    TrialContents,
    current_grading_run_no,
    digest_bytes,
    ledger_id,
    read_artifact,
    run_number,
    unchanged,
)
from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult
from labledger.records.identity import Slot
from labledger.records.slot_records import SlotRecords
from labledger.records.timeouts import TimeoutCounts

_SLOTS_SQL = """
SELECT slot.schedule_idx, run_variant.variant_id, run_task.task_id, slot.repl_idx, slot.supersedes
FROM slot
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE slot.run_no = ? AND slot.schedule_idx >= ?
ORDER BY slot.schedule_idx"""
_TASK_SQL = """
SELECT task_payload.body FROM run
JOIN run_task ON run_task.run_no = run.run_no AND run_task.task_id = ?2
JOIN task_payload ON task_payload.payload_digest = run_task.payload_digest
WHERE run.run_id = ?1"""
_SLOT_COUNTS_SQL = """
SELECT run_variant.variant_id, run_task.task_id, count(*)
FROM slot
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE slot.run_no = ? AND slot.supersedes IS NULL
GROUP BY slot.variant_idx, slot.task_idx"""


class LedgerReader:
    """A read-only view of a ledger, whose methods may be called from any thread.

    Each call reads one snapshot of the ledger. An iterator reads the snapshot of its first step
    until it is exhausted or closed.
    """

    def __init__(self, path: Path, engine: Engine, store: ArtifactStore) -> None:
        self.path = path
        self._engine = engine
        self._store = store
        with self._snapshot("open the ledger") as connection:
            migrations.require_current_connection(connection, path)

    @cached_property
    def ledger_id(self) -> str:
        """The ledger's id. Raises `LedgerError` if it is missing."""
        with self._snapshot("read the ledger's id") as connection:
            return ledger_id(connection)

    @classmethod
    def open(cls, path: Path, store: ArtifactStore | None = None) -> Self:
        """Open a ledger of the current revision.

        `store` is the folder `artifacts` beside it by default. Raises `LedgerMissing`,
        `LedgerOutdated`, `LedgerTooNew`, or `LedgerError`.
        """
        engine = readonly_engine(path)
        try:
            return cls(path, engine, store or ArtifactStore(path.parent / "artifacts"))
        except BaseException:
            engine.dispose()
            raise

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- runs

    def runs(self) -> list[RunInfo]:
        """Return every run, the newest first."""
        with self._snapshot("list the runs") as connection:
            return runs.read_runs(connection)

    def run(self, run_id: str) -> RunInfo:
        """Return one run. Raises `RunNotFound`."""
        with self._of_run(run_id) as (connection, run_no):
            return runs.read_run(connection, run_no)

    def resolved_revisions(self, run_id: str) -> dict[int, ExperimentRevision]:
        """Return each revision of a run's experiment by the part that brought it.

        Part 1 is what the run was created with. `run` has the newest one.
        """
        with self._of_run(run_id) as (connection, run_no):
            return runs.read_revisions(connection, run_no)

    def notes(self, run_id: str) -> list[Note]:
        """Return the notes of a run, the oldest first."""
        with self._of_run(run_id) as (connection, run_no):
            return runs.read_notes(connection, run_no)

    def hosts(self, run_id: str) -> list[str]:
        """Return the hosts that attempts of a run were dispatched to, by name."""
        with self._of_run(run_id) as (connection, run_no):
            return run_rows.read_hosts(connection, run_no)

    def lost_hosts(self, run_id: str) -> tuple[LostHost, ...]:
        """Return the hosts that were declared lost for a run, by name."""
        with self._of_run(run_id) as (connection, run_no):
            return runs.read_lost_hosts(connection, run_no)

    def reruns(self, run_id: str, slots: int | None = None) -> list[Rerun]:
        """Return the reruns of a run, the oldest first: all, or those among its first `slots`."""
        with self._of_run(run_id) as (connection, run_no):
            return gradings.read_reruns(connection, run_no, slots)

    def pending_reruns(self, run_id: str) -> set[int]:
        """Return the slots of a run whose replacement is scheduled and not committed yet."""
        with self._of_run(run_id) as (connection, run_no):
            return gradings.pending_slots(connection, run_no)

    def replacement(self, run_id: str, schedule_idx: int) -> int | None:
        """Return the slot that supersedes another one, committed or not; None if none does."""
        with self._of_run(run_id) as (connection, run_no):
            return gradings.replacement(connection, run_no, schedule_idx)

    def gradings(self, run_id: str) -> list[Grading]:
        """Return every grading of a run, or of the root of a regrading, the oldest first."""
        with self._of_run(run_id) as (connection, run_no):
            return gradings.read_gradings(connection, run_no)

    def deleted_run_ids(self) -> list[str]:
        """Return the ids of the runs that were deleted and not imported again."""
        with self._snapshot("list the deleted runs") as connection:
            sql = (
                "SELECT DISTINCT run_id FROM deleted_run "
                "WHERE run_id NOT IN (SELECT run_id FROM run) ORDER BY 1"
            )
            return list(connection.exec_driver_sql(sql).scalars())

    def with_regradings(self, run_id: str) -> list[str]:
        """Return the ids of a run and its regradings. Raises `InvalidInput` for a regrading."""
        with self._snapshot(f"read run {run_id}") as connection:
            return gradings.with_regradings(connection, run_id)

    def graded(self, name: str) -> Graded:
        """Return the grading that a run's id, or a grading's id such as ``RUN.g1``, stands for.

        A run's id stands for its current grading. Raises `RunNotFound`.
        """
        with self._snapshot(f"read run {name}") as connection:
            run_no = current_grading_run_no(connection, name)
            all_gradings = gradings.read_gradings(connection, run_no)
            run = runs.read_run(connection, run_no)
            for grading in all_gradings:
                if grading.run_id == run.run_id:
                    return Graded(name, run, grading, len(all_gradings))
        raise LedgerError(
            f"the ledger has no grading row for run {run.run_id}",
            hint="`labledger verify` shows what else was changed",
        )

    def counts(self, run_id: str, *, without_pending: bool = False) -> list[VariantCounts]:
        """Return the slot counts of each variant, in the order of the experiment.

        A cell that was run again counts once, by its newest committed slot. With `without_pending`,
        slots that are about to be superseded are not counted as committed.
        """
        with self._of_run(run_id) as (connection, run_no):
            return runs.variant_counts(connection, run_no, without_pending=without_pending)

    def consecutive_failures(self, run_id: str) -> dict[str, int]:
        """Return the number of each variant's committed slots since its last `completed` one.

        Pruned slots are not counted: they did not fail, and do not end a series of failures.
        """
        with self._of_run(run_id) as (connection, run_no):
            return runs.consecutive_failures(connection, run_no)

    # -- slots and tasks

    def slots(self, run_id: str, start: int = 0) -> Iterator[Slot]:
        """Yield the slots of the schedule from `start` on."""
        with self._of_run(run_id) as (connection, run_no):
            for row in connection.exec_driver_sql(_SLOTS_SQL, (run_no, start)):
                yield Slot(*row)

    def scheduled(self, run_id: str) -> Iterator[tuple[str, str, int]]:
        """Yield variant id, task id and the number of cells of each that have any.

        A slot that supersedes another one is of the same cell.
        """
        with self._of_run(run_id) as (connection, run_no):
            yield from connection.exec_driver_sql(_SLOT_COUNTS_SQL, (run_no,))

    def slot(self, run_id: str, schedule_idx: int) -> Slot:
        """Return one slot. Raises `SlotNotFound`."""
        slot = next(self.slots(run_id, schedule_idx), None)
        if slot is None or schedule_idx < 0:
            total = self.run(run_id).total_slots
            raise SlotNotFound(
                f"run {run_id} has no slot {schedule_idx}",
                hint=f"its slots are numbered from 0 to {total - 1}",
            )
        return slot

    def task(self, run_id: str, task_id: str) -> JsonObject:
        """Return the frozen row of a task. Raises `LedgerError` if the run has no such task."""
        with self._snapshot(f"read run {run_id}") as connection:
            body = connection.exec_driver_sql(_TASK_SQL, (run_id, task_id)).scalar()
            if body is None:
                run_number(connection, run_id)
                raise LedgerError(f"run {run_id} has no task {task_id!r}")
        row: JsonObject = json.loads(body)
        return row

    def task_ids(self, run_id: str) -> Iterator[str]:
        """Yield the id of each task, in the order of the dataset."""
        with self._of_run(run_id) as (connection, run_no):
            sql = "SELECT task_id FROM run_task WHERE run_no = ? ORDER BY task_idx"
            yield from connection.exec_driver_sql(sql, (run_no,)).scalars()

    def task_digests(self, run_id: str) -> dict[str, str]:
        """Return the digest of each task by its id, in the order of the dataset."""
        with self._of_run(run_id) as (connection, run_no):
            rows = connection.exec_driver_sql(
                "SELECT task_id, digest FROM run_task WHERE run_no = ? ORDER BY task_idx",
                (run_no,),
            ).all()
            return dict(map(tuple, rows))

    def task_row_digests(self, run_id: str) -> dict[str, str]:
        """Return the digest of each task's whole frozen row by the task's id."""
        with self._of_run(run_id) as (connection, run_no):
            rows = connection.exec_driver_sql(
                "SELECT task_id, payload_digest FROM run_task WHERE run_no = ? ORDER BY task_idx",
                (run_no,),
            ).all()
            return dict(map(tuple, rows))

    # -- staged results and dispatches

    def staged(self, run_id: str) -> dict[int, StagedAttempt]:
        """Return the newest staged result of each slot that has one, by `schedule_idx`."""
        with self._of_run(run_id) as (connection, run_no):
            rows = connection.exec_driver_sql(
                "SELECT schedule_idx, attempt, final FROM staged_result WHERE run_no = ? "
                "ORDER BY schedule_idx, attempt",
                (run_no,),
            ).all()
            return {idx: StagedAttempt(attempt, bool(final)) for idx, attempt, final in rows}

    def staged_result(self, run_id: str, schedule_idx: int) -> AttemptResult | None:
        """Return the newest staged result of a slot, without the contents of its artifacts."""
        with self._of_run(run_id) as (connection, run_no):
            payload = connection.exec_driver_sql(
                "SELECT payload FROM staged_result WHERE run_no = ? AND schedule_idx = ? "
                "ORDER BY attempt DESC LIMIT 1",
                (run_no, schedule_idx),
            ).scalar()
        if payload is None:
            return None
        return AttemptResult.from_json(json.loads(payload), self._store.staged_events)

    def last_dispatches(self, run_id: str, start: int = 0) -> dict[int, Dispatch]:
        """Return the newest dispatch of each slot from `start` on, by `schedule_idx`."""
        with self._of_run(run_id) as (connection, run_no):
            rows = connection.exec_driver_sql(
                "SELECT schedule_idx, attempt, container, host, dispatched_at FROM dispatch "
                "WHERE run_no = ? AND schedule_idx >= ? ORDER BY schedule_idx, attempt, epoch",
                (run_no, start),
            ).all()
            return {row[0]: Dispatch(*row) for row in rows}

    # -- committed records

    def slot_records(
        self, run_id: str, start: int = 0, stop: int | None = None
    ) -> Iterator[SlotRecords]:
        """Yield the records of the commits of slots `start` to `stop` (exclusive)."""
        with self._of_run(run_id) as (connection, run_no):
            for commit in commit_stream.commits(connection, run_id, run_no, start, stop):
                yield commit.records

    def record_lines(
        self, run_id: str, kind: str, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, str]]:
        """Yield `schedule_idx` and line of each record of one of `RECORD_KINDS`.

        The records are those of slots `start` to `stop` (exclusive).
        """
        with self._of_run(run_id) as (connection, run_no):
            for idx, lines in commit_stream.lines_by_slot(
                connection, kind, run_id, run_no, start, stop
            ):
                for line in lines:
                    yield idx, line

    def chain_records(self, run_id: str) -> Iterator[JsonObject]:
        """Yield the run's creation and each commit's digests, as `chain_record_v1`."""
        with self._of_run(run_id) as (connection, run_no):
            yield from commit_stream.stream_records(connection, run_no)

    def flat_rows(self, run_id: str, kind: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of one of `export_tables.TABLES`, with its columns, in schedule order."""
        with self._of_run(run_id) as (connection, run_no):
            yield from export_tables.TABLES[kind].rows(connection, run_no)

    def primary_metrics(self, run_id: str) -> dict[str, PrimaryMetric]:
        """Return the mean primary metric of each variant whose scored slots all have the same one.

        A `grade_error`'s score is not counted.
        """
        with self._of_run(run_id) as (connection, run_no):
            return runs.primary_metrics(connection, run_no)

    def timeout_counts(self, run_id: str) -> TimeoutCounts | None:
        """Return how many committed attempts timed out short of processors; None if none did."""
        with self._of_run(run_id) as (connection, run_no):
            return spending.timeout_counts(connection, run_no)

    def spent(self, run_id: str) -> dict[str, Spent]:
        """Return the `cost_usd` and `tokens` that attempts of committed slots reported."""
        with self._of_run(run_id) as (connection, run_no):
            return spending.committed_spending(connection, run_no)

    def spent_so_far(self, run_id: str) -> dict[str, Spent]:
        """Return what `spent` does, plus what finished trials spent that are not committed yet."""
        with self._of_run(run_id) as (connection, run_no):
            return spending.spending_so_far(connection, run_no)

    def first_score(self, run_id: str) -> JsonObject | None:
        """Return the first score record in schedule order, which names benchmark and evaluator."""
        with self._of_run(run_id) as (connection, run_no):
            record = connection.exec_driver_sql(
                "SELECT record FROM score WHERE run_no = ? ORDER BY schedule_idx, row_seq LIMIT 1",
                (run_no,),
            ).scalar()
        return None if record is None else json.loads(record)

    def chain_head(self, run_id: str) -> str:
        """Return the chain digest of the last commit, or the genesis digest if there is none."""
        with self._of_run(run_id) as (connection, run_no):
            head: str = connection.exec_driver_sql(
                "SELECT coalesce((SELECT chain_digest FROM slot_commit WHERE run_no = ?1 "
                "ORDER BY schedule_idx DESC LIMIT 1), "
                "(SELECT genesis_digest FROM schedule WHERE run_no = ?1))",
                (run_no,),
            ).scalar_one()
            return head

    def chain_problems(self, run_id: str) -> Iterator[tuple[int | None, str]]:
        """Yield slot and text of each problem in the chain of a run's commits."""
        with self._of_run(run_id) as (connection, run_no):
            yield from commit_stream.find_chain_problems(connection, run_no, run_id)

    def has_artifact(self, sha256: str) -> bool:
        """Return whether the ledger has an artifact (64 hex digits)."""
        with self._snapshot("search for an artifact") as connection:
            sql = "SELECT 1 FROM artifact WHERE sha256 = ?"
            return connection.exec_driver_sql(sql, (digest_bytes(sha256),)).first() is not None

    def small_artifacts(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return the content of each of these artifacts that the ledger itself stores, by digest.

        Raises `LedgerError` if one was changed.
        """
        with self._snapshot("read artifacts") as connection:
            contents = {}
            for sha256 in digests:
                content = connection.exec_driver_sql(
                    "SELECT content FROM artifact WHERE sha256 = ?", (digest_bytes(sha256),)
                ).scalar()
                if content is not None:
                    contents[sha256] = unchanged(content, sha256)
            return contents

    def artifact(self, sha256: str) -> bytes:
        """Return the content of an artifact (64 hex digits). Raises `LedgerError`.

        The content is checked against its digest.
        """
        with self._snapshot("read an artifact") as connection:
            return read_artifact(connection, self._store, sha256)

    @contextmanager
    def trial_contents(self, root_id: str, run_id: str) -> Iterator[TrialContents]:
        """Yield the trials of a run, to be read in one snapshot by the thread that asks.

        `root_id` is the run whose agents ran, `run_id` the run or the regrading that holds the
        evidence.
        """
        with self._of_run(run_id) as (connection, run_no):
            root_no = run_number(connection, root_id)
            yield TrialContents(connection, root_no, run_no, self._store)

    # -- connections

    @contextmanager
    def _snapshot(self, action: str) -> Iterator[Connection]:
        with translated(action, self.path), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _of_run(self, run_id: str) -> Iterator[tuple[Connection, int]]:
        with self._snapshot(f"read run {run_id}") as connection:
            yield connection, run_number(connection, run_id)
