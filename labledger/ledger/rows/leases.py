"""The lease of a run: acquire, renew, check and release it, and request a takeover.

A run has at most one lease. Each new owner has a larger epoch, which every write of a run checks in
its transaction (`UnitOfWork`). Creating or importing a run, acquiring a lease, and takeover
requests need no ownership. Replaced files raise `LedgerReplaced`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from labledger import clock
from labledger.errors import LeaseHeld, LeaseLost, LedgerError, LedgerReplaced
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.run_info import (
    Lease,
    LeaseInfo,
    Owner,
    Renewal,
    Stop,
    TakeoverRequest,
)
from labledger.ledger.database.sqlite import FileIdentity, file_identities, translated
from labledger.ledger.rows import notifications
from labledger.ledger.rows.lookup import run_number
from labledger.ledger.rows.run_rows import read_total_slots
from labledger.records.outcomes import RunStatus
from labledger.records.pass_rate import PassCounts
from labledger.records.task_coverage import TaskCoverage
from labledger.text.words import counted_of

IsDead = Callable[[Owner], bool]
"""Returns True if an owner's process has certainly ended."""
_ADVANCE = statements.update(
    "schedule_progress",
    "run_no = ?3 AND next_schedule_idx = ?4 AND epoch = ?5",
    next_schedule_idx="?1",
    updated_at="?2",
)
_SELECT_PROGRESS = "SELECT epoch, next_schedule_idx FROM schedule_progress WHERE run_no = ?"
_SELECT_LEASE = (
    f"SELECT run.run_id, {statements.columns('lease', start=1, qualified=True)} "  # noqa: S608
    "FROM lease JOIN run ON run.run_no = lease.run_no WHERE lease.run_no = ?"
)
_RENEW_LEASE = statements.update(
    "lease", "run_no = ?3 AND epoch = ?4", renewed_at="?1", expires_at="?2"
)
_DELETE_LEASE = "DELETE FROM lease WHERE run_no = ? AND epoch = ?"
_SELECT_CLAIM = statements.select("claim", start=1)
_DELETE_CLAIM = "DELETE FROM claim WHERE run_no = ? AND host = ? AND pid = ? AND process_token = ?"
_BEGIN_EPOCH = statements.update(
    "schedule_progress",
    "run_no = ?3",
    epoch="?1",
    status="'running'",
    updated_at="?2",
    ended_at="NULL",
    stop_cause="NULL",
    stop_message="NULL",
)
_END_EPOCH = statements.update(
    "schedule_progress",
    "run_no = ?6",
    status="?1",
    updated_at="?2",
    ended_at="?3",
    stop_cause="?4",
    stop_message="?5",
)


def checked_next_slot(connection: Connection, lease: Lease) -> int:
    """Return the run's next slot. Raise `LeaseLost` unless the run is in the lease's epoch."""
    progress = connection.execute(_SELECT_PROGRESS, (lease.run_no,)).first()
    if progress is None:
        raise LeaseLost(f"run {lease.run_id} was deleted; nothing more was written")
    epoch, next_idx = progress
    if epoch != lease.epoch:
        raise lease_lost_error(connection, lease)
    return int(next_idx)


def read_lease(connection: Connection, run_no: int) -> LeaseInfo | None:
    """Return the lease of a run that has one, even if it has expired."""
    row = connection.execute(_SELECT_LEASE, (run_no,)).first()
    if row is None:
        return None
    run_id, epoch, host, pid, token, *times = row
    return LeaseInfo(run_id, epoch, Owner(host, pid, token), *times)


def live_lease(connection: Connection, run_no: int, now: str, is_dead: IsDead) -> LeaseInfo | None:
    """Return the lease of a run if it keeps other processes from acquiring the run, else None."""
    lease = read_lease(connection, run_no)
    if lease is None or lease.expires_at <= now or is_dead(lease.owner):
        return None
    return lease


