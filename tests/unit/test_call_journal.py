"""The journal of an attempt's calls: when lines are durable, and how a gateway continues one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from labledger.gateway.accounting.call_journal import Journal, JournalBroken
from labledger.records import canonical_json
from labledger.records.model_calls import CallState, ModelCall, Usage, read_calls

AT = "2026-11-24T18:00:00.000Z"
CALL = ModelCall(0, AT, "anthropic", "anthropic-messages", "model-a", reserved=Usage(9, output=9))


def ended(call: ModelCall) -> ModelCall:
    """Return the answered call."""
    return replace(call, state=CallState.ANSWERED, status=200, usage=Usage(1, output=2))


def test_calls_are_read_back_as_they_ended(tmp_path: Path) -> None:
    """Calls are read as they were written, and a call without an end is unknown."""
    path = tmp_path / "models" / "calls.jsonl"

    async def write() -> list[ModelCall]:
        journal = Journal.open(path)
        first, second = journal.ask(CALL), journal.ask(CALL)
        journal.end(ended(second))
        await journal.sync()
        calls = journal.calls
        journal.close()
        assert [c.call for c in calls] == [first.call, second.call] == [1, 2]
        return calls

    calls = asyncio.run(write())
    assert read_calls(path) == calls
    assert [call.state for call in calls] == [CallState.UNKNOWN, CallState.ANSWERED]
    assert calls[0].reserved == Usage(9, output=9)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "usage",
    [{"n": float("nan")}, {"n": 2**64}, {"n": "\ud800"}, {"n": json.loads("[" * 99 + "]" * 99)}],
    ids=["not finite", "64 bits", "half of a pair", "deep"],
)
def test_only_what_the_ledger_can_hold_is_kept(tmp_path: Path, usage: dict[str, object]) -> None:
    """A journal holds only text that the ledger can store, whatever a provider sends."""
    path = tmp_path / "calls.jsonl"
    journal = Journal.open(path)
    call = replace(ended(journal.ask(CALL)), raw_usage=usage, model_served="\udc00m", request_id="")
    journal.end(call)
    journal.end(replace(ended(journal.ask(CALL)), raw_usage={"n": 2**62, "é": [None]}))
    journal.close()
    first, second = read_calls(path)
    assert (first.raw_usage, first.model_served, first.usage) == (None, "?m", call.usage)
    assert second.raw_usage == {"n": 2**62, "é": [None]}
    for kept in (first, second):
        canonical_json.loads(canonical_json.dump_bytes(kept.as_json()))


@pytest.mark.parametrize("torn", [b'{"event":"ended","call":1', b"x" * 9000])
def test_a_journal_is_taken_up_after_its_last_whole_line(tmp_path: Path, torn: bytes) -> None:
    """A half-written line of a killed gateway is cut off, and numbering continues."""
    path = tmp_path / "calls.jsonl"
    journal = Journal.open(path)
    journal.ask(CALL)
    journal.close()
    with path.open("ab") as file:
        file.write(torn)
    again = Journal.open(path)
    again.end(ended(again.ask(CALL)))
    again.close()
    assert [(c.call, c.state) for c in read_calls(path)] == [(1, "unknown"), (2, "answered")]


def test_a_call_ends_once(tmp_path: Path) -> None:
    """A second end of a call is an error of the gateway and is not written."""
    path = tmp_path / "calls.jsonl"
    journal = Journal.open(path)
    call = journal.ask(CALL)
    journal.end(ended(call))
    with pytest.raises(ValueError, match="has ended before"):
        journal.end(ended(call))
    journal.close()
    assert len(read_calls(path)) == 1


def test_names_from_outside_stay_within_their_line(tmp_path: Path) -> None:
    """Line ends and quotes in a model's name, or in what a provider says, add no line."""
    path = tmp_path / "calls.jsonl"
    name = 'm"}\n{"event":"ended","call":1}\r\u2028\x00'
    journal = Journal.open(path)
    call = journal.ask(replace(CALL, model=name))
    journal.end(replace(ended(call), request_id=name, raw_usage={"x": "y" * 20_000}))
    journal.close()
    (read,) = read_calls(path)
    assert (read.model, read.request_id, read.raw_usage) == (name, name, None)
    assert len(path.read_bytes().splitlines()) == 3


