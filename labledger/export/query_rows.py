"""The answer to a query as text: CSV, a JSON array, or JSON lines.

In: column names and rows, as a query streams them. Out: pieces of text, one row at a time. Bytes
become hex. Text that a terminal would interpret is written as JSON escapes, with the same
values. Used by the library's `Ledger.write_query`.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import Any

from labledger.errors import InvalidInput, Problem, QueryFailed
from labledger.ledger.query import require_names
from labledger.text.terminal_text import escape_json

TEXT_FORMATS = ("json", "jsonl", "csv")


def check_format(form: str) -> None:
    """Raise `InvalidInput` unless `form` is one of `TEXT_FORMATS`."""
    if form not in TEXT_FORMATS:
        expected = ", ".join(("table", *TEXT_FORMATS, "parquet"))
        message = f"found {form!r}; expected one of {expected}"
        raise InvalidInput("the query", [Problem("--format", message)])


def rows_as_text(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: str) -> Iterator[str]:
    """Yield the rows as text in one of `TEXT_FORMATS`.

    Raises `QueryFailed` for what JSON cannot hold: two columns of one name, or an infinite number.
    """
    if form == "csv":
        yield from _csv(columns, rows)
        return
    require_names(columns)
    objects = (_as_object(columns, row) for row in rows)
    yield from _json_array(objects) if form == "json" else _json_lines(objects)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    buffer = StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        yield _emptied(buffer)
        writer.writerow(_plain(row))
    yield _emptied(buffer)


def _emptied(buffer: StringIO) -> str:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text


def _json_lines(objects: Iterable[dict[str, Any]]) -> Iterator[str]:
    for value in objects:
        yield escape_json(json.dumps(value, ensure_ascii=False)) + "\n"


def _json_array(objects: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the text that `json.dumps` of the whole array, with an indent of 2, would return."""
    separator = "["
    for value in objects:
        text = json.dumps([value], indent=2, ensure_ascii=False)
        yield separator + escape_json(text.removeprefix("[").removesuffix("\n]"))
        separator = ","
    yield "[]\n" if separator == "[" else "\n]\n"


def _as_object(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    named = dict(zip(columns, _plain(row), strict=True))
    for name, value in named.items():
        if isinstance(value, float) and math.isinf(value):
            raise QueryFailed(
                f"the query returned {value} in the column {name}, and JSON has no such number",
                hint="ask for CSV, or cast it to text",
            )
    return named


def _plain(row: Sequence[Any]) -> list[Any]:
    """Return values that JSON and CSV can hold: bytes as hex."""
    return [value.hex() if isinstance(value, bytes) else value for value in row]
