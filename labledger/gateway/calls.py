"""The calls of one attempt, each reserved, journaled and ended exactly once, and their journal.

A call is written to the journal before the provider is asked, so that a killed gateway leaves it as
unknown. It is durable before the agent gets the first byte: it is written while the provider works.
Its end is durable before the attempt's next call is admitted, and before the agent gets the last
bytes of its answer. Whatever happens to a call, its reservation is released.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from labledger.clock import utc_now
from labledger.errors import LabLedgerError, MalformedJson
from labledger.fault_points import fault_point
from labledger.files.durable_files import make_folder, sync_folder
from labledger.gateway.admission import Target
from labledger.gateway.answers import Progress
from labledger.gateway.caps import Caps, WorstCase
from labledger.gateway.families.family import Refused
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
from labledger.records.model_grants import ProviderConfig

_MAX_REFUSALS = 1000
"""How many refused calls are journaled, so that an agent cannot fill the disk."""
_KEPT_ANSWERS = 64
_UNKNOWN = "unknown"
"""Provider and API of a request whose path names no provider of the grant."""
_MAX_RAW_USAGE = 16 << 10
"""How many bytes of a provider's own words on usage are kept."""


class Calls:
    """The calls of an attempt."""

    def __init__(
        self, journal: Journal, caps: Caps, schedule_idx: int, *, replayed: bool = False
    ) -> None:
        """With `replayed`, a record answers them."""
        self.journal, self._caps, self._schedule_idx = journal, caps, schedule_idx
        self._replayed = replayed
        self._refusals = 0
        self._answered_at: dict[int, float] = {}
        """When the last bytes of answers came, of the newest calls."""
        self.after_end: Callable[[ModelCall, float], None] = lambda _call, _began: None
        """Gets each call that has ended, and when it began, by `time.monotonic`."""
        self.closing = False
        """Whether the attempt is being closed."""
        for call in journal.calls:
            self._count(call)

    def _count(self, call: ModelCall) -> None:
        self._refusals += call.state is CallState.REFUSED
        self._caps.add(call)

    async def begin(self, target: Target, model: str, worst: WorstCase) -> OpenCall:
        """Reserve and journal a call; the provider may be asked when it returns.

        `OpenCall.asked` waits until its entry is durable.

        Raises `CapReached`, and `JournalBroken`.
        """
        started_at, began = utc_now(), time.monotonic()
        await self._caps.reserve(worst)
        try:
            begun = replace(_call(target, model), started_at=started_at, replayed=self._replayed)
            call = self.journal.ask(replace(begun, reserved=worst.usage))
        except BaseException:
            self._caps.release(worst)
            raise
        fault_point("call_asked", self._schedule_idx)
        return OpenCall(self, call, worst, began)

    async def refuse(self, target: Target, model: str, status: int, reason: str) -> None:
        """Journal a call that is not admitted. Raises `JournalBroken`."""
        await self._refuse(_call(target, model), status, reason)

    async def refuse_unplaced(self, provider: ProviderConfig | None, refused: Refused) -> None:
        """Journal a request whose path, query or token is not admitted. Raises `JournalBroken`.

        `provider` is the granted one that its path names, if it names one.
        """
        name, api = (_UNKNOWN, _UNKNOWN) if provider is None else (provider.name, provider.apis[0])
        call = ModelCall(call=0, started_at=utc_now(), provider=name, api=api, model="")
        await self._refuse(call, refused.status, refused.reason)

    async def _refuse(self, call: ModelCall, status: int, reason: str) -> None:
        if self._refusals >= _MAX_REFUSALS:
            return
        call = self.journal.ask(call)
        refused = replace(call, state=CallState.REFUSED, status=status, reason=reason)
        self.journal.end(refused)
        self._count(refused)
        await self.journal.sync()

    def end(self, call: ModelCall, worst: WorstCase) -> None:
        """Journal the end of a call, count it, and release its reservation."""
        fault_point("before_call_ended", self._schedule_idx)
        try:
            self.journal.end(call)
        finally:
            self._caps.release(worst)
            self._count(call)

    def note_answer(self, number: int) -> None:
        """Note that a part of an answer that is no error came for a call."""
        self._answered_at.pop(number, None)
        self._answered_at[number] = time.monotonic()
        if len(self._answered_at) > _KEPT_ANSWERS:
            del self._answered_at[next(iter(self._answered_at))]

    def were_others_answered(self, number: int, since: float) -> bool:
        """Return whether a part of an answer came since a time, but for one call."""
        return any(at >= since for call, at in self._answered_at.items() if call != number)

    async def sync(self) -> None:
        """Make all ends durable. Raises `JournalBroken`."""
        await self.journal.sync()
        fault_point("call_ended", self._schedule_idx)


