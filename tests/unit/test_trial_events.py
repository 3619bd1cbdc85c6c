"""Events files as agents should not write them: too many events, too broken, too rich."""

from __future__ import annotations

import pytest

from labledger.trial import events
from labledger.trial.events import read_events
from labledger.trial.redact import Redactor

PLAIN = Redactor({})


def test_lines_that_are_no_events() -> None:
    """Blank lines are nothing; all else that is no JSON object is counted."""
    content = b'{"a": 1}\n\n  \r\n[]\n1\nnull\n{"a": 1\n\xff\n{"type": "t"}'
    found, dropped = read_events(content, PLAIN)
    assert [(e.row_seq, e.type, e.body) for e in found] == [
        (0, None, {"a": 1}),
        (1, "t", {"type": "t"}),
    ]
    assert dropped == 5


def test_events_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many events the first are kept and all others counted."""
    monkeypatch.setattr(events, "MAX_EVENTS", 10)
    found, dropped = read_events(b"{}\n" * 100, PLAIN)
    assert (len(found), dropped) == (10, 90)


def test_broken_lines_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many broken lines no more are looked at, as that takes time; they are counted."""
    monkeypatch.setattr(events, "MAX_BROKEN", 10)
    found, dropped = read_events(b"{}\n" + b"{\n" * 10 + b"{}\n{\n", PLAIN)
    assert (len(found), dropped) == (1, 12)


def test_values_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines with more values than there is room for are left out; smaller ones still come in."""
    monkeypatch.setattr(events, "MAX_EVENT_VALUES", 12)
    rich = b'{"a": [' + b"[]," * 20 + b"[]]}\n"
    wordy = b'{"a": "' + b",[{" * 20 + b'"}\n'
    found, dropped = read_events(b'{"n": 1}\n' + rich + wordy + b"{}\n" * 9, PLAIN)
    assert [list(e.body) for e in found] == [["n"], ["a"], [], [], [], []]
    assert dropped == 1 + 5
