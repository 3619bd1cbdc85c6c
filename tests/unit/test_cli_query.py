"""The parameters and output formats of `labledger query`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from labledger import Ledger
from labledger.cli.commands import ledger_queries
from labledger.errors import InvalidInput, QueryFailed


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: str) -> None:
    """Print rows as `labledger query` does."""

    class Answering(Ledger):
        def __init__(self) -> None:
            pass

        def rows(self, *_: Any, **__: Any) -> Any:
            return columns, (row for row in rows)

    ledger_queries.write_result(Answering(), "SELECT", {}, form, None)


COLUMNS = ("task_id", "value", "blob")
ROWS = [('ä, "b"\nc', 1.5, b"\x00\xff"), ("[bold]x[/]", None, None)]


def test_numbers_are_numbers_and_the_rest_is_text() -> None:
    """A parameter has the type of its column, whatever else its text could mean in JSON."""
    params = ledger_queries.parse_params(
        ["a=1", "b=1.5", "c=true", "d=null", 'e="x"', "f=", "g=x=y"]
    )
    assert params == {"a": 1, "b": 1.5, "c": "true", "d": "null", "e": '"x"', "f": "", "g": "x=y"}


@pytest.mark.parametrize("word", ["a", "=1", "1a=2", "a b=c"])
def test_what_is_no_parameter_is_refused(word: str) -> None:
    """A mistyped parameter is named."""
    with pytest.raises(InvalidInput, match="--param"):
        ledger_queries.parse_params([word])


def test_the_statement_is_given_once(tmp_path: Path) -> None:
    """The statement comes from a word or from a file; both and neither are refused."""
    path = tmp_path / "q.sql"
    path.write_text("SELECT 1", "utf-8")
    assert ledger_queries.read_statement("SELECT 2", None) == "SELECT 2"
    assert ledger_queries.read_statement(None, path) == "SELECT 1"
    for sql, file in ((None, None), ("SELECT 2", path), (None, tmp_path / "absent.sql")):
        with pytest.raises(InvalidInput):
            ledger_queries.read_statement(sql, file)


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_what_json_cannot_hold_is_refused(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A repeated column name is refused, and only JSON lines are printed."""
    with pytest.raises(QueryFailed, match="more than one column called verdict") as caught:
        print_rows(("verdict", "verdict"), [("pass", "fail")], form)
    assert "AS" in str(caught.value.hint)
    with pytest.raises(QueryFailed, match="-inf in the column cost"):
        print_rows(("cost",), [(1.0,), (float("-inf"),)], form)
    assert "inf" not in capsys.readouterr().out.lower()


def test_json_lines_and_json_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """`jsonl` and `json` have every value under its column's name, with bytes as hex."""
    print_rows(COLUMNS, ROWS, "jsonl")
    lines = capsys.readouterr().out.splitlines()
    print_rows(COLUMNS, ROWS, "json")
    whole = json.loads(capsys.readouterr().out)
    assert [json.loads(line) for line in lines] == whole
    assert whole[0] == {"task_id": 'ä, "b"\nc', "value": 1.5, "blob": "00ff"}


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_rows_are_printed_as_they_come(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of a long answer are printed one by one, so memory stays flat."""
    printed: list[str] = []

    def rows() -> Iterator[tuple[int]]:
        for number in range(100, 104):
            printed.append(capsys.readouterr().out)
            yield (number,)

    print_rows(("number",), rows(), form)
    printed.append(capsys.readouterr().out)
    assert "100" in "".join(printed[:3])
    if form == "json":
        whole = "".join(printed)
        assert whole == json.dumps([{"number": n} for n in range(100, 104)], indent=2) + "\n"


def test_no_rows_are_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty answer is JSON, too."""
    print_rows(("number",), [], "json")
    assert capsys.readouterr().out == "[]\n"


def test_csv_is_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    """Commas, quotes and line ends survive; null is an empty field."""
    print_rows(COLUMNS, ROWS, "csv")
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows == [list(COLUMNS), ['ä, "b"\nc', "1.5", "00ff"], ["[bold]x[/]", "", ""]]


def test_a_table_shows_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Values are never markup, and off a terminal no row is folded."""
    print_rows(("a", "b"), [("[bold]x[/]", "y" * 300)], "table")
    lines = capsys.readouterr().out.splitlines()
    assert "[bold]x[/]" in lines[2]
    assert "y" * 300 in lines[2]


def test_a_long_table_says_that_it_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """A table stops at a thousand rows and names the formats that do not."""
    print_rows(("n",), ((n,) for n in range(1001)), "table")
    printed = capsys.readouterr()
    assert "999" in printed.out
    assert "1000" not in printed.out
    assert "--format csv" in printed.err


def test_an_unknown_form_names_the_known() -> None:
    """A mistyped --format lists the known formats."""
    with pytest.raises(InvalidInput, match="table, json, jsonl, csv"):
        print_rows(("n",), [(1,)], "xml")
