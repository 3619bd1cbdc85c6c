"""Write to the ledger: `LedgerWriter` creates runs, stages results and commits slots.

`LedgerWriter.leases` changes who owns a run, and `LedgerWriter.imports` imports runs from other
ledgers. Nothing else changes runs. A slot is committed in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from labledger import clock, fault_points
from labledger.errors import LedgerError
from labledger.files import lab_folder
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import migrations
from labledger.ledger.database.connection import Database
from labledger.ledger.database.run_info import Dispatch, Lease, NewPart, NewRun
from labledger.ledger.database.sqlite import empty_log, shrink_log, translated, writable_engine
from labledger.ledger.rows import control_requests, notifications, run_rows, slot_commits
from labledger.ledger.rows.control_requests import ControlRequest
from labledger.ledger.rows.leases import IsDead, LeaseWriter, UnitOfWork
from labledger.ledger.rows.ledger_identity import ledger_id
from labledger.ledger.rows.lookup import run_number
from labledger.ledger.rows.notifications import Notice, ReceiverSource
from labledger.ledger.rows.slot_commits import SlotCommit
from labledger.ledger.rows.tombstones import Tombstone
from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult, SlotRecords
from labledger.records.identity import Slot
from labledger.records.outcomes import NEVER_RUN, RequestKind, SlotStatus

if TYPE_CHECKING:
    from labledger.ledger.exchange.import_writer import ImportWriter


class LedgerWriter:
    """A connection that may write, for one thread. While it is open, no artifact is removed.

    Every method that changes the ledger does so in one transaction: all of its changes happen, or
    none. If SQLite fails, a `LedgerError` names the action, and the writer can still be used.
    """

    def __init__(
        self, path: Path, engine: Database, store: ArtifactStore, now: Callable[[], str]
    ) -> None:
        self.path = path
        self._engine = engine
        self.store = store
        self._uses = ExitStack()
        self._uses.enter_context(store.in_use())
        self.connection = engine.connect()
        self._work = UnitOfWork(path, self.connection, now)
        try:
            with self._work.transaction("open the ledger") as connection:
                self.ledger_id = ledger_id(connection)
        except BaseException:
            self.close()
            raise
        self._work.remember_files()
        self.leases = LeaseWriter(self._work)
        """Acquires, renews and releases leases."""

    @classmethod
    def open(
        cls, path: Path, store: ArtifactStore, *, now: Callable[[], str] = clock.utc_now
    ) -> Self:
        """Open an existing, current ledger (`migrations.upgrade` makes one).

        `now` returns the time as text in the form of `labledger.clock`. Raises `LedgerMissing`,
        `LedgerOutdated`, `LedgerTooNew`, or `LedgerError`.
        """
        lab_folder.refuse_network(path)
        migrations.require_current(path)
        with translated("open the ledger", path):
            return cls(path, writable_engine(path), store, now)

    def close(self) -> None:
        """Empty the write-ahead log, which readers cannot do, and close the connection."""
        if not self.connection.closed:
            empty_log(self.connection)
        self.connection.close()
        self._engine.dispose()
        self._uses.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def imports(self) -> ImportWriter:
        """Imports runs of other ledgers."""
        # Imported late: it imports all of verification, which few commands use.
        from labledger.ledger.exchange.import_writer import ImportWriter

        return ImportWriter(self._work, self.store)

    def shrink_log(self) -> bool:
        """Empty the write-ahead log if it has outgrown its limit; return False if a reader uses it.

        Waits at most a tenth of a second for readers.
        """
        return shrink_log(self.connection, self.path)

    def save_replaced(self, target: Path) -> None:
        """Copy this writer's open ledger, after `LedgerReplaced`, to the new file `target`.

        If another ledger now has the path, the write-ahead log is renamed, because SQLite would
        apply it to that ledger. Raises `LedgerError` if the copy cannot be written; then no file is
        left.
        """
        migrations.copy_open_ledger(self.connection, target)
        self._work.set_log_aside(target)

    # -- runs

    def create_run(
        self, run: NewRun, tasks: Iterable[run_rows.TaskRow], slots: Iterable[Slot]
    ) -> None:
        """Store a new run, `interrupted` until its lease is acquired. Raises `RunExists`."""
        with self._work.transaction(f"create run {run.run_id}") as connection:
            run_rows.register(connection, run, tasks, slots, self._work.now())

    def append_part(
        self,
        lease: Lease,
        part: NewPart,
        tasks: Iterable[run_rows.TaskRow],
        slots: Iterable[Slot],
    ) -> int:
        """Append a part to the run's schedule, all of it or nothing; return the part's number.

        A slot of a rerun names in `supersedes` the slot that it replaces. Raises `LeaseLost`, and
        `LedgerError` if the run has grown since the part was planned.
        """
        with self._work.owned(lease, f"append a part to run {lease.run_id}") as connection:
            number = run_rows.append(connection, lease, part, tasks, slots, self._work.now())
            fault_points.fault_point("inside_append")
            return number

    def set_budget(self, lease: Lease, limits: Mapping[str, float]) -> None:
        """Replace the run's limits of these kinds; `math.inf` removes one. Raises `LeaseLost`."""
        with self._work.owned(lease, f"store the budget of run {lease.run_id}") as connection:
            run_rows.write_budget(connection, lease.run_no, limits)

    def set_settings(self, lease: Lease, settings: Mapping[str, str]) -> None:
        """Replace the run's settings `on` and `window` that are given. Raises `LeaseLost`."""
        with self._work.owned(lease, f"store the settings of run {lease.run_id}") as connection:
            run_rows.write_settings(connection, lease.run_no, settings)

    def set_receivers(
        self, lease: Lease, receivers: Mapping[ReceiverSource, Iterable[str]]
    ) -> None:
        """Replace the run's receivers from these sources. Raises `LeaseLost`."""
        with self._work.owned(lease, f"store the receivers of run {lease.run_id}") as connection:
            notifications.write_receivers(connection, lease.run_no, receivers)

    def announce(self, lease: Lease, notices: Sequence[Notice]) -> None:
        """Store notices for the run's receivers. Raises `LeaseLost`.

        `stage` and the commits also take notices, and store them in the same transaction.
        """
        with self._work.owned(lease, f"store notifications of run {lease.run_id}") as connection:
            notifications.announce(connection, lease.run_no, notices, self._work.now())

    def declare_host_lost(self, run_id: str, host: str, because: str) -> None:
        """Refuse everything that a host delivers for a run from now on. Needs no lease.

        Raises `RunNotFound`, and `InvalidInput` for a host that ran no trial of the run.
        """
        with self._work.transaction(f"declare a host of run {run_id} lost") as connection:
            run_no = run_number(connection, run_id)
            now = self._work.now()
            run_rows.declare_lost(connection, run_no, run_id, host, because, now)
            notice = notifications.host_lost(host, because)
            notifications.announce(connection, run_no, [notice], now)

    def add_request(
        self,
        run_id: str,
        kind: RequestKind,
        what: JsonObject,
        requested_by: str,
        because: str | None = None,
    ) -> ControlRequest:
        """Store a request about a run. Needs no lease. Raises `RunNotFound`."""
        with self._work.transaction(f"write a request about run {run_id}") as connection:
            run_no, now = run_number(connection, run_id), self._work.now()
            return control_requests.add_request(
                connection, run_no, kind, what, requested_by, because, now
            )

    def apply_request(
        self, lease: Lease, request: ControlRequest, outcome: JsonObject
    ) -> ControlRequest:
        """Store the outcome of a request, with the limits that it sets.

        Raises `LeaseLost`, and `LedgerError` if the request is already applied.
        """
        action = f"apply request {request.number} of run {lease.run_id}"
        with self._work.owned(lease, action) as connection:
            now = self._work.now()
            applied = control_requests.apply_request(
                connection, lease.run_no, lease.epoch, request, outcome, now
            )
            notice = notifications.request_applied(applied)
            notifications.announce(connection, lease.run_no, [notice], now)
            fault_points.fault_point("inside_apply")
            return applied

    def add_note(self, run_id: str, note: str) -> None:
        """Append a note to a run. Needs no lease. Raises `RunNotFound`."""
        with self._work.transaction(f"write a note on run {run_id}") as connection:
            run_no = run_number(connection, run_id)
            run_rows.add_note(connection, run_no, note, self._work.now())

    def change_tags(self, run_id: str, add: Iterable[str], remove: Iterable[str]) -> None:
        """Add tags to a run and remove others. Needs no lease. Raises `RunNotFound`."""
        with self._work.transaction(f"change the tags of run {run_id}") as connection:
            run_no = run_number(connection, run_id)
            run_rows.remove_tags(connection, run_no, remove)
            run_rows.add_tags(connection, run_no, add, self._work.now())

    def delete_run(self, run_id: str, because: str, is_dead: IsDead) -> list[Tombstone]:
        """Delete every row of a run and its regradings, and return their tombstones.

        Raises `RunNotFound`, `LeaseHeld` if a coordinator owns one of them, and `InvalidInput` for
        a regrading.
        """
        # Imported late: runs are seldom deleted.
        from labledger.ledger import removal

        with (
            self._without_foreign_keys(),
            self._work.transaction(f"delete run {run_id}") as connection,
        ):
            stones = removal.delete(connection, run_id, because, self._work.now(), is_dead)
            fault_points.fault_point("inside_delete")
            return stones

    @contextmanager
    def _without_foreign_keys(self) -> Iterator[None]:
        """Turn foreign keys off for the transaction of a block that removes all rows of runs.

        Otherwise SQLite would search all slots of the run, for each slot, for one that supersedes
        it.
        """
        self.connection.execute("PRAGMA foreign_keys = OFF")
        try:
            yield
        finally:
            self.connection.execute("PRAGMA foreign_keys = ON")

    # -- trials before their commit

    def journal_dispatch(self, lease: Lease, dispatches: Sequence[Dispatch]) -> None:
        """Journal that these containers are about to be created. Raises `LeaseLost`.

        An attempt is dispatched at most once in an epoch. `stage` and the commits also take
        dispatches, and store them in the same transaction.
        """
        with self._work.owned(lease, f"journal a dispatch of run {lease.run_id}") as connection:
            slot_commits.insert_dispatches(connection, lease, dispatches)

    def stage(
        self,
        lease: Lease,
        result: AttemptResult,
        *,
        final: bool,
        dispatches: Sequence[Dispatch] = (),
        delivered_by: str | None = None,
        notices: Sequence[Notice] = (),
    ) -> None:
        """Store a result, with its artifacts, until its slot can be committed.

        `final` is False if another attempt follows. `delivered_by` is the host of a cluster that
        delivered the result. Raises `LeaseLost`, and `HostLost` if that host was declared lost.
        """
        idx = result.schedule_idx
        action = f"store the result of trial {idx} of run {lease.run_id}"
        with self._work.owned(lease, action, open_slot=idx) as connection:
            if delivered_by is not None:
                run_rows.require_not_lost(connection, lease.run_no, delivered_by)
            slot_commits.insert_artifacts(connection, self.store, result.artifacts)
            slot_commits.insert_staged(connection, lease, result, final=final, now=self._work.now())
            slot_commits.insert_dispatches(connection, lease, dispatches)
            notifications.announce(connection, lease.run_no, notices, self._work.now())
            fault_points.fault_point("inside_stage", idx)

    # -- commits

    def commit_result(
        self,
        lease: Lease,
        result: AttemptResult,
        dispatches: Sequence[Dispatch] = (),
        delivered_by: str | None = None,
        notices: Sequence[Notice] = (),
    ) -> SlotRecords:
        """Commit a slot with the result of its last attempt, and staged results of earlier ones.

        `delivered_by` is the host of a cluster that delivered the result. Raises `LeaseLost` if
        another process owns the run, `LedgerError` if this is not the run's next slot, and
        `HostLost` if that host was declared lost; then nothing is written.
        """
        idx = result.schedule_idx
        with self._begin_commit(lease, idx, dispatches, notices) as slot:
            if delivered_by is not None:
                run_rows.require_not_lost(slot.connection, lease.run_no, delivered_by)
            if any(row.attempt >= result.attempt for row in slot.staged):
                raise LedgerError(
                    f"slot {idx} of run {lease.run_id} has attempt {result.attempt} or a later one "
                    "staged already"
                )
            slot_commits.insert_artifacts(slot.connection, self.store, result.artifacts)
            return slot.insert_results([*slot.staged_results(), result])

    def commit_staged(
        self,
        lease: Lease,
        schedule_idx: int,
        dispatches: Sequence[Dispatch] = (),
        notices: Sequence[Notice] = (),
    ) -> SlotRecords:
        """Commit a slot whose final result is staged. Raises as `commit_result` does."""
        with self._begin_commit(lease, schedule_idx, dispatches, notices) as slot:
            if not slot.staged or not slot.staged[-1].final:
                raise LedgerError(
                    f"slot {schedule_idx} of run {lease.run_id} has no final result staged"
                )
            return slot.insert_results(slot.staged_results())

    def commit_unexecuted(
        self,
        lease: Lease,
        schedule_idx: int,
        status: SlotStatus,
        reason: str,
        dispatches: Sequence[Dispatch] = (),
    ) -> SlotRecords:
        """Commit a slot that never ran, with a status of `NEVER_RUN`. Raises as `commit_result`."""
        if status not in NEVER_RUN:
            raise ValueError(f"{status} needs a trial")
        with self._begin_commit(lease, schedule_idx, dispatches) as slot:
            if slot.staged:
                raise LedgerError(
                    f"slot {schedule_idx} of run {lease.run_id} was run; it cannot be {status}"
                )
            records = SlotRecords(schedule_idx, slot.ids.variant_id, status, reason)
            slot.insert_commit(records)
            return records

    def delete_event_files(self, run_id: str, next_idx: int) -> None:
        """Delete the files of staged events of slots before `next_idx`, which are all committed."""
        for path in (self.store.staged_events / run_id).glob("*-*.jsonl"):
            if int(path.name.partition("-")[0]) < next_idx:
                path.unlink(missing_ok=True)

    @contextmanager
    def _begin_commit(
        self,
        lease: Lease,
        idx: int,
        dispatches: Sequence[Dispatch],
        notices: Sequence[Notice] = (),
    ) -> Iterator[SlotCommit]:
        """Begin the transaction that moves the run past slot `idx`."""
        with self._work.advance(lease, idx) as connection:
            yield SlotCommit.begin(connection, lease, idx, self.store, self._work.now)
            slot_commits.insert_dispatches(connection, lease, dispatches)
            notifications.announce(connection, lease.run_no, notices, self._work.now())
            fault_points.fault_point("inside_commit", idx)
