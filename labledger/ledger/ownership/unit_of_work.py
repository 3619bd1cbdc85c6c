"""The ledger's write transactions, and the fence that keeps former owners out of a run.

All parts of the writer open their transactions here. A transaction is committed as a whole when
its block ends, and rolled back if the block raises. Creating or importing a run, acquiring a lease,
and storing or deleting a takeover request need no ownership; every other write to a run checks the
lease's epoch. No transaction counts as written unless the ledger's path still names the files that
it was written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from labledger.errors import LedgerError, LedgerReplaced
from labledger.ledger.commit_rows import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import Lease
from labledger.ledger.database.sqlite import FileIdentity, file_identities, translated
from labledger.ledger.ownership import leases


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

        Raises `LedgerReplaced` if the ledger's files were removed or replaced before its end; what
        it wrote is then no more than a copy that nobody else will read.
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
        """Require from now on that the path names the files that it names now.

        The first transaction has created those beside the ledger.
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
            next_idx = leases.checked_next_slot(connection, lease)
            if open_slot is not None and open_slot < next_idx:
                raise LedgerError(f"slot {open_slot} of run {lease.run_id} is committed already")
            yield connection

    @contextmanager
    def advance(self, lease: Lease, schedule_idx: int) -> Iterator[Connection]:
        """Begin the transaction that commits a slot, and move the run's progress past it.

        The epoch is checked by the same statement. Raise `LeaseLost` unless `lease` is current,
        and `LedgerError` unless it is the slot's turn; then nothing is written.
        """
        with self.transaction(f"commit slot {schedule_idx} of run {lease.run_id}") as connection:
            result = connection.exec_driver_sql(
                statements.ADVANCE,
                (schedule_idx + 1, self.now(), lease.run_no, schedule_idx, lease.epoch),
            )
            if result.rowcount != 1:
                next_idx = leases.checked_next_slot(connection, lease)
                raise LedgerError(
                    f"slot {schedule_idx} of run {lease.run_id} cannot be committed: "
                    f"the next one is slot {next_idx}"
                )
            yield connection
