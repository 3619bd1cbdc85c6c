"""Events files as agents should not write them: too many events, too broken, too rich."""

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
    found = trial_outputs.read_events(io.BytesIO(content), len(content), redactor, place)
    return found.events, found.dropped


def test_lines_that_are_no_events() -> None:
    """Blank lines are nothing; all else that is no JSON object is counted."""
    content = b'{"a": 1}\n\n  \r\n[]\n1\nnull\n{"a": 1\n\xff\n{"type": "t"}'
    found, dropped = read_events(content)
    assert [(e.row_seq, e.type, e.body) for e in found] == [
        (0, None, {"a": 1}),
        (1, "t", {"type": "t"}),
    ]
    assert dropped == 5


def test_events_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many events the first are kept and all others counted."""
    monkeypatch.setattr(trial_outputs, "MAX_EVENTS", 10)
    found, dropped = read_events(b"{}\n" * 100)
    assert (len(found), dropped) == (10, 90)


def test_broken_lines_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many broken lines the others are counted and not parsed."""
    monkeypatch.setattr(trial_outputs, "MAX_INVALID_LINES", 10)
    found, dropped = read_events(b"{}\n" + b"{\n" * 10 + b"{}\n{\n")
    assert (len(found), dropped) == (1, 12)


def test_values_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines with more values than there is room for are left out; smaller ones still come in."""
    monkeypatch.setattr(trial_outputs, "MAX_EVENT_VALUES", 12)
    rich = b'{"a": [' + b"[]," * 20 + b"[]]}\n"
    wordy = b'{"a": "' + b",[{" * 20 + b'"}\n'
    found, dropped = read_events(b'{"n": 1}\n' + rich + wordy + b"{}\n" * 9)
    assert [list(e.body) for e in found] == [["n"], ["a"], [], [], [], []]
    assert dropped == 1 + 5


def test_many_events_are_held_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events beyond what is held in memory are the same ones, in a file that can be read again."""
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
    """Its event is kept with null, and the first such values are named with their lines."""
    content = b'{"n": 1}\n\n{"n": 1, "loss": NaN}\n{"n": 1, "text": "\\ud83d"}\n'
    found = trial_outputs.read_events(io.BytesIO(content), 10_000, Redactor({}), NOWHERE)
    assert isinstance(found.events, tuple)
    assert [event.body["n"] for event in found.events] == [1, 1, 1]
    assert found.dropped == 0
    text = trial_outputs.unstorable_text(found.unstorable, Redactor({}))
    assert text.startswith("2 values are stored as null: line 3: /loss is NaN, line 4: /text is")


def test_names_of_values_that_cannot_be_stored_hold_no_secret() -> None:
    """A key that is a secret is redacted, and so is one that is too long to be named."""
    secret = "hush-hush-hush"
    lines = [b'{"hush-hush-hush": NaN}', b'{"' + b"x" * 500 + b'": NaN}', *[b'{"a": NaN}'] * 9]
    content = b"\n".join(lines)
    redactor = Redactor({"KEY": secret})
    found = trial_outputs.read_events(io.BytesIO(content), len(content), redactor, NOWHERE)
    text = trial_outputs.unstorable_text(found.unstorable, redactor)
    assert secret not in text
    assert "one with a long name" in text
    assert text.endswith("and 6 more")
    assert len(text) < 500
