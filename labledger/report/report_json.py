"""Write a report as JSON, `report_v1`, without holding the document.

The long lists (trials, tasks, and the comparisons' rows by task) are written row by row; the rest
of the document is written at once, as `json.dumps` with `indent=2` does. `run_report` calls this.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from labledger.compare.comparison_document import Comparison, to_json
from labledger.report.document import Report
from labledger.report.ledger_queries import Trial

Row = Mapping[str, Any]


def pieces(report: Report, trials: Iterable[Trial]) -> Iterator[str]:
    """Yield the text of the document; `trials` take the place of the report's own.

    The document is checked against its schema first; of long lists, only the ends are.
    """
    rest = iter(trials)
    first = tuple(islice(rest, 1))
    ends = replace(
        report,
        comparisons=tuple(map(_with_end_rows, report.comparisons)),
        tasks=report.tasks[:1] + report.tasks[-1:],
        trials=first,
    )
    document = ends.as_json()
    mark = secrets.token_hex(16)  # Nothing in the ledger can equal it.
    lists: list[Iterable[Row]] = []

    def marked(rows: Iterable[Row]) -> str:
        lists.append(rows)
        return f"{mark}{len(lists) - 1}"

    for shown, comparison in zip(document["comparisons"], report.comparisons, strict=True):
        for compared, held in zip(shown["comparisons"], comparison.comparisons, strict=True):
            compared["by_task"] = marked(map(to_json, held.by_task))
    tasks = report.tasks
    document["tasks"] = marked({"task_id": task.task_id, "cells": task.cells} for task in tasks)
    document["trials"] = marked(trial.as_json() for trial in chain(first, rest))
    text = json.dumps(document, indent=2)
    end = 0
    for match in re.finditer(rf'(\n *)"\w+": ("{mark}(\d+)")', text):
        yield text[end : match.start(2)]
        yield from _list(lists[int(match[3])], match[1])
        end = match.end(2)
    yield f"{text[end:]}\n"


def _with_end_rows(document: Comparison) -> Comparison:
    compared = (
        replace(each, by_task=each.by_task[:1] + each.by_task[-1:]) for each in document.comparisons
    )
    return replace(document, comparisons=tuple(compared))


def _list(rows: Iterable[Row], margin: str) -> Iterator[str]:
    """Yield a list of objects; `margin` is the line break and indent of the line it begins in."""
    inner = f"{margin}  "
    before = "["
    for row in rows:
        yield f"{before}{inner}{_object(row, inner)}"
        before = ","
    yield "[]" if before == "[" else f"{margin}]"


def _object(row: Row, margin: str) -> str:
    inner = f"{margin}  "
    if any(value and isinstance(value, tuple | list | dict) for value in row.values()):
        members = ",".join(f'{inner}"{key}": {_value(row[key], inner)}' for key in row)
        return f"{{{members}{margin}}}"
    # Only this has an encoder in C.
    return f"{{{inner}{json.dumps(row, separators=(f',{inner}', ': '))[1:-1]}{margin}}}"


def _value(value: Any, margin: str) -> str:
    if isinstance(value, tuple):
        return _tuple(value, margin)
    return json.dumps(value, indent=2).replace("\n", margin)


@lru_cache(maxsize=1024)
def _tuple(value: tuple[Any, ...], margin: str) -> str:
    """Return a list; the tasks of a large run have few different ones."""
    return json.dumps(to_json(value), indent=2).replace("\n", margin)