def refuse_live_lease(
    connection: Connection, run_no: int, run_id: str, now: str, is_dead: IsDead
) -> None:
    """Raise `LeaseHeld` while the lease of a live owner lasts."""
    lease = live_lease(connection, run_no, now, is_dead)
    if lease is not None:
        raise LeaseHeld(
            f"run {run_id} belongs to process {lease.owner.pid} on {lease.owner.machine} since "
            f"{lease.acquired_at}; its lease lasts until {lease.expires_at}",
            hint="leave the run to that process or stop it; "
            f"`labledger resume {run_id} --take-over` waits for the run and takes it",
        )


def lease_lost_error(connection: Connection, lease: Lease) -> LeaseLost:
    """Return the error for a process that lost its lease; it names the run's present owner."""
    present = read_lease(connection, lease.run_no)
    if present is None:
        cause = "another process has acquired and released its lease since"
    else:
        cause = (
            f"process {present.owner.pid} on {present.owner.machine} acquired it at "
            f"{present.acquired_at}"
        )
    return LeaseLost(
        f"run {lease.run_id} no longer belongs to this process: {cause}; nothing more was written",
        hint=f"`labledger status {lease.run_id}` shows how the run continues",
    )


class UnitOfWork:
    """Opens transactions, one after the other, on a connection that may write."""

    def __init__(self, path: Path, connection: Connection, now: Callable[[], str]) -> None:
        self.path = path
        self.now = now
        """Returns the time as text in the form of `labledger.clock`."""
        self._connection = connection
        self._files: tuple[FileIdentity, ...] | None = None

    @contextmanager
    def transaction(self, action: str) -> Iterator[Connection]:
        """Begin a transaction. Raise `LedgerError` ("could not `action`") if SQLite fails.

        Raises `LedgerReplaced` if the ledger's files were removed or replaced before its end. No
        other process reads what this transaction wrote in that case.
        """
        with translated(action, self.path), self._connection.begin():
            yield self._connection
        if self._files is not None and self._files != file_identities(self.path):
            raise LedgerReplaced(
                f"{self.path} was removed or replaced while this process wrote to it: what it has "
                "written since is not in the file of that name"
            )

    def set_log_aside(self, target: Path) -> None:
        """Rename this connection's log beside `target`, if the path names another database."""
        before, after = self._files or (), file_identities(self.path)
        if before[:1] == after[:1]:
            return
        for suffix, mine, there in zip(("", "-wal", "-shm"), before, after, strict=True):
            if mine is not None and mine == there:
                Path(f"{self.path}{suffix}").rename(f"{target}.old{suffix}")

    def remember_files(self) -> None:
        """Require from now on that the path names its present files.

        Call this after the first transaction, which creates the files beside the ledger.
        """
        self._files = file_identities(self.path)

    @contextmanager
    def owned(
        self, lease: Lease, action: str, *, open_slot: int | None = None
    ) -> Iterator[Connection]:
        """Begin a transaction that writes to a run. Raise `LeaseLost` unless `lease` is current.

        With `open_slot`, raise `LedgerError` if that slot is committed already.
        """
        with self.transaction(action) as connection:
            next_idx = checked_next_slot(connection, lease)
            if open_slot is not None and open_slot < next_idx:
                raise LedgerError(f"slot {open_slot} of run {lease.run_id} is committed already")
            yield connection

    @contextmanager
    def advance(self, lease: Lease, schedule_idx: int) -> Iterator[Connection]:
        """Begin the transaction that commits a slot, and move the run's progress past it.

        The same statement checks the epoch. Raises `LeaseLost` unless `lease` is current, and
        `LedgerError` unless this is the run's next slot; then nothing is written.
        """
        with self.transaction(f"save trial {schedule_idx} of run {lease.run_id}") as connection:
            result = connection.execute(
                _ADVANCE, (schedule_idx + 1, self.now(), lease.run_no, schedule_idx, lease.epoch)
            )
            if result.rowcount != 1:
                next_idx = checked_next_slot(connection, lease)
                raise LedgerError(
                    f"slot {schedule_idx} of run {lease.run_id} cannot be committed: "
                    f"the next one is slot {next_idx}"
                )
            yield connection