class OpenCall:
    """A call under way."""

    def __init__(self, calls: Calls, call: ModelCall, worst: WorstCase, began: float) -> None:
        self._calls, self._call, self._worst, self._began = calls, call, worst, began
        self.progress = Progress()
        self._asked = asyncio.ensure_future(calls.journal.sync())
        # Nobody may be left to hear that it failed; the journal then takes no more calls.
        self._asked.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.first_byte_ms: int | None = None
        self.is_answered = False
        """Whether what comes is an answer, and no error."""
        self.has_ended = False

    @property
    def number(self) -> int:
        """Its number in the attempt."""
        return self._call.call

    @property
    def _elapsed_ms(self) -> int:
        return int((time.monotonic() - self._began) * 1000)

    def note_byte(self) -> None:
        """Note that a part of the answer came."""
        if self.first_byte_ms is None:
            self.first_byte_ms = self._elapsed_ms
        if self.is_answered:
            self._calls.note_answer(self.number)

    def end(self, state: CallState, **fields: Any) -> None:
        """Journal how it ended, unless it has ended; `durable` makes that durable.

        Raises `JournalBroken`.
        """
        if self.has_ended:
            return
        self.has_ended = True
        ended = replace(
            self._call,
            state=state,
            first_byte_ms=self.first_byte_ms,
            duration_ms=self._elapsed_ms,
            waited_ms=int(self.progress.waited_s * 1000),
            **fields,
        )
        self._calls.end(ended, self._worst)
        self._calls.after_end(ended, self._began)

    def leave(self, **fields: Any) -> None:
        """Journal that nobody waits for the answer any more, unless the call has ended."""
        if not self.progress.sent:
            self.end(CallState.FAILED, reason="not_sent")
            return
        reason = "attempt_closed" if self._calls.closing else "agent_gone"
        self.end(CallState.CUT, reason=reason, **fields)

    async def asked(self) -> None:
        """Return when it is durable that the provider was asked. Raises `JournalBroken`."""
        await asyncio.shield(self._asked)

    async def durable(self) -> None:
        """Return when the end is durable. Raises `JournalBroken`."""
        await self._calls.sync()


def _call(target: Target, model: str) -> ModelCall:
    return ModelCall(
        call=0,
        started_at=utc_now(),
        provider=target.provider.name,
        api=target.api,
        model=model,
    )


class JournalBroken(LabLedgerError):
    """A journal of calls could not be written."""


class Journal:
    """The open journal of an attempt's calls. Not for two processes at once.

    After a crash it goes on where it ends: a torn last line is removed, and numbers go on. A
    journal that could not be written takes no more calls.
    """

    def __init__(self, path: Path, descriptor: int, held: CallJournal) -> None:
        self._path, self._descriptor = path, descriptor
        self._calls = {call.call: call for call in held.calls}
        self._judged = set(held.judged)
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
        held = read_journal(path)
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _remove_torn_line(descriptor)
            journal = cls(path, descriptor, held)
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

    def is_judged(self, number: int) -> bool:
        """Return whether it was found whose fault a failed call was, or that nothing shows it."""
        return number in self._judged

    def judge(self, number: int, fault: CallFault | None, *, needless: bool) -> None:
        """Write whose fault a failed call was; `sync` makes it durable. Raises `JournalBroken`.

        It was `needless` if only other models ever answered the agents of the variant.
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
            detail=_without_half_pairs(call.detail),
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
