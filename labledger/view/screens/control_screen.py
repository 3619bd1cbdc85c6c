"""Requests of a run from its page, and the list of earlier requests.

A form of the page becomes a request in the ledger, just like a command, and the run's owner applies
it. The server writes nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from labledger.api.control import ControlReply, request_control
from labledger.errors import InvalidInput, Problem
from labledger.ledger.rows.control_requests import ControlRequest, Latch
from labledger.records import JsonObject
from labledger.records.outcomes import BUDGET_PARAMETERS, RequestKind
from labledger.view.ledgers import DocumentSource
from labledger.view.parameters import Parameters

PARAMETERS = (
    *("kind", "variant", "task", "host", "slot", "all", "now", "max_concurrency"),
    *("at_most_per_host", *BUDGET_PARAMETERS.values(), "because", "dry_run"),
)
_MAX_REQUESTS = 50
_NONE = "none"


def ask(source: DocumentSource, parameters: Parameters) -> ControlReply:
    """Make the request of a form; with `dry_run`, only return what would happen.

    Raises `InvalidInput`, `RunNotFound`, and what `request_control` raises.
    """
    kind = parameters.choice("kind", ("", *RequestKind))
    if not kind:
        raise _refused("kind", f"found none; expected one of {', '.join(RequestKind)}")
    return request_control(
        parameters.run_id,
        kind,
        _what(parameters),
        because=parameters.text("because"),
        dry_run=is_dry(parameters),
        lab_dir=source.lab.root,
    )


def is_dry(parameters: Parameters) -> bool:
    """Return whether a form only asks what would happen."""
    return parameters.choice("dry_run", ("no", "yes")) == "yes"


def preview(
    source: DocumentSource, parameters: Parameters, fields: Sequence[tuple[str, str]]
) -> JsonObject:
    """Return the document of the page that shows the effect of a request before it is made."""
    reply = ask(source, parameters)
    slots = _given(parameters, "slot")
    return {
        "run_id": reply.run_id,
        "run_name": source.reader.run(reply.run_id).name,
        "kind": parameters.text("kind"),
        "slot": int(slots[0]) if len(slots) == 1 else None,
        "fields": [[name, value] for name, value in fields if value and name != "dry_run"],
        "text": reply.text,
    }


def _what(parameters: Parameters) -> JsonObject:
    names = {name: _given(parameters, name) for name in ("variant", "task", "host")}
    what: JsonObject = {name: values for name, values in names.items() if values}
    if slots := _given(parameters, "slot"):
        what["slot"] = [int(_number("slot", slot)) for slot in slots]
    for name in ("all", "now"):
        if parameters.choice(name, ("no", "yes")) == "yes":
            what[name] = True
    for name in ("max_concurrency", "at_most_per_host"):
        if (text := parameters.text(name)) is not None:
            what[name] = None if text == _NONE else int(_number(name, text))
    budget = {
        kind: None if text == _NONE else _number(name, text)
        for kind, name in BUDGET_PARAMETERS.items()
        if (text := parameters.text(name)) is not None
    }
    return what | ({"budget": budget} if budget else {})


def _given(parameters: Parameters, name: str) -> list[str]:
    return [value for value in parameters.texts(name) if value]


def _number(name: str, text: str) -> float:
    """Return a number of 0 or more; except for dollars, a whole number."""
    is_whole = name != "budget_usd"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 2**53 or (is_whole and number != int(number)):
        expected = "a whole number" if is_whole else "a number"
        message = f"found {text[:80]!r}; expected {expected} of 0 or more and below 2^53, or none"
        raise _refused(name, message)
    return number


def _refused(name: str, message: str) -> InvalidInput:
    return InvalidInput("the request", [Problem(name, message)])


# -- earlier requests


def requests_of(
    requests: Sequence[ControlRequest], latches: Collection[Latch]
) -> Mapping[str, Any]:
    """Return the members of documents about the requests of a run, the newest first."""
    return {
        "requests": [
            {
                "number": request.number,
                "kind": request.kind.value,
                "text": request.phrase,
                "requested_by": request.requested_by,
                "because": request.because,
                "requested_at": request.requested_at,
                "applied_at": request.applied_at,
                "outcome": (request.outcome or {}).get("text"),
            }
            for request in requests[: -_MAX_REQUESTS - 1 : -1]
        ],
        "paused": [str(latch) for latch in latches],
        "latches": [latch.as_json() | {"text": str(latch)} for latch in latches],
    }
