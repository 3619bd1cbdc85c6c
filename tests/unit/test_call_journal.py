"""The journal of an attempt's calls: what is durable when, and how one is taken up again."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from labledger.gateway.calls import Journal, JournalBroken
from labledger.records import canonical_json
from labledger.records.model_calls import CallState, ModelCall, Usage, read_calls

AT = "2026-11-24T18:00:00.000Z"
CALL = ModelCall(0, AT, "anthropic", "anthropic-messages", "model-a", reserved=Usage(9, output=9))


def ended(call: ModelCall) -> ModelCall:
    """The call, answered."""
    return replace(call, state=CallState.ANSWERED, status=200, usage=Usage(1, output=2))


def test_calls_are_read_back_as_they_ended(tmp_path: Path) -> None:
    """What is read of a journal is what was written, and a call under way is unknown."""
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
    """Whatever a provider says, the journal is written and its calls can be committed."""
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
    """What a killed gateway had half written is cut off, and numbers go on after those there."""
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


def test_a_full_disk_ends_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that could not be written whole is cut back and takes no more calls."""
    path = tmp_path / "calls.jsonl"
    journal = Journal.open(path)
    call = journal.ask(CALL)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:9], at))
    with pytest.raises(JournalBroken, match="No space left"):
        journal.end(ended(call))
    monkeypatch.setattr(os, "pwrite", real)
    with pytest.raises(JournalBroken):
        journal.ask(CALL)
    journal.close()
    assert [c.state for c in read_calls(path)] == [CallState.UNKNOWN]


def test_a_disk_that_does_not_keep_data_ends_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync nothing is known of what is on the disk, so no call is admitted."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def write() -> None:
        journal = Journal.open(tmp_path / "calls.jsonl")
        journal.end(ended(journal.ask(CALL)))
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(JournalBroken, match="Input/output error"):
            await journal.sync()
        with pytest.raises(JournalBroken):
            journal.ask(CALL)

    asyncio.run(write())


def test_a_link_is_no_journal(tmp_path: Path) -> None:
    """A journal is never written through a link."""
    (tmp_path / "calls.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels"):
        Journal.open(tmp_path / "calls.jsonl")
    assert not (tmp_path / "elsewhere").exists()
