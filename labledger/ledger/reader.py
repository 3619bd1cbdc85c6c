"""Read the ledger through a read-only connection.

A reader never writes, and never takes a lock that makes a writer wait. Each call reads one
snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, BinaryIO, Concatenate, ParamSpec, Self, TypeVar

from labledger.errors import LedgerError, SlotNotFound
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import migrations, statements
from labledger.ledger.database.connection import Connection, Database
from labledger.ledger.database.run_info import Graded
from labledger.ledger.database.sqlite import readonly_engine, translated
from labledger.ledger.reading import committed_rows
from labledger.ledger.reading.committed_rows import read_table
from labledger.ledger.reading.counts import (
    count_consecutive_failures,
    count_slots,
    count_timeouts,
    count_unread_results,
    read_cancelled,
    read_committed_spending,
    read_costs,
    read_incomplete_costs,
    read_primary_metrics,
    read_spending_so_far,
)
from labledger.ledger.reading.model_answers import read_model_answers
from labledger.ledger.reading.progress_rows import (
    find_tasks,
    read_committed_slots,
    read_failures,
    read_grid,
    read_last_failed,
    read_open_slots,
    read_progress,
    read_recent_commits,
    read_recent_trials,
    read_runs_at_work,
    read_series,
    read_slots_beside,
    read_task_rates,
    read_variant_amounts,
)
from labledger.ledger.reading.stored_runs import (
    read_gradings,
    read_lost_hosts,
    read_pending_slots,
    read_replacement,
    read_reruns,
    read_revisions,
    read_run,
    read_runs,
    read_scheduled,
    read_task_digests,
    read_task_row_digests,
    with_regradings,
)
from labledger.ledger.rows.control_requests import read_requests, read_unchanged_requests
from labledger.ledger.rows.digest_chain import (
    find_chain_problems,
    read_chain_head,
    read_chain_records,
)
from labledger.ledger.rows.grader_history import count_failed_gradings, find_told_since
from labledger.ledger.rows.ledger_identity import ledger_id, read_backup_time
from labledger.ledger.rows.lookup import (
    current_grading_run_no,
    grading_run_no,
    read_root_id,
    run_number,
)
from labledger.ledger.rows.model_usage import (
    read_model_record,
    read_model_usage,
    read_prices,
    read_slots_with_model_record,
    read_staged_calls,
)
from labledger.ledger.rows.notifications import read_receivers
from labledger.ledger.rows.run_rows import read_hosts, read_notes
from labledger.ledger.rows.slot_commits import (
    count_exempt_attempts,
    parse_staged_result,
    read_last_dispatches,
    read_staged,
    read_staged_statuses,
    read_unjudged,
)
from labledger.ledger.rows.tombstones import read_deleted_ids
from labledger.ledger.rows.trial_contents import (
    TrialContents,
    digest_bytes,
    open_artifact,
    read_agent_digests,
    read_artifact,
    unchanged,
)
from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult, SlotRecords
from labledger.records.identity import Slot

_SLOTS_SQL = statements.expand("""
SELECT slot.schedule_idx, run_variant.variant_id, run_task.task_id, slot.repl_idx, slot.supersedes
FROM slot
{slot_names}
WHERE slot.run_no = ? AND slot.schedule_idx >= ?
ORDER BY slot.schedule_idx""")
_REPLACING_VERDICTS_SQL = statements.expand("""
SELECT slot.schedule_idx, run_variant.variant_id, run_task.task_id, slot.repl_idx, slot.supersedes
FROM slot
{slot_names}
JOIN schedule_progress AS progress ON progress.run_no = slot.run_no
JOIN slot_outcome AS earlier ON earlier.run_no = slot.run_no
  AND earlier.variant_idx = slot.variant_idx AND earlier.task_idx = slot.task_idx
  AND earlier.repl_idx = slot.repl_idx AND earlier.passed IS NOT NULL
WHERE slot.run_no = ? AND slot.schedule_idx >= progress.next_schedule_idx
  AND slot.supersedes IS NOT NULL
