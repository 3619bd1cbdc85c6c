"""The screen of a query: a SELECT over the documented views, with limits, as a table or CSV."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from labledger import clock
from labledger.errors import LabLedgerError, QueryFailed
from labledger.export.data_frames import text_writer
from labledger.ledger.query import Row, expand_view_name, query
from labledger.records import JsonObject
from labledger.text import counted, format_size
from labledger.view.ledgers import Source
from labledger.view.pages import error_member
from labledger.view.parameters import Parameters

PARAMETERS = ("q",)
FORMATS = ("html", "json", "csv")
_TIME_LIMIT_S = 10.0
_MAX_ROWS, _MAX_BYTES = 1_000, 4 << 20
_MAX_CSV_ROWS, _MAX_CSV_BYTES = 100_000, 32 << 20


def document(source: Source, parameters: Parameters) -> JsonObject:
    """Return the first rows of a query, and the views that can be asked."""
    sql = parameters.text("q")
    views = source.kept.get(("views",), None, source.ledger.views).value
    page: JsonObject = {
        "q": sql or "",
        "columns": [],
        "rows": [],
        "truncated": None,
        "elapsed_s": None,
        "error": None,
        "limits": {"seconds": _TIME_LIMIT_S, "rows": _MAX_ROWS},
        "views": [
            {
                "name": view.name,
                "meaning": view.comment,
                "columns": list(view.columns),
                "meanings": list(view.meanings),
            }
            for view in views
        ],
    }
    if sql is None:
        return page
    began = clock.monotonic()
    try:
        columns, rows, limit = _run(source, sql, _MAX_ROWS, _MAX_BYTES)
    except LabLedgerError as error:
        return page | error_member(error)
    return page | {
        "columns": list(columns),
        "rows": [[_cell(value) for value in row] for row in rows],
        "truncated": limit and f"There are more rows: at most {limit} are shown.",
        "elapsed_s": round(clock.monotonic() - began, 3),
    }


def csv_text(source: Source, parameters: Parameters) -> str:
    """Return the rows of a query as CSV, exact and all. Raises `QueryFailed`."""
    sql = parameters.text("q") or ""
    columns, rows, limit = _run(source, sql, _MAX_CSV_ROWS, _MAX_CSV_BYTES)
    if limit is not None:
        raise QueryFailed(
            f"the query has more rows than fit in a download: at most {limit}",
            hint="`labledger query --format csv` writes all of them",
        )
    text = io.BytesIO()
    text_writer("csv")(columns, iter(rows), text)
    return text.getvalue().decode()


def _run(
    source: Source, sql: str, max_rows: int, max_bytes: int
) -> tuple[Sequence[str], list[Row], str | None]:
    """Return columns, rows, and the limit that was reached if there are more rows."""
    columns, rows = query(
        source.reader.path, expand_view_name(sql), views_only=True, time_limit_s=_TIME_LIMIT_S
    )
    shown: list[Row] = []
    size = 0
    with closing(rows):
        for row in rows:
            size += sum(map(_size, row))
            if len(shown) == max_rows or (shown and size > max_bytes):
                is_long = len(shown) == max_rows
                return (
                    columns,
                    shown,
                    counted(max_rows, "row") if is_long else format_size(max_bytes),
                )
            shown.append(row)
    return columns, shown, None


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 8


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{counted(len(value), 'byte')}>"
    if isinstance(value, int) and abs(value) > 2**53:
        return str(value)  # JavaScript would round it.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it.
    return value
