"""The screen of a query: a SELECT over the documented views, with limits, as a table or CSV.

Another process runs the query, so that it can be killed at any time.
"""

from __future__ import annotations

from labledger import clock
from labledger.errors import LabLedgerError
from labledger.records import JsonObject
from labledger.view.ledgers import DocumentSource
from labledger.view.pages import error_member
from labledger.view.parameters import Parameters
from labledger.view.query_process import QueryAnswer, Question, ask

PARAMETERS = ("q",)
FORMATS = ("html", "json", "csv")
_TIME_LIMIT_S = 10.0
_MAX_ROWS, _MAX_BYTES = 1_000, 4 << 20
_MAX_CSV_ROWS, _MAX_CSV_BYTES = 100_000, 32 << 20


def document(source: DocumentSource, parameters: Parameters) -> JsonObject:
    """Return the first rows of a query, and the views that queries can use."""
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
        head = _ask(source, sql, "json", _MAX_ROWS, _MAX_BYTES).head
    except LabLedgerError as error:
        return page | error_member(error)
    return page | {
        "columns": head["columns"],
        "rows": head["rows"],
        "truncated": head["limit"] and f"There are more rows; only {head['limit']} are shown.",
        "elapsed_s": round(clock.monotonic() - began, 3),
    }


def csv_text(source: DocumentSource, parameters: Parameters) -> bytes:
    """Return all rows of a query as exact CSV. Raises `QueryFailed` and `LedgerError`."""
    sql = parameters.text("q") or ""
    return _ask(source, sql, "csv", _MAX_CSV_ROWS, _MAX_CSV_BYTES).text


def is_query(parameters: Parameters) -> bool:
    """Return whether the page has a query to run."""
    return parameters.text("q") is not None


def _ask(source: DocumentSource, sql: str, form: str, max_rows: int, max_bytes: int) -> QueryAnswer:
    path = str(source.reader.path.absolute())
    return ask(Question(path, sql, form, max_rows, max_bytes, _TIME_LIMIT_S))
