"""The read-only ledger of the server, opened again when its file is replaced.

A few threads read it in short snapshots, so that a viewer neither blocks a commit nor prevents
SQLite from emptying the write-ahead log. The threads end with the process: Ctrl-C waits for no
query.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from labledger.api.ledger import Ledger
from labledger.errors import LedgerError, QueryFailed, RunNotFound, SlotNotFound
from labledger.files.lab_folder import LabFolder
from labledger.ledger.database.run_info import Graded, RunInfo
from labledger.ledger.database.sqlite import DRIVER, FileIdentity, file_identities
from labledger.ledger.reader import LedgerReader
from labledger.view.caches import KeptValues

if TYPE_CHECKING:
    from labledger.view.live_outputs import LiveOutputs

_T = TypeVar("_T")
_MAX_WAITING = 256
"""The limit of requests that wait for a thread; further ones are refused."""
_ABOUT_ITS_CONTENT = (RunNotFound, SlotNotFound, QueryFailed)


class TooBusy(Exception):
    """More requests wait than the server accepts."""


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """The inputs from which a screen makes its document."""

    lab: LabFolder
    ledger: Ledger
    reader: LedgerReader
    kept: KeptValues
    """Expensive values computed from this ledger."""
    live: LiveOutputs


class OpenedLedger:
    """The ledger of a lab, opened when it is first needed. Thread-safe.

    It is opened again if the file was replaced, or if its tables changed because a newer labledger
    upgraded it.
    """

    def __init__(self, lab: LabFolder, live: LiveOutputs) -> None:
        self.lab = lab
        self._live = live
        self._lock = threading.Lock()
        self._opened: DocumentSource | None = None
        self._identity: FileIdentity = None
        self._driver: Any = None
        """A connection without a transaction, for the version of the schema."""
        self._schema_version: int | None = None
        self.was_opened = False
        """Whether a ledger was ever opened. A lab has none before its first run."""

    def source(self) -> DocumentSource:
        """Return the opened ledger.

        Raises `LedgerMissing`, `LedgerOutdated`, `LedgerTooNew` and `LedgerError`.
        """
        identity = file_identities(self.lab.ledger)[0]
        with self._lock:
            if self._opened is None or identity != self._identity or self._has_other_tables():
                # Requests in progress keep the old ledger until they end.
                self._close()
                ledger = Ledger(self.lab, self.lab.ledger)
                self._opened = DocumentSource(
                    self.lab, ledger, ledger.reader, KeptValues(), self._live
                )
                self._identity, self.was_opened = identity, True
                self._driver = ledger.reader.open_driver()
                self._has_other_tables()
            return self._opened

    def _has_other_tables(self) -> bool:
        before = self._schema_version
        try:
            row = self._driver.execute("PRAGMA schema_version").fetchone()
        except DRIVER.Error:
            return True  # Opening the ledger again raises the right error.
        self._schema_version = int(row[0])
        return before != self._schema_version

    def _close(self) -> None:
        if self._driver is not None:
            self._driver.close()
        self._opened, self._driver = None, None

    def forget(self) -> None:
        """Open the ledger again when it is next needed, because it may have been upgraded."""
        with self._lock:
            self._close()


class Workers:
    """Threads that read the ledger for the event loop."""

    def __init__(self, opened: OpenedLedger, threads: int, max_waiting: int = _MAX_WAITING) -> None:
        self._opened = opened
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(max_waiting)
        for number in range(threads):
            name = f"labledger-view-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    async def read(self, make: Callable[[DocumentSource], _T]) -> _T:
        """Call `make` with the ledger in another thread, and return its result.

        Raises what `make` raises, what opening the ledger raises, and `TooBusy`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def settle(set_result: Callable[..., None], value: object) -> None:
            if not future.done():
                set_result(value)

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = self._make(make)
            except Exception as error:
                self._call(loop, settle, future.set_exception, error)
            except BaseException as error:
                # A bare KeyboardInterrupt would end the event loop and the server.
                wrapped = RuntimeError(f"a request ended with {error!r}")
                wrapped.__cause__ = error
                self._call(loop, settle, future.set_exception, wrapped)
            else:
                self._call(loop, settle, future.set_result, result)

        try:
            self._jobs.put_nowait(work)
        except queue.Full:
            raise TooBusy from None
        return await future

    def _make(self, make: Callable[[DocumentSource], _T]) -> _T:
        try:
            return make(self._opened.source())
        except LedgerError as error:
            if not isinstance(error, _ABOUT_ITS_CONTENT):
                self._opened.forget()
            raise

    @staticmethod
    def _call(loop: asyncio.AbstractEventLoop, *call: object) -> None:
        """Call a function in the event loop, unless that has ended."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(*call)  # type: ignore[arg-type]

    def _work(self) -> None:
        while True:
            self._jobs.get()()


def read_graded_run(reader: LedgerReader, name: str) -> tuple[Graded, RunInfo]:
    """Return the grading that a name means, and the run whose progress the page shows.

    The page of a run that was graded again shows the run's own progress, and the outcomes of its
    current grading. Raises `RunNotFound`.
    """
    graded = reader.graded(name)
    return graded, reader.run(name) if name == graded.root_id else graded.run