ORDER BY slot.schedule_idx""")
_TASK_SQL = statements.expand("""
SELECT task_payload.body FROM run
JOIN run_task ON run_task.run_no = run.run_no AND run_task.task_id = ?2
{task_payload}
WHERE run.run_id = ?1""")
P = ParamSpec("P")
T = TypeVar("T")


def _query(
    read: Callable[Concatenate[Connection, int, P], T],
) -> Callable[Concatenate[LedgerReader, str, P], T]:
    """Return a query of a run as a method that takes the run's id and raises `RunNotFound`."""

    @wraps(read)
    def of_run(self: LedgerReader, run_id: str, /, *args: P.args, **options: P.kwargs) -> T:
        with self._of_run(run_id) as (connection, run_no):
            return read(connection, run_no, *args, **options)

    return of_run


def _row_query(
    read: Callable[Concatenate[Connection, int, P], Iterator[T]],
) -> Callable[Concatenate[LedgerReader, str, P], Iterator[T]]:
    """Return a query that yields rows of a run as a method, as `_query` does."""

    @wraps(read)
    def of_run(
        self: LedgerReader, run_id: str, /, *args: P.args, **options: P.kwargs
    ) -> Iterator[T]:
        with self._of_run(run_id) as (connection, run_no):
            yield from read(connection, run_no, *args, **options)

    return of_run


def _ledger_query(
    action: str, read: Callable[Concatenate[Connection, P], T]
) -> Callable[Concatenate[LedgerReader, P], T]:
    """Return a query of the whole ledger as a method. `action` is for errors: "could not …"."""

    @wraps(read)
    def of_ledger(self: LedgerReader, /, *args: P.args, **options: P.kwargs) -> T:
        with self._snapshot(action) as connection:
            return read(connection, *args, **options)

    return of_ledger


