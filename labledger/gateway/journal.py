"""The journal of one attempt's calls, as the gateway writes it.

The end of a call is on the disk before the attempt's next call is admitted, and before the agent
gets the last bytes of its answer. After a crash the journal goes on where it ends: a torn last
line is removed, and numbers go on. A journal that could not be written takes no more calls.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

from labledger.clock import utc_now
from labledger.errors import LabLedgerError, MalformedJson
from labledger.files.durable_files import make_folder, sync_folder
from labledger.records import JsonObject, canonical_json
from labledger.records.model_calls import (
    CallState,
    ModelCall,
    asked_line,
    ended_line,
    opened_line,
    read_calls,
)

_MAX_RAW_USAGE = 16 << 10
"""How many bytes of a provider's own words on usage are kept."""


class JournalBroken(LabLedgerError):
    """A journal of calls could not be written."""


class Journal:
    """The open journal of an attempt. Not for two processes at once."""

    def __init__(self, path: Path, descriptor: int, calls: list[ModelCall]) -> None:
        self._path, self._descriptor = path, descriptor
        self._calls = {call.call: call for call in calls}
        self._size = os.fstat(descriptor).st_size
        self._syncing = asyncio.Lock()
        self._unsynced = False
        self.broken: str | None = None
        """Why it can no longer be written."""

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open a journal, or begin one, and read what it holds.

        Raises `OSError`, and `ValueError` if the file is none of a journal's.
        """
        calls = read_calls(path)
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _remove_torn_line(descriptor)
            journal = cls(path, descriptor, calls)
            if journal._size == 0:
                journal._write(opened_line(utc_now()))
                os.fsync(descriptor)
                sync_folder(path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return journal

    @property
    def calls(self) -> list[ModelCall]:
        """All calls in their order; those under way are unknown."""
        return [self._calls[number] for number in sorted(self._calls)]

    def ask(self, call: ModelCall) -> ModelCall:
        """Write that a call has begun, and return it with its number. Raises `JournalBroken`."""
        call = replace(call, call=max(self._calls, default=0) + 1, state=CallState.UNKNOWN)
        self._write(asked_line(call))
        self._calls[call.call] = call
        return call

    def end(self, call: ModelCall) -> None:
        """Write how a call ended; `sync` makes it durable. Raises `JournalBroken`.

        Of a provider's own words, only what canonical JSON can hold is kept.
        """
        if self._calls[call.call].state is not CallState.UNKNOWN:
            raise ValueError(f"call {call.call} has ended before")
        call = replace(
            call,
            raw_usage=call.raw_usage if _can_be_kept(call.raw_usage) else None,
            model_served=_without_half_pairs(call.model_served),
            request_id=_without_half_pairs(call.request_id),
        )
        self._write(ended_line(call))
        self._calls[call.call] = call

    async def sync(self) -> None:
        """Return when all that was written is durable. Raises `JournalBroken`."""
        async with self._syncing:
            if not self._unsynced:
                return
            self._unsynced = False
            # The thread goes on if this task is cancelled; the next one waits for the lock only.
            task = asyncio.get_running_loop().run_in_executor(None, self._sync_file)
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                self._unsynced = True
                raise

    def _sync_file(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._break(error) from error

    def _write(self, row: JsonObject) -> None:
        if self.broken is not None:
            raise JournalBroken(self.broken)
        line = (json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n").encode()
        try:
            written = os.pwrite(self._descriptor, line, self._size)
            if written != len(line):
                os.ftruncate(self._descriptor, self._size)
                raise OSError(28, os.strerror(28))
        except OSError as error:
            raise self._break(error) from error
        self._size += len(line)
        self._unsynced = True

    def _break(self, error: OSError) -> JournalBroken:
        self.broken = f"could not write {self._path}: {error.strerror}"
        return JournalBroken(self.broken)

    def close(self) -> None:
        """Make the journal durable and close it. Raises `JournalBroken`."""
        try:
            if self._unsynced and self.broken is None:
                self._sync_file()
        finally:
            os.close(self._descriptor)


def _can_be_kept(raw_usage: JsonObject | None) -> bool:
    try:
        text = canonical_json.dump_bytes(raw_usage)
        canonical_json.loads(text)
    except (ValueError, RecursionError, MalformedJson):
        return False
    return len(text) <= _MAX_RAW_USAGE


def _without_half_pairs(name: str | None) -> str | None:
    """Return a name in which half of a surrogate pair, which UTF-8 cannot hold, is replaced."""
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
