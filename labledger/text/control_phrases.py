"""Phrases and sentences about people's requests for a run: what is paused, cancelled or set.

Every output uses them: events, `labledger status`, the live page, and the outcomes that the ledger
stores with requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from labledger.text.words import counted

ENDED_STAY = "trials that have ended keep their results"
"""Added to the outcome of a cancellation that names trials that may have ended."""
OWNER_DIED = "it was killed, or its machine failed"
"""The end of a sentence about a coordinator that gives no sign of life."""

_MAX_NAMED = 5


def scope_phrase(scope: str, name: str) -> str:
    """Return a thing that can be paused as a phrase, such as ``variant treatment``."""
    return f"{'tasks' if scope == 'task' else scope} {name}" if name else "the run"


def source_phrase(requested_by: str, because: str | None) -> str:
    """Return who made a request, and why."""
    return requested_by + (f": {because}" if because else "")


def paused_sentence(paused: str, since: str, source: str) -> str:
    """Return that something is paused.

    `paused` comes from `scope_phrase`, and `source` from `source_phrase`.
    """
    return f"{paused} is paused since {since} by {source}"


def kept_sentence(slots: int) -> str:
    """Return a sentence about this many slots that cannot be cancelled."""
    which = "it reruns a trial that counts" if slots == 1 else "they rerun trials that count"
    return f"{counted(slots, 'trial')} cannot be cancelled: {which} in the pass rate"


def cancelled_phrase(source: str, number: int) -> str:
    """Return why a slot was cancelled. The ledger stores this phrase with the slot."""
    return f"cancelled by {source} (request {number})"


def request_phrase(kind: str, what: Mapping[str, Any]) -> str:
    """Return a request as a phrase, such as ``pause variant treatment``.

    `kind` is a value of `RequestKind`, and `what` has the details of the request.
    """
    match kind:
        case "stop":
            return "stop now" if what.get("now") else "stop"
        case "set":
            return f"set {', '.join(_settings(what))}"
        case "cancel":
            return f"cancel {_named(what, ('slot', 'variant'))}"
        case _ if what.get("all"):
            return f"{kind} everything"
        case _:
            return f"{kind} {_named(what, ('variant', 'task', 'host')) or 'the run'}"


def applied_sentence(source: str, phrase: str, outcome: Mapping[str, Any]) -> str:
    """Return that the run's owner applied or refused a request."""
    verb = "refused" if outcome.get("refused") else "applied"
    sentence = f"{verb} the request of {source}, to {phrase}"
    text = outcome.get("text")
    return f"{sentence}: {text}" if text else sentence


def _settings(what: Mapping[str, Any]) -> Iterable[str]:
    words = {"max_concurrency": "trials at once", "at_most_per_host": "at most per host"}
    for name, noun in words.items():
        if name in what:
            yield f"{noun}: {'no limit' if what[name] is None else what[name]}"
    for kind, limit in what.get("budget", {}).items():
        unit = {"cost_usd": "USD"}.get(kind, kind)
        yield f"budget: {'no limit of' if limit is None else format(limit, ',.10g')} {unit}"


def _named(what: Mapping[str, Any], keys: Collection[str]) -> str:
    parts = []
    for key in keys:
        names = list(map(str, what.get(key, ())))
        noun = "trial" if key == "slot" else key
        if len(names) > _MAX_NAMED:
            parts.append(counted(len(names), noun))
        elif names:
            parts.append(f"{noun} {', '.join(names)}")
    return " and ".join(parts)