class LedgerReader:
    """A read-only view of a ledger, whose methods may be called from any thread.

    Each call reads one snapshot of the ledger. An iterator reads the snapshot of its first step
    until it is exhausted or closed.
    """

    def __init__(self, path: Path, engine: Database, store: ArtifactStore) -> None:
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

    @classmethod
    def open_any(cls, path: Path, store: ArtifactStore | None = None) -> Self:
        """Open a ledger of any revision; read an earlier revision in an upgraded copy.

        Writes nothing to the ledger. Raises as `open` does, but `LedgerOutdated` only if the ledger
        is too large to copy.
        """
        engine = migrations.any_revision_engine(path)
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

    # -- queries of all runs

    runs = _ledger_query("list the runs", read_runs)
    costs = _ledger_query("read what the runs cost", read_costs)
    incomplete_costs = _ledger_query("read which costs are incomplete", read_incomplete_costs)
    progress = _ledger_query("read the progress of the runs", read_progress)
    runs_at_work = _ledger_query("read which runs are at work", read_runs_at_work)
    recent_commits = _ledger_query("read the newest commits", read_recent_commits)
    backed_up_at = _ledger_query("read when the ledger was backed up", read_backup_time)
    deleted_run_ids = _ledger_query("list the deleted runs", read_deleted_ids)

    # -- queries of a run, by its id

    run = _query(read_run)
    resolved_revisions = _query(read_revisions)
    notes = _query(read_notes)
    hosts = _query(read_hosts)
    lost_hosts = _query(read_lost_hosts)
    control_requests = _query(read_requests)
    unchanged_requests = _query(read_unchanged_requests)
    receivers = _query(read_receivers)
    task_digests = _query(read_task_digests)
    task_row_digests = _query(read_task_row_digests)
    scheduled = _row_query(read_scheduled)
    reruns = _query(read_reruns)
    pending_reruns = _query(read_pending_slots)
    replacement = _query(read_replacement)
    gradings = _query(read_gradings)
    counts = _query(count_slots)
    cancelled = _query(read_cancelled)
    consecutive_failures = _query(count_consecutive_failures)
    primary_metrics = _query(read_primary_metrics)
    timeout_counts = _query(count_timeouts)
    unread_results = _query(count_unread_results)
    failed_gradings = _query(count_failed_gradings)
    told_since = _query(find_told_since)
    spent = _query(read_committed_spending)
    spent_so_far = _query(read_spending_so_far)
    prices = _query(read_prices)
    model_usage = _query(read_model_usage)
    model_answers = _query(read_model_answers)
    staged_calls = _query(read_staged_calls)
    model_record = _query(read_model_record)
    staged = _query(read_staged)
    staged_statuses = _query(read_staged_statuses)
    unjudged = _query(read_unjudged)
    count_exempt = _query(count_exempt_attempts)
    last_dispatches = _query(read_last_dispatches)
    committed_slots = _query(read_committed_slots)
    last_failed = _query(read_last_failed)
    open_slots = _query(read_open_slots)
    slots_beside = _query(read_slots_beside)
    tasks_with = _query(find_tasks)
    grid = _query(read_grid)
    failures = _query(read_failures)
    task_rates = _query(read_task_rates)
    variant_amounts = _query(read_variant_amounts)
    recent_trials = _query(read_recent_trials)
    series = _row_query(read_series)
    slots_with_model_record = _row_query(read_slots_with_model_record)
    chain_records = _row_query(read_chain_records)
    chain_problems = _row_query(find_chain_problems)
    chain_head = _query(read_chain_head)
    flat_rows = _row_query(read_table)

    # -- runs

    def with_regradings(self, run_id: str) -> list[str]:
        """Return the ids of a run and its regradings. Raises `InvalidInput` for a regrading."""
        with self._snapshot(f"read run {run_id}") as connection:
            return with_regradings(connection, run_id)

    def graded(self, name: str, generation: int | None = None) -> Graded:
        """Return the grading that a run's id, or a grading's id such as ``RUN.g1``, stands for.

        A run's id stands for its current grading. `generation` selects the grading of the same run
        with this number. Raises `RunNotFound`.
        """
        with self._snapshot(f"read run {name}") as connection:
            run_no = current_grading_run_no(connection, name)
            if generation is not None:
                run_no = grading_run_no(connection, read_root_id(connection, run_no), generation)
            all_gradings = read_gradings(connection, run_no)
            run = read_run(connection, run_no)
            for grading in all_gradings:
                if grading.run_id == run.run_id:
                    return Graded(name, run, grading, len(all_gradings))
        raise LedgerError(
            f"the ledger has no grading row for run {run.run_id}",
            hint="`labledger verify` shows what else was changed",
        )

    # -- slots and tasks

    def slots(self, run_id: str, start: int = 0) -> Iterator[Slot]:
        """Yield the slots of the schedule from `start` on."""
        with self._of_run(run_id) as (connection, run_no):
            for row in connection.execute(_SLOTS_SQL, (run_no, start)):
                yield Slot(*row)

    def slots_that_replace_verdicts(self, run_id: str) -> list[Slot]:
        """Return uncommitted slots of reruns that replace slots which count in the pass rate."""
        with self._of_run(run_id) as (connection, run_no):
            return [Slot(*row) for row in connection.execute(_REPLACING_VERDICTS_SQL, (run_no,))]

    def slot(self, run_id: str, schedule_idx: int) -> Slot:
        """Return one slot. Raises `SlotNotFound`."""
        slot = next(self.slots(run_id, schedule_idx), None)
        if slot is None or schedule_idx < 0:
            total = self.run(run_id).total_slots
            raise SlotNotFound(
                f"run {run_id} has no trial {schedule_idx}",
                hint=f"its trials are numbered from 0 to {total - 1}",
            )
        return slot

    def task(self, run_id: str, task_id: str) -> JsonObject:
        """Return the frozen row of a task. Raises `LedgerError` if the run has no such task."""
        with self._snapshot(f"read run {run_id}") as connection:
            body = connection.execute(_TASK_SQL, (run_id, task_id)).scalar()
            if body is None:
                run_number(connection, run_id)
                raise LedgerError(f"run {run_id} has no task {task_id!r}")
        row: JsonObject = json.loads(body)
        return row

    def staged_result(self, run_id: str, schedule_idx: int) -> AttemptResult | None:
        """Return the newest staged result of a slot, without the contents of its artifacts."""
        with self._of_run(run_id) as (connection, run_no):
            payload = connection.execute(
                "SELECT payload FROM staged_result WHERE run_no = ? AND schedule_idx = ? "
                "ORDER BY attempt DESC LIMIT 1",
                (run_no, schedule_idx),
            ).scalar()
        if payload is None:
            return None
        return parse_staged_result(payload, self._store.staged_events)

    # -- committed records

    def slot_records(
        self, run_id: str, start: int = 0, stop: int | None = None
    ) -> Iterator[SlotRecords]:
        """Yield the records of the commits of slots `start` to `stop` (exclusive)."""
        with self._of_run(run_id) as (connection, run_no):
            for commit in committed_rows.commits(connection, run_id, run_no, start, stop):
                yield commit.records

    def record_lines(self, run_id: str, kind: str, start: int = 0) -> Generator[tuple[int, str]]:
        """Yield slot and line of each record of one of `RECORD_KINDS`, from slot `start` on."""
        with self._of_run(run_id) as (connection, run_no):
            for idx, lines in committed_rows.lines_by_slot(connection, kind, run_id, run_no, start):
                for line in lines:
                    yield idx, line

    def first_score(self, run_id: str) -> JsonObject | None:
        """Return the first score record in schedule order, which names benchmark and evaluator."""
        with self._of_run(run_id) as (connection, run_no):
            record = connection.execute(
                "SELECT record FROM score WHERE run_no = ? ORDER BY schedule_idx, row_seq LIMIT 1",
                (run_no,),
            ).scalar()
        return None if record is None else json.loads(record)

    def has_artifact(self, sha256: str) -> bool:
        """Return whether the ledger has an artifact (64 hex digits)."""
        with self._snapshot("search for an artifact") as connection:
            sql = "SELECT 1 FROM artifact WHERE sha256 = ?"
            return connection.execute(sql, (digest_bytes(sha256),)).first() is not None

    def small_artifacts(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of artifacts that the ledger itself stores, by digest. Skip others.

        Raises `LedgerError` if one was changed.
        """
        with self._snapshot("read artifacts") as connection:
            contents = {}
            for sha256 in digests:
                content = connection.execute(
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

    def open_artifact(self, sha256: str) -> BinaryIO:
        """Return an open file of an artifact (64 hex digits) of any size.

        The content is checked against its digest. Raises `LedgerError`.
        """
        with self._snapshot("read an artifact") as connection:
            return open_artifact(connection, self._store, sha256)

    def agent_digests(self, run_id: str) -> set[tuple[str, str, str]]:
        """Return name, version and digest of the installed agents that a run's trials ran."""
        with self._of_run(run_id) as (connection, run_no):
            return read_agent_digests(connection, run_no)

    @contextmanager
    def trial_contents(self, root_id: str, run_id: str) -> Iterator[TrialContents]:
        """Yield the trials of a run, for reading in one snapshot by the calling thread.

        `root_id` is the run whose agents ran, `run_id` the run or the regrading that holds the
        evidence.
        """
        with self._of_run(run_id) as (connection, run_no):
            root_no = run_number(connection, root_id)
            yield TrialContents(connection, root_no, run_no, self._store)

    # -- connections

    def open_driver(self) -> Any:
        """Return a new connection of the driver, read-only and outside of a transaction.

        The caller closes it.
        """
        with translated("open the ledger", self.path):
            return self._engine.open_driver()

    @contextmanager
    def _snapshot(self, action: str) -> Iterator[Connection]:
        with translated(action, self.path), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _of_run(self, run_id: str) -> Iterator[tuple[Connection, int]]:
        with self._snapshot(f"read run {run_id}") as connection:
            yield connection, run_number(connection, run_id)