def read_request(connection: Connection, run_no: int) -> TakeoverRequest | None:
    """Return the newest takeover request for a run, even if it has expired."""
    row = connection.execute(_SELECT_CLAIM, (run_no,)).first()
    if row is None:
        return None
    host, pid, token, *times = row
    return TakeoverRequest(Owner(host, pid, token), *times)


def read_live_request(
    connection: Connection, run_no: int, now: str, is_dead: IsDead
) -> TakeoverRequest | None:
    """Return the takeover request for a run, unless it has expired or its sender is dead."""
    request = read_request(connection, run_no)
    if request is None or request.expires_at <= now or is_dead(request.owner):
        return None
    return request


def refuse_other_requester(request: TakeoverRequest | None, owner: Owner, run_id: str) -> None:
    """Raise `LeaseHeld` if a process other than `owner` has requested the run."""
    if request is not None and request.owner != owner:
        raise LeaseHeld(
            f"run {run_id} is wanted by process {request.owner.pid} on {request.owner.machine} "
            f"since {request.requested_at}, which takes it over next",
            hint=f"stop that process, or leave the run to it: `labledger status {run_id}`",
        )


def store_request(
    connection: Connection,
    run_no: int,
    request: TakeoverRequest | None,
    owner: Owner,
    now: str,
    ttl_s: float,
) -> None:
    """Store the owner's request for `ttl_s` seconds, or extend `request`, its earlier one.

    A request that lasts for more than half of `ttl_s` is left as it is.
    """
    if request is not None and request.expires_at > clock.later(now, ttl_s / 2):
        return
    since = now if request is None else request.requested_at
    expires_at = clock.later(now, ttl_s)
    connection.execute(
        statements.upsert("claim"),
        (run_no, *astuple(owner), since, expires_at),
    )


