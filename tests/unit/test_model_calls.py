"""The journal of an attempt's calls to models: how it is read, and which lines are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from labledger.records import JsonObject
from labledger.records.model_calls import (
    CallState,
    ModelCall,
    Usage,
    asked_line,
    ended_line,
    opened_line,
    read_calls,
)

AT = "2026-11-24T18:00:00.000Z"
ASKED = ModelCall(1, AT, "anthropic", "anthropic-messages", "model-a", reserved=Usage(40, output=9))
ENDED = replace(
    ASKED,
    state=CallState.ANSWERED,
    status=200,
    model_served="model-a-1",
    usage=Usage(input=10, cache_write_1h=3, output=7),
    raw_usage={"input_tokens": 10},
    first_byte_ms=5,
    duration_ms=9,
    request_id="req_1",
)


def _journal(folder: Path, *rows: JsonObject, torn: str = "") -> Path:
    path = folder / "calls.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in (opened_line(AT), *rows))
    path.write_text(text + torn, encoding="utf-8")
    return path


def test_calls_are_read_as_they_were_written(tmp_path: Path) -> None:
    """An ended call is read with its usage, and a call without an end as unknown."""
    second = replace(ASKED, call=2)
    path = _journal(tmp_path, asked_line(ASKED), ended_line(ENDED), asked_line(second))
    assert read_calls(path) == [ENDED, second]
    assert second.state is CallState.UNKNOWN
    assert second.usage is None


def test_a_line_that_was_not_written_whole_is_left_out(tmp_path: Path) -> None:
    """A line that a dying gateway left incomplete does not hide the calls before it."""
    torn = json.dumps(ended_line(ENDED))
    assert read_calls(_journal(tmp_path, asked_line(ASKED), torn=torn)) == [ASKED]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([ended_line(ENDED)], "line 2: 'ended' does not fit call 1"),
        ([asked_line(ASKED), asked_line(ASKED)], "line 3: 'asked' does not fit call 1"),
        ([asked_line(ASKED), ended_line(ENDED), ended_line(ENDED)], "line 4: 'ended' does not fit"),
        ([{**asked_line(ASKED), "more": 1}], "line 2: more: ModelCall has no such key"),
        ([{"event": "asked"}], "line 2"),
    ],
)
def test_lines_that_are_none_of_a_journals_are_refused(
    tmp_path: Path, rows: list[JsonObject], words: str
) -> None:
    """A journal with repeated or impossible lines is refused."""
    with pytest.raises(ValueError, match=words):
        read_calls(_journal(tmp_path, *rows))


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    """A journal of a later version is refused."""
    path = tmp_path / "calls.jsonl"
    path.write_text('{"schema_version":"labledger.model_calls.v2"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"model_calls\.v2"):
        read_calls(path)


def test_an_attempt_without_a_journal_has_no_calls(tmp_path: Path) -> None:
    """A trial that asks no model has no journal."""
    assert read_calls(tmp_path / "none.jsonl") == []
