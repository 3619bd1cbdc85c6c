"""The rows of a query as text: CSV, a JSON array, or JSON lines.

In: column names and rows, as a query streams them. Out: pieces of text, one row at a time. Bytes
become hex. In JSON, characters that a terminal would interpret are written as escapes, so that the
values are the same. Used by the library's `Ledger.write_query`.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from labledger.errors import InvalidInput, Parameter, Problem, QueryFailed
from labledger.ledger.query import require_names
from labledger.text.terminal_text import escape_json

Rows = Iterable[Sequence[Any]]

RowWriter = Callable[[Sequence[str], Rows, BinaryIO], int]
"""Writes column names and rows to a binary stream, and returns the number of rows."""


def text_writer(form: str) -> RowWriter:
    """Return the writer of a format. Raises `InvalidInput` if there is none.

    A writer of JSON raises `QueryFailed` for what JSON cannot hold: two columns of one name, or an
    infinite number.
    """
    if form not in _FORMATS:
        expected = ", ".join(("table", *_FORMATS, "parquet"))
        message = f"found {form!r}; expected one of {expected}"
        raise InvalidInput("the query", [Problem(Parameter("format"), message)])

    def write(columns: Sequence[str], rows: Rows, stream: BinaryIO) -> int:
        counter = itertools.count()
        # `zip` reads the next row before it increments the counter, so that the counter ends at the
        # number of rows.
        counted = (row for row, _ in zip(rows, counter, strict=False))
        stream.writelines(text.encode() for text in _FORMATS[form](columns, counted))
        return next(counter)

    return write


def _csv(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    writer = csv.writer(_ReturningFile(), lineterminator="\n")
    yield writer.writerow(columns)
    for row in rows:
        yield writer.writerow(_with_hex(row))


class _ReturningFile:
    """A file whose `write` returns its text, which `csv` passes on to its caller."""

    def write(self, text: str) -> str:
        return text


def _json_lines(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    for value in _objects(columns, rows):
        yield escape_json(json.dumps(value, ensure_ascii=False)) + "\n"


def _json_array(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    """Yield the text that `json.dumps` of the whole array, with an indent of 2, would return."""
    separator = "["
    for value in _objects(columns, rows):
        text = json.dumps([value], indent=2, ensure_ascii=False)
        yield separator + escape_json(text.removeprefix("[").removesuffix("\n]"))
        separator = ","
    yield "[]\n" if separator == "[" else "\n]\n"


def _objects(columns: Sequence[str], rows: Rows) -> Iterator[dict[str, Any]]:
    require_names(columns)
    for row in rows:
        named = dict(zip(columns, _with_hex(row), strict=True))
        for name, value in named.items():
            if isinstance(value, float) and math.isinf(value):
                raise QueryFailed(
                    f"the query returned {value} in the column {name}, and JSON has no such number",
                    hint="ask for CSV, or cast it to text",
                )
        yield named


def _with_hex(row: Sequence[Any]) -> list[Any]:
    """Return values that JSON and CSV can hold: bytes as hex."""
    return [value.hex() if isinstance(value, bytes) else value for value in row]


_FORMATS = {"json": _json_array, "jsonl": _json_lines, "csv": _csv}
"""The function that makes the text of rows, in pieces, by format."""