class LeaseWriter:
    """Changes who owns a run. Each method is one transaction."""

    def __init__(self, work: UnitOfWork) -> None:
        self._work = work

    def acquire(
        self, run_id: str, owner: Owner, ttl_s: float, *, is_dead: IsDead = lambda _: False
    ) -> Lease:
        """Acquire a run in a new epoch, for `ttl_s` seconds.

        A lease that has not expired is taken over only if `is_dead` returns True for its owner.
        Raises `LeaseHeld` if a live owner has the run or another process has requested it, and
        `RunNotFound`.
        """
        with self._work.transaction(f"acquire the lease of run {run_id}") as connection:
            run_no, now = run_number(connection, run_id), self._work.now()
            return _acquire(connection, run_no, run_id, owner, ttl_s, now, is_dead)

    def acquire_or_request(
        self,
        run_id: str,
        owner: Owner,
        ttl_s: float,
        request_ttl_s: float,
        *,
        is_dead: IsDead = lambda _: False,
    ) -> Lease | LeaseInfo:
        """Acquire a run, or store a takeover request and return the lease of its owner.

        The owner's lease is then not extended, as long as you call this again within
        `request_ttl_s` seconds. Raises `LeaseHeld` if another process has requested the run.
        """
        with self._work.transaction(f"request the takeover of run {run_id}") as connection:
            run_no, now = run_number(connection, run_id), self._work.now()
            request = read_live_request(connection, run_no, now, is_dead)
            refuse_other_requester(request, owner, run_id)
            current = live_lease(connection, run_no, now, is_dead)
            if current is None:
                return _acquire(connection, run_no, run_id, owner, ttl_s, now, is_dead)
            store_request(connection, run_no, request, owner, now, request_ttl_s)
            return current

    def withdraw_request(self, run_id: str, owner: Owner) -> None:
        """Delete the owner's takeover request for a run."""
        with self._work.transaction(
            f"withdraw the takeover request for run {run_id}"
        ) as connection:
            key = (run_number(connection, run_id), *astuple(owner))
            connection.execute(_DELETE_CLAIM, key)

    def renew(self, lease: Lease, *, is_dead: IsDead = lambda _: False) -> Renewal:
        """Extend the lease to `ttl_s` seconds from now, unless a live process has requested the
        run.

        Raises `LeaseLost`.
        """
        with self._work.transaction(f"renew the lease of run {lease.run_id}") as connection:
            stored, now = read_lease(connection, lease.run_no), self._work.now()
            if stored is None or stored.epoch != lease.epoch:
                raise lease_lost_error(connection, lease)
            request = read_live_request(connection, lease.run_no, now, is_dead)
            expires_at = clock.later(now, lease.ttl_s) if request is None else stored.expires_at
            connection.execute(_RENEW_LEASE, (now, expires_at, lease.run_no, lease.epoch))
            return Renewal(expires_at, request)

    @contextmanager
    def while_owned(self, lease: Lease) -> Iterator[None]:
        """Keep other processes from acquiring the run during a block that writes files.

        Raises `LeaseLost`. Keep the block short, because no other process can write to the ledger
        meanwhile.
        """
        with self._work.owned(lease, f"check the lease of run {lease.run_id}"):
            yield

    def release(
        self,
        lease: Lease,
        status: RunStatus,
        stop: Stop | None = None,
        passes: Mapping[str, PassCounts] | None = None,
        coverage: TaskCoverage | None = None,
    ) -> None:
        """Delete the lease; store the run's status, and why it stopped if it stopped early.

        Notifies the run's receivers, with `passes` (how many slots of each variant passed) and
        `coverage` (how many of the benchmark's tasks the run has). Raises `LeaseLost`, and
        `LedgerError` for `completed` unless every slot is committed.
        """
        key = (lease.run_no, lease.epoch)
        with self._work.transaction(f"release the lease of run {lease.run_id}") as connection:
            if connection.execute(_DELETE_LEASE, key).rowcount != 1:
                raise lease_lost_error(connection, lease)
            now = self._work.now()
            ended_at = now
            if status is RunStatus.COMPLETED:
                _require_all_committed(connection, lease)
                ended_at = _last_commit_time(connection, lease)
            cause, message = (stop.cause, stop.message) if stop else (None, None)
            connection.execute(
                _END_EPOCH, (status.value, now, ended_at, cause, message, lease.run_no)
            )
            total = read_total_slots(connection, lease.run_no)
            notice = (
                notifications.finished(total, passes or {}, coverage)
                if status is RunStatus.COMPLETED
                else notifications.stopped(lease.epoch, stop)
            )
            notifications.announce(connection, lease.run_no, [notice], now)


def _acquire(
    connection: Connection,
    run_no: int,
    run_id: str,
    owner: Owner,
    ttl_s: float,
    now: str,
    is_dead: IsDead,
) -> Lease:
    refuse_live_lease(connection, run_no, run_id, now, is_dead)
    request = read_live_request(connection, run_no, now, is_dead)
    refuse_other_requester(request, owner, run_id)
    connection.execute("DELETE FROM claim WHERE run_no = ?", (run_no,))
    epoch = connection.execute(_SELECT_PROGRESS, (run_no,)).one()[0] + 1
    row = (run_no, epoch, *astuple(owner), now, now, clock.later(now, ttl_s))
    connection.execute(statements.upsert("lease"), row)
    connection.execute(_BEGIN_EPOCH, (epoch, now, run_no))
    return Lease(run_no, run_id, epoch, ttl_s)


def _last_commit_time(connection: Connection, lease: Lease) -> str:
    """Return when the run became complete. Resuming a complete run does not change that time."""
    result = connection.execute(
        "SELECT committed_at FROM slot_commit WHERE run_no = ? ORDER BY schedule_idx DESC LIMIT 1",
        (lease.run_no,),
    )
    return str(result.scalar_one())


def _require_all_committed(connection: Connection, lease: Lease) -> None:
    total = read_total_slots(connection, lease.run_no)
    next_idx = checked_next_slot(connection, lease)
    if next_idx != total:
        committed = counted_of(next_idx, total, "trial")
        raise LedgerError(f"run {lease.run_id} is not complete: {committed} are saved")