class Disk:
    """A disk that fails in one way until it is repaired."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
        self.is_broken, self.fault, self.failures = True, fault, 0
        self._pwrite, self._sync = os.pwrite, os.fdatasync
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def pwrite(self, descriptor: int, data: bytes, at: int) -> int:
        if self.is_broken and self.fault == "full":
            self.failures += 1
            self._pwrite(descriptor, data[:9], at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._pwrite(descriptor, data, at)

    def fdatasync(self, descriptor: int) -> None:
        if self.is_broken and self.fault == "forgetful":
            self.failures += 1
            # Like kernels, it drops written data after a failed sync.
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._sync(descriptor)


@pytest.mark.parametrize("fault", ["full", "forgetful"])
def test_a_disk_that_fails_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A call waits until the disk works again, and then the journal is complete."""
    path = tmp_path / "calls.jsonl"
    held: list[bool] = []

    async def test() -> None:
        journal = Journal.open(path)
        journal.held_back = held.append
        journal.end(ended(journal.ask(CALL)))
        disk = Disk(monkeypatch, fault)
        call = journal.ask(CALL)
        journal.end(ended(call))
        waiting = [asyncio.create_task(journal.sync()) for _ in range(3)]
        while disk.failures < 3:
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        assert journal.trouble is not None
        assert held[-1]
        waiting.pop().cancel()
        late = journal.ask(CALL)
        disk.is_broken = False
        await asyncio.gather(*waiting)
        journal.end(ended(late))
        await journal.sync()
        assert (journal.trouble, held[-1]) == (None, False)
        # Read as after a crash: no data waits to be written.
        assert [c.state for c in read_calls(path)] == [CallState.ANSWERED] * 3
        await journal.settle()
        journal.close()

    asyncio.run(test())


def test_a_line_that_fails_while_others_are_synced_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that began before a failed write does not make the failed line durable."""
    path = tmp_path / "calls.jsonl"

    async def test() -> None:
        journal = Journal.open(path)
        journal.ask(CALL)
        syncing = asyncio.create_task(journal.sync())
        await asyncio.sleep(0)
        disk = Disk(monkeypatch, "full")
        journal.ask(CALL)
        disk.is_broken = False
        await syncing
        await journal.sync()
        assert len(read_calls(path)) == 2
        journal.close()

    asyncio.run(test())


def test_a_line_that_comes_while_others_are_written_again_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that waited because of a failure is in the file when a sync returns."""
    path = tmp_path / "calls.jsonl"

    async def test() -> None:
        journal = Journal.open(path)
        disk = Disk(monkeypatch, "full")
        journal.ask(CALL)
        disk.is_broken = False
        syncing = asyncio.create_task(journal.sync())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        journal.ask(CALL)
        await syncing
        assert journal.trouble is None
        journal.ask(CALL)
        await journal.sync()
        assert len(read_calls(path)) == 3
        journal.close()

    asyncio.run(test())


@pytest.mark.parametrize("fault", ["full", "forgetful"])
def test_a_disk_that_stays_broken_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """After the patience has run out, calls fail with the reason; closing reports lost lines."""
    path = tmp_path / "calls.jsonl"

    async def test() -> None:
        journal = Journal.open(path, patience_s=0.2)
        disk = Disk(monkeypatch, fault)
        journal.ask(CALL)
        for attempt in (journal.sync, journal.settle):
            with pytest.raises(JournalBroken, match=r"No space left|Input/output error"):
                await attempt()
        with pytest.raises(JournalBroken):
            journal.close()
        assert disk.failures > 1

    asyncio.run(test())
    assert len(read_calls(path)) <= 1


def test_lines_that_cannot_be_written_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal in trouble takes no more calls than memory has room for."""
    journal = Journal.open(tmp_path / "calls.jsonl")
    disk = Disk(monkeypatch, "full")
    long = replace(CALL, model="m" * 1_000_000)
    for _ in range(8):
        journal.ask(long)
    with pytest.raises(JournalBroken, match="No space left"):
        journal.ask(long)
    disk.is_broken = False
    journal.close()
    assert len(read_calls(tmp_path / "calls.jsonl")) == 8


def test_a_file_beside_the_journal_is_tried_again(tmp_path: Path) -> None:
    """A file beside the journal waits for the disk, as the journal does."""

    async def test() -> None:
        journal = Journal.open(tmp_path / "calls.jsonl", patience_s=5)
        errors = [OSError(errno.ENOSPC, "full")] * 3

        def write() -> None:
            if errors:
                raise errors.pop()
            (tmp_path / "record").write_text("written")

        await journal.persist(tmp_path / "record", write)
        assert (tmp_path / "record").read_text() == "written"
        assert journal.trouble is None
        journal.close()

    asyncio.run(test())


def test_a_link_is_no_journal(tmp_path: Path) -> None:
    """The journal is never written through a link."""
    (tmp_path / "calls.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels"):
        Journal.open(tmp_path / "calls.jsonl")
    assert not (tmp_path / "elsewhere").exists()
