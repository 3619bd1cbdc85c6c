"""The forms in which `labledger query` answers."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labledger.cli.output.console import out, out_exact, out_json_text, say, table
from labledger.errors import InvalidInput, Problem, QueryFailed
from labledger.ledger.query import require_names
from labledger.storage.durable_files import replace_output
from labledger.text.phrases import counted

if TYPE_CHECKING:
    from labledger.api.ledger import Ledger
    from labledger.ledger.query import ViewInfo

FORMATS = ("table", "json", "jsonl", "csv", "parquet")
_TABLE_ROWS = 1000


def statement(sql: str | None, file: Path | None) -> str:
    """The statement given as a word or in a file. Raises `InvalidInput`."""
    if (sql is None) == (file is None):
        problem = Problem("query", "give one statement, as a word or with --file")
        raise InvalidInput("the query", [problem])
    if file is None:
        return sql or ""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput("the query", [Problem(str(file), reason)]) from None


def parse_params(words: list[str]) -> dict[str, Any]:
    """`NAME=VALUE` words; a value that is a JSON number is one. Raises `InvalidInput`."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            problem = Problem("--param", f"found {word!r}; expected NAME=VALUE")
            raise InvalidInput("the query", [problem])
        try:
            number = json.loads(value)
        except json.JSONDecodeError:
            number = value
        found[name] = number if type(number) in (int, float) else value
    return found


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a statement or a view, the values in it, and of which generation."""

    sql: str
    params: Mapping[str, Any]
    generation: int | None = None


def answer(ledger: Ledger, asked: Question, form: str, path: Path | None) -> None:
    """Ask, and print the answer on stdout or write it to a file. Raises `InvalidInput`."""
    if form == "parquet":
        if path is None:
            problem = Problem("--format", "parquet needs a file: name it with --out FILE")
            raise InvalidInput("the query", [problem])
        count = ledger.parquet(asked.sql, path, asked.params, asked.generation)
        say(f"wrote {counted(count, 'row')} to {path}")
        return
    columns, rows = ledger.rows(asked.sql, asked.params, asked.generation)
    with closing(rows):
        if path is None:
            print_rows(columns, rows, form)
            return
        with replace_output(path) as handle:
            text = TextIOWrapper(handle, "utf-8", newline="", write_through=True)
            with redirect_stdout(text):
                print_rows(columns, rows, form)
            text.detach()
    say(f"wrote {path}")


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: str) -> None:
    """Print the answer on stdout; all but a table is streamed. Raises `QueryFailed`."""
    if form in ("json", "jsonl"):
        require_names(columns)
    match form:
        case "table":
            _print_table(columns, rows)
        case "json":
            _print_json(_named(columns, row) for row in rows)
        case "jsonl":
            for row in rows:
                out_json_text(json.dumps(_named(columns, row), ensure_ascii=False))
        case "csv":
            writer = csv.writer(_ExactStdout(), lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(_plain(row) for row in rows)
        case _:
            problem = Problem("--format", f"found {form!r}; expected one of {', '.join(FORMATS)}")
            raise InvalidInput("the query", [problem])


class _ExactStdout:
    """Where `csv` writes."""

    def write(self, text: str) -> None:
        out_exact(text)


def _print_json(rows: Iterable[dict[str, Any]]) -> None:
    """Print one JSON array, in the layout of `out_json`, holding one row in memory at a time."""
    before = "["
    for row in rows:
        out_json_text(before)
        text = json.dumps([row], indent=2, ensure_ascii=False)
        before = text.removeprefix("[\n").removesuffix("\n]") + ","
    out_json_text("[]" if before == "[" else f"{before.removesuffix(',')}\n]")


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    stream = iter(rows)
    shown = list(islice(stream, _TABLE_ROWS))
    numeric = [
        name
        for i, name in enumerate(columns)
        if shown and all(isinstance(row[i], int | float | None) for row in shown)
    ]
    table(columns, shown, right=numeric)
    if next(stream, None) is not None:
        say(f"only the first {_TABLE_ROWS} rows are shown; --format csv or jsonl prints them all")


def _named(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    named = dict(zip(columns, _plain(row), strict=True))
    for name, value in named.items():
        if isinstance(value, float) and math.isinf(value):
            raise QueryFailed(
                f"the query found {value} in the column {name}, and JSON has no such number",
                hint="ask for CSV, or cast it to text",
            )
    return named


def _plain(row: Sequence[Any]) -> list[Any]:
    """Values that JSON and CSV can hold: bytes as hex."""
    return [value.hex() if isinstance(value, bytes) else value for value in row]


def print_schema(views: Sequence[ViewInfo], only: str | None = None) -> None:
    """Name and purpose of each view, and what its columns mean. Raises `InvalidInput`."""
    names = [view.name for view in views]
    if only is not None and only not in names:
        problem = Problem("--schema", f"there is no view {only!r}; there is {', '.join(names)}")
        raise InvalidInput("the query", [problem])
    for view in views:
        if only in (None, view.name):
            out(f"{view.name}: {view.comment}")
            width = max(map(len, view.columns))
            for column, meaning in zip(view.columns, view.meanings, strict=True):
                out(f"    {column.ljust(width)}  {meaning}")
