"""The result of `labledger query`: a table for a person, or a format for other programs.

Tables are limited to 1,000 rows; other formats are written by the library, row by row. Also parses
the statement and its parameters, and prints the views.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from labledger import InvalidInput, Problem
from labledger.cli.output.console import exact_stdout, out, say, table
from labledger.text import counted

if TYPE_CHECKING:
    from datetime import datetime

    from labledger import Ledger, ViewInfo

_MAX_TABLE_ROWS = 1000


def read_statement(sql: str | None, file: Path | None) -> str:
    """Return the statement, given as an argument or in a file. Raises `InvalidInput`."""
    if (sql is None) == (file is None):
        problem = Problem("query", "give one statement, as an argument or with --file")
        raise InvalidInput("the query", [problem])
    if file is None:
        return sql or ""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput("the query", [Problem(str(file), reason)]) from None


def parse_params(words: list[str]) -> dict[str, Any]:
    """Return the values of `NAME=VALUE` words; a JSON number is a number. Raises `InvalidInput`."""
    params: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            problem = Problem("--param", f"found {word!r}; expected NAME=VALUE")
            raise InvalidInput("the query", [problem])
        try:
            number = json.loads(value)
        except json.JSONDecodeError:
            number = None
        # Other JSON, such as `true` or a list, is taken as text.
        params[name] = number if type(number) in (int, float) else value
    return params


@dataclass(frozen=True, slots=True)
class Query:
    """A statement or a view, the values of its parameters, and the generation or time to show."""

    sql: str
    params: Mapping[str, Any]
    generation: int | None = None
    as_of: datetime | None = None


def write_result(ledger: Ledger, query: Query, form: str, path: Path | None) -> None:
    """Run a query, and print its rows on stdout or write them to a file. Raises `InvalidInput`."""
    if form == "parquet" and path is None:
        problem = Problem("--format", "parquet needs a file: name it with --out FILE")
        raise InvalidInput("the query", [problem])
    if form == "table" and path is None:
        columns, rows = ledger.rows(query.sql, query.params, query.generation, as_of=query.as_of)
        with closing(rows):
            _print_table(columns, rows)
        return
    count = ledger.write_query(
        query.sql,
        exact_stdout() if path is None else path,
        _write_table if form == "table" else form,
        query.params,
        query.generation,
        as_of=query.as_of,
    )
    if path is not None:
        say(f"wrote {counted(count, 'row')} to {path}" if form == "parquet" else f"wrote {path}")


def _write_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: BinaryIO) -> int:
    text = TextIOWrapper(stream, "utf-8", newline="", write_through=True)
    with redirect_stdout(text):
        shown = _print_table(columns, rows)
    text.detach()
    return shown


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Print the first rows as a table, and return their number."""
    stream = iter(rows)
    shown = list(islice(stream, _MAX_TABLE_ROWS))
    numeric = [
        name
        for i, name in enumerate(columns)
        if shown and all(isinstance(row[i], int | float | None) for row in shown)
    ]
    table(columns, shown, right=numeric)
    if next(stream, None) is not None:
        say(f"only {_MAX_TABLE_ROWS} rows are shown; --format csv or jsonl prints all")
    return len(shown)


def print_schema(views: Sequence[ViewInfo], view_name: str | None = None) -> None:
    """Print each view, or the named one, with its columns and their meanings.

    Raises `InvalidInput`.
    """
    names = [view.name for view in views]
    if view_name is not None and view_name not in names:
        message = f"there is no view {view_name!r}; the views are {', '.join(names)}"
        raise InvalidInput("the query", [Problem("--schema", message)])
    for view in views:
        if view_name in (None, view.name):
            out(f"{view.name}: {view.comment}")
            width = max(map(len, view.columns))
            for column, meaning in zip(view.columns, view.meanings, strict=True):
                out(f"    {column.ljust(width)}  {meaning}")
