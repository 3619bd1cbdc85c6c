"""Answers one query of the SQL page in a separate process, which can be killed.

SQLite cannot be interrupted inside a slow function such as INSTR. The program prints a line when
ready, reads a `Question` as JSON from stdin, and prints the answer as a line of JSON, followed by
CSV if requested. It ends when stdin is closed.
"""

from __future__ import annotations

import io
import json
import math
import os
import resource
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from labledger.errors import LabLedgerError, QueryFailed
from labledger.export.data_frames import text_writer
from labledger.ledger.query import Row, expand_view_name, query
from labledger.records import JsonObject
from labledger.text.figures import format_size
from labledger.text.words import counted

_MAX_MEMORY = 1 << 30
_MAX_FILE = 4 << 30
"""The maximum size of a temporary file of SQLite, in bytes."""
_MAX_ROW = 64 << 20
"""The maximum size of a row, in bytes."""
_NICENESS = 5


def main() -> None:
    """Answer the question on stdin."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answers.write(b"ready\n")
    answers.flush()
    question = json.loads(sys.stdin.buffer.readline())
    _limit_resources(question["limit_s"])
    threading.Thread(target=_end_with_server, daemon=True).start()
    with answers:
        try:
            head, text = _answer(question)
        except LabLedgerError as error:
            is_query = isinstance(error, QueryFailed)
            problem = {"message": error.message, "hint": error.hint, "is_query": is_query}
            head, text = {"error": problem}, b""
        except MemoryError:
            problem = {"message": "the query needs more memory than it may use", "is_query": True}
            head, text = {"error": {**problem, "hint": "ask for fewer or smaller values"}}, b""
        answers.write(json.dumps(head).encode() + b"\n" + text)


def _limit_resources(limit_s: float) -> None:
    os.nice(_NICENESS)
    seconds = math.ceil(limit_s) + 5
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, _MAX_MEMORY),
        (resource.RLIMIT_FSIZE, _MAX_FILE),
        (resource.RLIMIT_CORE, 0),
    ):
        most = resource.getrlimit(kind)[1]
        value = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (value, value))


def _end_with_server() -> None:
    # Not `sys.stdin`: this waiting thread would hold its lock when the program ends.
    while os.read(0, 4096):
        pass
    os._exit(1)


def _answer(question: JsonObject) -> tuple[JsonObject, bytes]:
    """Return the head of the answer, and the CSV if requested. Raises `LabLedgerError`."""
    columns, rows, limit = _run(question)
    if question["form"] != "csv":
        cells = [[_cell(value) for value in row] for row in rows]
        return {"columns": list(columns), "rows": cells, "limit": limit}, b""
    if limit is not None:
        raise QueryFailed(
            f"the query has more rows than fit in a download: at most {limit}",
            hint="`labledger query --format csv` writes all of them",
        )
    text = io.BytesIO()
    text_writer("csv")(columns, iter(rows), text)
    return {}, text.getvalue()


def _run(question: JsonObject) -> tuple[Sequence[str], list[Row], str | None]:
    """Return columns, rows, and the limit if it cut off further rows."""
    columns, rows = query(
        Path(question["path"]),
        expand_view_name(question["sql"]),
        views_only=True,
        time_limit_s=question["limit_s"],
    )
    max_rows, max_bytes = question["max_rows"], question["max_bytes"]
    first_rows: list[Row] = []
    size = 0
    with closing(rows):
        for row in rows:
            size += (row_size := sum(map(_size, row)))
            if row_size > _MAX_ROW:
                hint = "ask for fewer columns, or for parts with substr(COLUMN, 1, 1000)"
                raise QueryFailed(f"a row has more than {format_size(_MAX_ROW)}", hint=hint)
            if len(first_rows) == max_rows:
                return columns, first_rows, counted(max_rows, "row")
            if first_rows and size > max_bytes:
                return columns, first_rows, format_size(max_bytes)
            first_rows.append(row)
    return columns, first_rows, None


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


if __name__ == "__main__":
    main()
