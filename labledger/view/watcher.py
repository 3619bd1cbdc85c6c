"""Notices commits, and notifies open pages with server-sent events.

While a page is open, one task asks SQLite ten times a second whether another connection has written
(`PRAGMA data_version`), and then reads the progress of the runs. A slow page skips intermediate
states of a run and gets the newest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web

from labledger import clock
from labledger.errors import LabLedgerError, RunNotFound
from labledger.ledger.database.sqlite import translated
from labledger.ledger.reading.progress_rows import ProgressRow
from labledger.records import JsonObject
from labledger.records.outcomes import RunStatus
from labledger.text.escaping import escape_values
from labledger.view.access import HEADERS, PageRefused
from labledger.view.ledgers import DocumentSource, TooBusy, Workers
from labledger.view.parameters import Parameters

_log = logging.getLogger("labledger.view")
_REGRADING = re.compile(r"(.+)\.g[1-9][0-9]*")
"""The id of a regrading, with the id of its run."""
_POLL_S = 0.1
_AFTER_CHANGE_S = 0.5
"""How long the watcher waits after a change, to report further changes together."""
_OWNER_S = 2.0
"""How often the watcher checks which coordinators are alive. A killed one writes nothing."""
PARAMETERS = ("run",)
_MAX_STREAMS = 100
_ALIVE_S = 15.0
"""Seconds without an event after which `alive` is sent, so that pages notice a dead tunnel."""
_RETRY_MS = 1000


class Listener:
    """The events that wait for one open page."""

    def __init__(self, run_ids: frozenset[str] | None) -> None:
        self._run_ids = run_ids
        self._commits: dict[str, JsonObject] = {}
        self._states: dict[str, None] = {}
        self._ledger: JsonObject | None = None
        self._has_events = asyncio.Event()

    def commit(self, row: ProgressRow) -> None:
        """Report the progress of a run."""
        if self.wants(row.run_id):
            self._commits[row.run_id] = {
                "run": row.run_id,
                "upto": row.committed,
                "total": row.total,
                "status": row.status,
            }
            self._has_events.set()

    def state(self, run_id: str) -> None:
        """Report another change of a run."""
        if self.wants(run_id):
            self._states[run_id] = None
            self._has_events.set()

    def ledger(self, trouble: JsonObject) -> None:
        """Report whether the ledger can be read."""
        self._ledger = trouble
        self._has_events.set()

    def wants(self, run_id: str) -> bool:
        """Return whether this listener follows a run."""
        return self._run_ids is None or run_id in self._run_ids

    async def events(self, timeout_s: float) -> list[tuple[str, JsonObject]]:
        """Wait for new events, at most `timeout_s`. Return their names and data."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_events.wait()
        self._has_events.clear()
        events = [("ledger", self._ledger)] if self._ledger is not None else []
        events += [("commit", data) for data in self._commits.values()]
        events += [("state", {"run": run_id}) for run_id in self._states]
        self._commits, self._states, self._ledger = {}, {}, None
        return events


class _DataVersion:
    """A connection that notices writes of other connections. For one thread at a time."""

    def __init__(self) -> None:
        self._source: DocumentSource | None = None
        self._driver: Any = None
        self._version: int | None = None

    def has_changed(self, source: DocumentSource) -> bool:
        """Return whether the ledger was written to, or replaced, since the last call.

        Raises `LedgerError`.
        """
        with translated("follow the ledger", source.reader.path):
            if source is not self._source:
                self.close()
                self._driver = source.reader.open_driver()
                self._source = source
            before = self._version
            (self._version,) = self._driver.execute("PRAGMA data_version").fetchone()
        return before != self._version

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
        self._driver, self._source, self._version = None, None, None


