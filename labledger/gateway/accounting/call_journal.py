"""The journal of an attempt's calls: a file of lines, which outlives the gateway.

Lines that are not durable stay in memory. After a failed sync, the kernel may have dropped them, so
the gateway writes them again at the same place until that succeeds. Calls wait for their lines, at
most for the patience.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from labledger.clock import utc_now
from labledger.errors import LabLedgerError, MalformedJson
from labledger.files.durable_files import make_folder, sync_folder
from labledger.records import JsonObject, canonical_json
from labledger.records.model_calls import (
    CallFault,
    CallJournal,
    CallState,
    ModelCall,
    asked_line,
    ended_line,
    judged_line,
    opened_line,
    read_journal,
)

PATIENCE_S = 120.0
"""How long a call waits for a journal that cannot be written, in seconds."""
_CLOSING_S = 10.0
"""The same while the attempt is being closed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_MAX_UNWRITTEN = 8 << 20
"""The most bytes of lines that stay in memory while they cannot be written."""
_MAX_RAW_USAGE = 16 << 10
"""The most bytes of the provider's own usage report that are kept."""


class JournalBroken(LabLedgerError):
    """A journal of calls, or something beside it, could not be written for too long."""


class Journal:
    """The open journal of an attempt's calls. Two processes must not open it at once.

    After a crash, the journal continues at its end. A torn last line is removed, and the numbers of
    calls continue.
    """

    def __init__(self, path: Path, descriptor: int, held: CallJournal, patience_s: float) -> None:
        self._path, self._descriptor, self._patience_s = path, descriptor, patience_s
        self._calls = {call.call: call for call in held.calls}
        self._judged = set(held.judged)
        self._durable = os.fstat(descriptor).st_size
        """How many bytes of the file are durable."""
        self._unsynced = bytearray()
        """The lines that are not durable yet."""
        self._failures = 0
        self._must_rewrite = False
        """Whether the unsynced lines may be missing in the file."""
        self._writing: asyncio.Task[None] | None = None
        self._thread: asyncio.Future[None] | None = None
        self._waiters = 0
        self.trouble: str | None = None
        """Why the journal cannot be written now; None if it can."""
        self.held_back: Callable[[bool], object] = lambda _: None
        """Called with True when calls begin to wait for a broken journal, and then with False."""

    @classmethod
    def open(cls, path: Path, patience_s: float = PATIENCE_S) -> Journal:
        """Open a journal, or begin one, and read its calls.

        Raises `OSError`, and `ValueError` if the file is not a journal.
        """
        held = read_journal(path)
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _remove_torn_line(descriptor)
            journal = cls(path, descriptor, held, patience_s)
            if journal._durable == 0:
                line = _line(opened_line(utc_now()))
                _write_at(descriptor, line, 0)
                os.fsync(descriptor)
                sync_folder(path.parent)
                journal._durable = len(line)
        except BaseException:
            os.close(descriptor)
            raise
        return journal

    @property
    def calls(self) -> list[ModelCall]:
        """All calls in order. Calls in progress are unknown."""
        return [self._calls[number] for number in sorted(self._calls)]

    def is_judged(self, number: int) -> bool:
        """Return whether the gateway has judged whose fault a failed call was."""
        return number in self._judged

    def judge(self, number: int, fault: CallFault | None, *, needless: bool) -> None:
        """Write whose fault a failed call was. `sync` makes it durable. Raises `JournalBroken`.

        The call was `needless` if only other models ever answered the agents of the variant.
        """
        self._write(judged_line(number, fault, needless=needless))
        self._calls[number] = replace(self._calls[number], fault=fault)
        self._judged.add(number)

    def ask(self, call: ModelCall) -> ModelCall:
        """Write that a call has begun, and return it with its number. Raises `JournalBroken`."""
        call = replace(call, call=max(self._calls, default=0) + 1, state=CallState.UNKNOWN)
        self._write(asked_line(call))
        self._calls[call.call] = call
        return call

    def end(self, call: ModelCall) -> None:
        """Write how a call ended. `sync` makes the line durable. Raises `JournalBroken`.

        Raw usage is kept only if canonical JSON can hold it.
        """
        if self._calls[call.call].state is not CallState.UNKNOWN:
            raise ValueError(f"call {call.call} has ended before")
        words: dict[str, Any] = {name: _without_half_pairs(getattr(call, name)) for name in _WORDS}
        kept = call.raw_usage if _can_be_kept(call.raw_usage) else None
        call = replace(call, raw_usage=kept, **words)
        self._write(ended_line(call))
        self._calls[call.call] = call

    def _write(self, row: JsonObject) -> None:
        """Write a line. Unless the write fails, the line outlives this process."""
        line = _line(row)
        if len(self._unsynced) + len(line) > _MAX_UNWRITTEN:
            raise self._broken()
        if not self._must_rewrite:
            try:
                _write_at(self._descriptor, line, self._durable + len(self._unsynced))
            except OSError as error:
                self._fail(error)
        self._unsynced += line

    async def sync(self) -> None:
        """Return when all written lines are durable. Raises `JournalBroken`."""
        wanted = self._durable + len(self._unsynced)
        with self._waiting():
            try:
                async with asyncio.timeout(self._patience_s):
                    while self._durable < wanted:
                        if self._writing is None:
                            self._writing = asyncio.ensure_future(self._make_durable())
                        # The work continues if this task is cancelled.
                        await asyncio.shield(self._writing)
            except TimeoutError:
                raise self._broken() from None

    async def _make_durable(self) -> None:
        """Make all written lines durable. Retry until that succeeds."""
        try:
            pause_s = _FIRST_PAUSE_S
            while True:
                if not await self._try_to_sync():
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                elif not self._must_rewrite:
                    return
        finally:
            self._writing = None

    async def _try_to_sync(self) -> bool:
        data, failures, loop = bytes(self._unsynced), self._failures, asyncio.get_running_loop()
        self._thread = loop.run_in_executor(None, self._sync, data, self._must_rewrite)
        try:
            await asyncio.shield(self._thread)
        except OSError as error:
            self._fail(error)
            return False
        self._durable += len(data)
        del self._unsynced[: len(data)]
        # Later lines were written at once only if nothing had failed before.
        if failures == self._failures and not (self._must_rewrite and self._unsynced):
            self._must_rewrite = False
            self._set_trouble(None)
        return True

    def _sync(self, data: bytes, rewrite: bool) -> None:
        if rewrite:
            _write_at(self._descriptor, data, self._durable)
        os.fdatasync(self._descriptor)

    def _fail(self, error: OSError) -> None:
        """Note that lines may be missing in the file, because a failed sync can drop them."""
        self._failures += 1
        self._must_rewrite = True
        self._set_trouble(f"could not write {self._path}: {error.strerror}")

    async def persist(self, path: Path, write: Callable[[], None]) -> None:
        """Write a file beside the journal. Retry until the patience ends.

        `write` raises `OSError` on failure. Raises `JournalBroken`.
        """
        pause_s, give_up = _FIRST_PAUSE_S, time.monotonic() + self._patience_s
        with self._waiting():
            while True:
                try:
                    await asyncio.get_running_loop().run_in_executor(None, write)
                except OSError as error:
                    self._set_trouble(f"could not write {path}: {error.strerror}")
                    if time.monotonic() > give_up:
                        raise self._broken() from error
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                else:
                    if not self._must_rewrite:
                        self._set_trouble(None)
                    return

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waiters += 1
        self._say_held_back()
        try:
            yield
        finally:
            self._waiters -= 1
            self._say_held_back()

    def _set_trouble(self, trouble: str | None) -> None:
        self.trouble = trouble
        self._say_held_back()

    def _say_held_back(self) -> None:
        self.held_back(self._waiters > 0 and self.trouble is not None)

    def _broken(self) -> JournalBroken:
        return JournalBroken(self.trouble or f"could not write {self._path} in time")

    async def settle(self) -> None:
        """Make all lines durable within a short time, then stop trying. Raises `JournalBroken`."""
        try:
            async with asyncio.timeout(_CLOSING_S):
                await self.sync()
        except TimeoutError:
            raise self._broken() from None
        finally:
            if self._writing is not None:
                self._writing.cancel()
            if self._thread is not None and not self._thread.done():
                await asyncio.wait({self._thread}, timeout=_CLOSING_S)

    def close(self) -> None:
        """Try once to make all lines durable, and close the journal. Raises `JournalBroken`."""
        if self._thread is not None and not self._thread.done():
            # The thread may still write, so its file stays open.
            raise self._broken()
        try:
            if self._unsynced:
                self._sync(bytes(self._unsynced), self._must_rewrite)
        except OSError as error:
            self._fail(error)
            raise self._broken() from error
        finally:
            os.close(self._descriptor)


def _line(row: JsonObject) -> bytes:
    return (json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n").encode()


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write `data` at an offset of a file, completely. Raises `OSError`."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], offset + written)


_WORDS = (
    *("model_served", "request_id", "detail", "effort", "service_tier", "price_condition"),
    "cost_unknown",
)
"""Fields with text from the agent or the provider."""


def _can_be_kept(raw_usage: JsonObject | None) -> bool:
    try:
        text = canonical_json.dump_bytes(raw_usage)
        canonical_json.loads(text)
    except (ValueError, RecursionError, MalformedJson):
        return False
    return len(text) <= _MAX_RAW_USAGE


def _without_half_pairs(name: str | None) -> str | None:
    """Return a name with each half surrogate pair replaced, because UTF-8 cannot hold it."""
    return name and name.encode("utf-8", "replace").decode()


def _remove_torn_line(descriptor: int) -> None:
    """Cut a file after its last whole line."""
    size = end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - 4096)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
