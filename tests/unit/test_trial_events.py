"""Events files with too many, broken or oversized events."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from labledger.records import canonical_json
from labledger.records.attempt_result import Event, EventFile
from labledger.trial.evidence import trial_outputs
from labledger.trial.evidence.redaction import Redactor

NOWHERE = EventFile("events.jsonl", 0, folder=Path("/nonexistent"))


def read_events(
    content: bytes, place: EventFile = NOWHERE, redactor: Redactor | None = None
) -> tuple[tuple[Event, ...] | EventFile, int]:
    redactor = redactor or Redactor({})
    events = trial_outputs.read_events(io.BytesIO(content), len(content), redactor, place)
    return events.events, events.dropped


def test_lines_that_are_no_events() -> None:
    """Blank lines are ignored, and other lines that are not JSON objects are counted."""
    content = b'{"a": 1}\n\n  \r\n[]\n1\nnull\n{"a": 1\n\xff\n{"type": "t"}'
    events, dropped = read_events(content)
    assert [(e.row_seq, e.type, e.body) for e in events] == [
        (0, None, {"a": 1}),
        (1, "t", {"type": "t"}),
    ]
    assert dropped == 5


def test_events_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first events up to the limit are kept, and the others counted."""
    monkeypatch.setattr(trial_outputs, "MAX_EVENTS", 10)
    events, dropped = read_events(b"{}\n" * 100)
    assert (len(events), dropped) == (10, 90)


def test_broken_lines_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit of broken lines, others are counted without parsing."""
    monkeypatch.setattr(trial_outputs, "MAX_INVALID_LINES", 10)
    events, dropped = read_events(b"{}\n" + b"{\n" * 10 + b"{}\n{\n")
    assert (len(events), dropped) == (1, 12)


def test_values_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines with too many values are left out, and smaller ones are still read."""
    monkeypatch.setattr(trial_outputs, "MAX_EVENT_VALUES", 12)
    rich = b'{"a": [' + b"[]," * 20 + b"[]]}\n"
    wordy = b'{"a": "' + b",[{" * 20 + b'"}\n'
    events, dropped = read_events(b'{"n": 1}\n' + rich + wordy + b"{}\n" * 9)
    assert [list(e.body) for e in events] == [["n"], ["a"], [], [], [], []]
    assert dropped == 1 + 5


def test_many_events_are_held_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events beyond the memory limit are in a file that can be read again, unchanged."""
    lines = [{"type": "t", "n": n, "text": "é\u2028\n\x85 hush-hush"} for n in range(50)]
    content = b"".join(canonical_json.dump_bytes(line) + b"\nno event\n" for line in lines)
    held, dropped = read_events(content, redactor=Redactor({"KEY": "hush-hush"}))
    assert isinstance(held, tuple)
    monkeypatch.setattr(trial_outputs, "MAX_BYTES_IN_MEMORY", 1000)
    place = EventFile("run/000007-1.jsonl", 0, folder=tmp_path)
    spooled, dropped_then = read_events(content, place, Redactor({"KEY": "hush-hush"}))
    assert isinstance(spooled, EventFile)
    assert spooled.sha256 == canonical_json.sha256_hex(spooled.path.read_bytes())
    assert (tuple(spooled), len(spooled), dropped_then) == (held, 50, dropped)
    assert tuple(spooled) == held, "it could be read once only"
    assert list(spooled.bodies()) == [canonical_json.dumps(event.body) for event in held]
    assert b"hush-hush" not in spooled.path.read_bytes()


def test_a_value_that_cannot_be_stored_loses_no_event() -> None:
    """An event with an unstorable value has null there, and the first ones are named by line."""
    content = b'{"n": 1}\n\n{"n": 1, "loss": NaN}\n{"n": 1, "text": "\\ud83d"}\n'
    events = trial_outputs.read_events(io.BytesIO(content), 10_000, Redactor({}), NOWHERE)
    assert isinstance(events.events, tuple)
    assert [event.body["n"] for event in events.events] == [1, 1, 1]
    assert events.dropped == 0
    text = trial_outputs.unstorable_text(events.unstorable, Redactor({}))
    assert text.startswith("2 values are stored as null: line 3: /loss is NaN, line 4: /text is")


def test_names_of_values_that_cannot_be_stored_hold_no_secret() -> None:
    """A secret key is redacted, and so is a key too long to be named."""
    secret = "hush-hush-hush"
    lines = [b'{"hush-hush-hush": NaN}', b'{"' + b"x" * 500 + b'": NaN}', *[b'{"a": NaN}'] * 9]
    content = b"\n".join(lines)
    redactor = Redactor({"KEY": secret})
    events = trial_outputs.read_events(io.BytesIO(content), len(content), redactor, NOWHERE)
    text = trial_outputs.unstorable_text(events.unstorable, redactor)
    assert secret not in text
    assert "one with a long name" in text
    assert text.endswith("and 6 more")
    assert len(text) < 500
