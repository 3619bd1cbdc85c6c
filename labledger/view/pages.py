"""Writes documents and errors as JSON and as HTML pages.

Text from containers is never executed. Every document escapes characters that do not print
(`text.escape_values`), the templates escape HTML, and a page carries its document in a data block.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web

from labledger import __version__, clock
from labledger.errors import (
    ExtraMissing,
    InvalidInput,
    LabLedgerError,
    LedgerError,
    QueryFailed,
    RequestRefused,
    RunNotFound,
    SlotNotFound,
)
from labledger.files.lab_folder import LabFolder
from labledger.records import JsonObject
from labledger.text.escaping import escape_values
from labledger.text.figures import (
    clock_time,
    count,
    date_and_time,
    duration,
    percent,
    percent_range,
    rounded,
    usd,
    whole_number,
)
from labledger.text.words import counted

_FOLDER = Path(__file__).resolve().parent
STATIC = _FOLDER / "static"
VERSION = 1
"""The version of the documents. It changes when a member is removed or changes its meaning."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A document that is ready to send: with version and time, and with all texts escaped."""

    document: JsonObject
    text: str
    """The document as JSON on one line. It contains no text that could end a data block."""


def finish(document: JsonObject) -> Finished:
    """Add version and time to a document, and escape its texts."""
    document = {"version": VERSION, "at": clock.utc_now(), **document}
    text = _json(document)
    if not text.isprintable() or _ESCAPE.search(text):
        # Most documents have only printable text, and need no look at their values.
        document = escape_values(document)
        text = _json(document)
    return Finished(document, text.replace("<", "\\u003c"))


def _json(document: JsonObject) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


_ESCAPE = re.compile(r"\\[bfru]")
"""A JSON escape, except for line ends, tabs, quotes and backslashes."""


def page(template: str, finished: Finished, **settings: Any) -> str:
    """Render a document with a template as an HTML page."""
    environment = _environment()
    return str(
        environment.get_template(f"{template}.html.j2").render(
            document=finished.document,
            data=environment.filters["trusted"](finished.text),
            screen=template,
            **settings,
        )
    )


@cache
def _environment() -> Any:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["labledger_version"] = __version__
    environment.filters |= {
        "trusted": Markup,  # The data block, in which every < is an escape.
        "count": count,
        "counted": counted,
        "percent": percent,
        "percent_range": lambda bounds: percent_range(*bounds),
        "rounded": rounded,
        "usd": usd,
        "whole": whole_number,
        "duration": duration,
        "clock_time": clock_time,
        "moment": date_and_time,
    }
    return environment


# -- errors

_STATUSES: tuple[tuple[type[LabLedgerError], HTTPStatus], ...] = (
    (RunNotFound, HTTPStatus.NOT_FOUND),
    (SlotNotFound, HTTPStatus.NOT_FOUND),
    (QueryFailed, HTTPStatus.BAD_REQUEST),
    (InvalidInput, HTTPStatus.BAD_REQUEST),
    (RequestRefused, HTTPStatus.CONFLICT),
    (LedgerError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ExtraMissing, HTTPStatus.NOT_IMPLEMENTED),
)


def status_of(error: LabLedgerError) -> HTTPStatus:
    """Return the HTTP status of an error."""
    statuses = (status for kind, status in _STATUSES if isinstance(error, kind))
    return next(statuses, HTTPStatus.INTERNAL_SERVER_ERROR)


def error_member(error: LabLedgerError) -> JsonObject:
    """Return the members of a document that describe an error: message, hint and HTTP status."""
    texts = {"message": error.message, "hint": error.hint}
    return {"error": texts, "status": int(status_of(error))}


def error_response(
    request: web.BaseRequest,
    status: HTTPStatus,
    message: str,
    hint: str | None = None,
    *,
    again: bool = False,
) -> web.Response:
    """Return an error as JSON or as a page. With `again`, the page reloads itself."""
    finished = finish({"error": {"message": message, "hint": hint}, "status": int(status)})
    if wants_json(request):
        return web.json_response(text=finished.text, status=status)
    text = page("error", finished, again=again)
    return web.Response(text=text, status=status, content_type="text/html")


_FIRST_RUN_MS = 2000
"""The time between reloads of the page of a lab without runs."""


def no_run_response(request: web.BaseRequest, lab: LabFolder) -> web.Response:
    """Return the page of a lab without a ledger, which reloads itself until there is a run.

    Its status is 503, so that programs and open pages retry.
    """
    message = "this lab has no run yet"
    hint = "start one with `labledger run experiment.yaml`: it appears here"
    if wants_json(request):
        return error_response(request, HTTPStatus.SERVICE_UNAVAILABLE, message, hint)
    document = {"error": {"message": message, "hint": hint}, "ledger": str(lab.ledger)}
    text = page("no_run", finish(document), again=True, every=_FIRST_RUN_MS)
    status = HTTPStatus.SERVICE_UNAVAILABLE
    return web.Response(text=text, status=status, content_type="text/html")


def wants_json(request: web.BaseRequest) -> bool:
    """Return whether a request asks for a document instead of a page."""
    if (form := request.query.get("format")) not in (None, "csv"):
        return form != "html"
    return "text/html" not in request.headers.get("Accept", "")