class Watcher:
    """Follows the runs of a ledger for all listeners of a server."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._listeners: set[Listener] = set()
        self.has_listeners = asyncio.Event()
        self._data_version = _DataVersion()
        self.rows: dict[str, ProgressRow] = {}
        self.owned: dict[str, bool] = {}
        self._owners_seen_at = 0.0
        self._problem: JsonObject | None = None
        self._as_of = clock.utc_now()
        self.changes = 0
        """How many changes have been reported so far."""

    @property
    def ledger(self) -> JsonObject:
        """Whether the ledger can be read, and when it was read last."""
        return {"problem": self._problem, "as_of": self._as_of}

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    @contextmanager
    def listening(self, run_ids: frozenset[str] | None) -> Iterator[Listener]:
        """Yield a listener for some runs, or all."""
        listener = Listener(run_ids)
        self._listeners.add(listener)
        self.has_listeners.set()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def watch(self) -> None:
        """Report changes to the listeners until cancelled."""
        while True:
            if not self._listeners:
                self.has_listeners.clear()
                self.rows.clear()  # Pages that open later request the current state themselves.
                await self.has_listeners.wait()
            has_reported = await self._look()
            await asyncio.sleep(_AFTER_CHANGE_S if has_reported else _POLL_S)

    async def _look(self) -> bool:
        """Look for changes once. Return whether any was reported. Raises nothing."""
        try:
            return await self._look_and_tell()
        except TooBusy:
            return False
        except LabLedgerError as error:
            return self._tell_trouble({"message": error.message, "hint": error.hint})
        except Exception:
            message = "the ledger cannot be followed, because of a mistake in labledger"
            has_reported = self._tell_trouble(
                {"message": message, "hint": "stderr has the details"}
            )
            if has_reported:  # Log a lasting failure only once.
                _log.exception("following the ledger failed")
            return has_reported

    async def _look_and_tell(self) -> bool:
        rows, owned = await self._workers.read(partial(self._read, self._runs_to_look_after()))
        self._as_of = clock.utc_now()
        has_reported = self._tell_trouble(None)
        if rows is not None:
            has_reported |= self._tell_progress(rows)
        if owned is not None:
            for run_id, is_owned in owned.items():
                if self.owned.get(run_id, is_owned) is not is_owned:
                    self._tell_state(run_id)
                    has_reported = True
            self.owned = owned
        return has_reported

    def _runs_to_look_after(self) -> Collection[str] | None:
        """Return the followed runs whose owner to check, or None if the check is not due."""
        if clock.monotonic() - self._owners_seen_at < _OWNER_S:
            return None
        self._owners_seen_at = clock.monotonic()
        running = [row.run_id for row in self.rows.values() if row.status == RunStatus.RUNNING]
        return [id_ for id_ in running if any(page.wants(id_) for page in self._listeners)]

    def _read(
        self, run_ids: Collection[str] | None, source: DocumentSource
    ) -> tuple[list[ProgressRow] | None, dict[str, bool] | None]:
        """Return the progress of all runs if it may have changed, and which of `run_ids` are owned.

        Runs in another thread, and therefore uses nothing that the event loop changes.
        """
        try:
            has_changed = self._data_version.has_changed(source) or not self.rows
            rows = source.reader.progress() if has_changed else None
            if run_ids is None:
                return rows, None
            owned = {}
            for run_id in run_ids:
                with suppress(RunNotFound):  # It was deleted in the meantime.
                    owned[run_id] = source.ledger.is_owned(source.reader.run(run_id))
            return rows, owned
        except BaseException:
            self._data_version.close()  # The next look must notice this unreported change.
            raise

    def _tell_progress(self, rows: list[ProgressRow]) -> bool:
        before, self.rows = self.rows, {row.run_id: row for row in rows}
        has_reported = False
        for row in rows:
            earlier = before.get(row.run_id)
            if not before or earlier == row:
                continue  # At the first look, pages already show this state.
            if not has_reported:
                self.changes += 1
            has_reported = True
            if earlier is None or earlier[:4] != row[:4]:
                for listener in self._listeners:
                    listener.commit(row)
            if earlier is None or earlier.fingerprint != row.fingerprint:
                self._tell_state(row.run_id)
        for run_id in before.keys() - self.rows.keys():
            self._tell_state(run_id)
            has_reported = True
        return has_reported

    def _tell_state(self, run_id: str) -> None:
        """Report a change of a run. For a regrading, report its run as well, which may show it."""
        self.changes += 1
        regraded = _REGRADING.fullmatch(run_id)
        for listener in self._listeners:
            listener.state(run_id)
            if regraded is not None:
                listener.state(regraded[1])

    def _tell_trouble(self, problem: JsonObject | None) -> bool:
        if problem == self._problem:
            return False
        self._problem = problem
        self.changes += 1
        for listener in self._listeners:
            listener.ledger(self.ledger)
        return True


class EventStreams:
    """Answers requests for events."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._start = secrets.token_hex(8)
        """A random value by which pages notice that the server was restarted."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send events until the page is closed."""
        if self._watcher.listeners >= _MAX_STREAMS:
            raise PageRefused(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open")
        parameters = Parameters(list(request.query.items()), PARAMETERS)
        run_ids = frozenset(parameters.texts("run")) or None
        response = web.StreamResponse(headers={**HEADERS, "X-Accel-Buffering": "no"})
        response.content_type, response.charset = "text/event-stream", "utf-8"
        # Writing to a closed page ends its stream.
        with self._watcher.listening(run_ids) as listener, suppress(ConnectionResetError):
            await response.prepare(request)
            hello = {"start": self._start, "at": clock.utc_now(), "ledger": self._watcher.ledger}
            await response.write(f"retry: {_RETRY_MS}\n".encode() + _event("hello", hello))
            while True:
                events = await listener.events(_ALIVE_S) or [("alive", {})]
                # This waits for a slow client, which then gets the newest state.
                await response.write(b"".join(_event(name, data) for name, data in events))
        return response


def _event(name: str, data: JsonObject) -> bytes:
    text = json.dumps(escape_values(data), ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode("utf-8", "replace")
