"""What people ask of a run while it runs, and after: requests as rows, and the state that they add
up to.

A request is written by anybody, in a transaction of its own. The owner of the run applies each one
once, in the order of their numbers, in the transaction that says what was done; what was asked of a
run that nobody owns waits for its next owner. Pauses, limits and cancelled slots are stored nowhere
else: they are what the applied requests add up to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol, Self

from labledger.errors import LedgerError
from labledger.ledger import run_rows
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import JsonForm
from labledger.records.outcomes import RequestKind
from labledger.text import counted

_SELECT_SQL = statements.select_with_digest("control_request")
_ALL_SQL = f"{_SELECT_SQL} ORDER BY request_no"
_WAITING_SQL = f"{_SELECT_SQL} AND applied_at IS NULL ORDER BY request_no"
_APPLIED_SQL = f"{statements.select('control_request', start=1)} AND applied_at IS NOT NULL"
_NEXT_SQL = "SELECT coalesce(max(request_no), 0) + 1 FROM control_request WHERE run_no = ?"
_PROGRESS_SQL = """
SELECT epoch, next_schedule_idx = (SELECT total_slots FROM schedule WHERE schedule.run_no = ?1)
FROM schedule_progress WHERE run_no = ?1"""
_APPLY_SQL = statements.update(
    "control_request",
    "run_no = ?4 AND request_no = ?5 AND applied_at IS NULL",
    applied_at="?1",
    applied_epoch="?2",
    outcome="?3",
)

SCOPES = ("run", "variant", "task", "host")


class AnySlot(Protocol):
    """What of a slot decides whether a request is about it."""

    @property
    def schedule_idx(self) -> int: ...
    @property
    def variant_id(self) -> str: ...
    @property
    def task_id(self) -> str: ...


@dataclass(frozen=True, slots=True, order=True)
class Latch(JsonForm):
    """What is paused on its own, whatever else is: the run, a variant, tasks or a host."""

    scope: str
    """One of `SCOPES`."""
    name: str = ""
    """The variant, a glob of task ids, or the host, as ``NAME`` or ``NAME/ID``."""

    def __str__(self) -> str:
        noun = {"task": "tasks"}.get(self.scope, self.scope)
        return f"{noun} {self.name}" if self.name else "the run"

    def holds_slot(self, slot: AnySlot) -> bool:
        """Return whether no attempt of a slot starts while this is paused, on whichever host."""
        match self.scope:
            case "run":
                return True
            case "variant":
                return slot.variant_id == self.name
            case "task":
                return fnmatchcase(slot.task_id, self.name)
            case _:
                return False

    def holds_host(self, host: str) -> bool:
        """Return whether nothing starts on a host while this is paused."""
        return self.scope == "host" and self.name in (host, host.partition("/")[0])


@dataclass(frozen=True, slots=True)
class ControlRequest(JsonForm):
    """A request about a run, as the ledger has it."""

    number: int
    """Its number in the run, from 1."""
    requested_at: str
    requested_by: str
    """Who asked, as ``user@machine``."""
    kind: RequestKind
    what: JsonObject
    """What exactly: docs/reference/control.md describes it for each kind."""
    because: str | None = None
    """The reason that was given."""
    asked_epoch: int = 0
    """The epoch of the run when this was asked: how many owners it had had."""
    applied_at: str | None = None
    """When the run's owner applied it; None while it waits."""
    applied_epoch: int | None = None
    outcome: JsonObject | None = None
    """What was done: a sentence as `text`, and numbers; None while it waits."""

    @property
    def waits(self) -> bool:
        return self.applied_at is None

    @property
    def latches(self) -> tuple[Latch, ...]:
        """What it pauses or goes on with."""
        named = [Latch(scope, name) for scope in SCOPES[1:] for name in self.what.get(scope, ())]
        return tuple(named) or (Latch("run"),)

    @property
    def phrase(self) -> str:
        """What it asks for, such as ``pause variant treatment``."""
        return describe(self.kind, self.what)

    @property
    def source(self) -> str:
        """Who asked, and why, as a phrase."""
        return self.requested_by + (f": {self.because}" if self.because else "")


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Slots that are not to be run, or not to their end."""

    number: int
    """That of the request."""
    source: str
    """Who cancelled them, and why."""
    slots: frozenset[int]
    variants: frozenset[str]
    slots_before: int
    """Later slots, which were added to the run after this, are not meant."""
    kept: frozenset[int] = frozenset()
    """Slots that run others again which count in the pass rate, and would be left out of it."""

    def includes(self, slot: AnySlot) -> bool:
        """Return whether a slot is one of them."""
        idx = slot.schedule_idx
        is_named = idx in self.slots or slot.variant_id in self.variants
        return is_named and idx < self.slots_before and idx not in self.kept

    @property
    def reason(self) -> str:
        """What is stored with each of them."""
        return f"cancelled by {self.source} (request {self.number})"


ENDED_STAY = "trials that have ended keep their results"
"""What is said of a cancellation of slots whose trials had begun."""


def kept_sentence(slots: int) -> str:
    """Return what is said of so many slots that a cancellation does not include."""
    return f"{counted(slots, 'slot')} of a rerun stay: what they run again counts in the pass rate"


def cancellation_of(
    request: ControlRequest, slots_before: int, kept: frozenset[int]
) -> Cancellation:
    """Return what a request cancels."""
    slots, variants = (frozenset(request.what.get(key, ())) for key in ("slot", "variant"))
    return Cancellation(request.number, request.source, slots, variants, slots_before, kept)


@dataclass(frozen=True, slots=True)
class Controls:
    """What the applied requests of a run add up to."""

    pauses: Mapping[Latch, ControlRequest] = field(default_factory=dict)
    """What is paused, each with the request that paused it."""
    cancellations: tuple[Cancellation, ...] = ()
    max_concurrency: int | None = None
    at_most_per_host: int | None = None

    @classmethod
    def of(cls, requests: Iterable[ControlRequest]) -> Self:
        """Return the state after all requests that are applied, in their order."""
        controls = cls()
        for request in requests:
            if not request.waits:
                controls = controls.after(request)
        return controls

    def after(self, request: ControlRequest) -> Self:
        """Return the state after an applied request."""
        what, outcome = request.what, request.outcome or {}
        if outcome.get("refused"):
            return self
        match request.kind:
            case RequestKind.PAUSE:
                new = {latch: request for latch in request.latches if latch not in self.pauses}
                return replace(self, pauses={**self.pauses, **new})
            case RequestKind.UNPAUSE:
                ended = self.pauses.keys() if what.get("all") else request.latches
                left = {key: by for key, by in self.pauses.items() if key not in ended}
                return replace(self, pauses=left)
            case RequestKind.SET:
                limits = {
                    name: what[name]
                    for name in ("max_concurrency", "at_most_per_host")
                    if name in what
                }
                return replace(self, **limits)
            case RequestKind.CANCEL:
                kept = frozenset(outcome.get("kept", ()))
                cancelled = cancellation_of(request, outcome["slots_before"], kept)
                return replace(self, cancellations=(*self.cancellations, cancelled))
            case _:
                return self

    def cancellation(self, slot: AnySlot) -> Cancellation | None:
        """Return what cancelled a slot; None if nothing did."""
        return next((each for each in self.cancellations if each.includes(slot)), None)

    @property
    def holds_slots(self) -> bool:
        """Whether the run, or variants or tasks of it, are paused: what is paused besides hosts."""
        return any(latch.scope != "host" for latch in self.pauses)

    def pauses_slot(self, slot: AnySlot) -> bool:
        """Return whether no attempt of a slot may start now, on whichever host."""
        return any(latch.holds_slot(slot) for latch in self.pauses)

    def pauses_host(self, host: str) -> bool:
        """Return whether no attempt may start on a host now."""
        return any(latch.holds_host(host) for latch in self.pauses)


def read_requests(connection: Connection, run_no: int) -> list[ControlRequest]:
    """Return the requests of a run, the oldest first, as they stand there."""
    return [_request(row) for row in connection.execute(_ALL_SQL, (run_no,))]


def read_unchanged_requests(
    connection: Connection, run_no: int, *, waiting: bool = False
) -> list[ControlRequest]:
    """Return what `read_requests` does, for the owner who acts on it; `waiting`: what waits.

    Raises `LedgerError` if one is not what was asked or done: its row was changed or inserted by
    something else.
    """
    rows = connection.execute(_WAITING_SQL if waiting else _ALL_SQL, (run_no,)).all()
    for row in rows:
        if row.row_digest is None or not statements.fits_its_digest("control_request", row):
            raise LedgerError(
                f"request {row.request_no} of the run cannot be followed, because its row of "
                "control_request was changed, or not written by labledger",
                hint="`labledger verify` lists every change; continue with a copy of the ledger "
                "from before the change",
            )
    return [_request(row) for row in rows]


def _request(row: Any) -> ControlRequest:
    _, number, asked_at, asked_by, kind, what, because, asked_epoch, at, epoch, outcome, _ = row
    return ControlRequest(
        *(number, asked_at, asked_by, RequestKind(kind), json.loads(what), because, asked_epoch),
        *(at, epoch, outcome and json.loads(outcome)),
    )


def add_request(
    connection: Connection,
    run_no: int,
    kind: RequestKind,
    what: JsonObject,
    requested_by: str,
    because: str | None,
    now: str,
) -> ControlRequest:
    """Insert a request that waits, and return it. Raises `LedgerError` if the run is complete."""
    epoch, is_complete = connection.execute(_PROGRESS_SQL, (run_no,)).one()
    if is_complete:
        raise LedgerError("the run has been completed meanwhile: nothing was asked of it")
    number = connection.execute(_NEXT_SQL, (run_no,)).scalar_one()
    text = canonical_json.dumps(what)
    row = (run_no, number, now, requested_by, kind.value, text, because, epoch, None, None, None)
    connection.execute(statements.insert("control_request"), row)
    return ControlRequest(number, now, requested_by, kind, what, because, epoch)


def apply_request(
    connection: Connection,
    run_no: int,
    epoch: int,
    request: ControlRequest,
    outcome: JsonObject,
    now: str,
) -> ControlRequest:
    """Record what was done about a request, with the new limits of the budget that it sets.

    Call it in the transaction of the run's owner. Raises `LedgerError` if it is applied already.
    """
    values = (now, epoch, canonical_json.dumps(outcome), run_no, request.number)
    if connection.execute(_APPLY_SQL, values).rowcount != 1:
        raise LedgerError(f"request {request.number} was applied already")
    if request.kind is RequestKind.SET and not outcome.get("refused"):
        run_rows.write_budget(connection, run_no, budget_of(request))
    return replace(request, applied_at=now, applied_epoch=epoch, outcome=outcome)


def budget_of(request: ControlRequest) -> dict[str, float]:
    """Return the limits of the budget that a request sets, by kind; infinite ones are removed."""
    limits = request.what.get("budget", {})
    return {kind: math.inf if limit is None else limit for kind, limit in limits.items()}


def copy_requests(source: Connection, source_no: int, target: Connection, target_no: int) -> None:
    """Copy the applied requests of a run of another ledger, unless the run has their numbers."""
    known = {request.number for request in read_requests(target, target_no)}
    for row in source.execute(_APPLIED_SQL, (source_no,)):
        if row.request_no not in known:
            target.execute(statements.insert("control_request"), (target_no, *row))


def describe(kind: RequestKind, what: Mapping[str, Any]) -> str:
    """Return what a request asks for, as a phrase such as ``pause variant treatment``."""
    match kind:
        case RequestKind.STOP:
            return "stop now" if what.get("now") else "stop"
        case RequestKind.SET:
            return f"set {', '.join(_settings(what))}"
        case RequestKind.CANCEL:
            return f"cancel {_named(what, ('slot', 'variant'))}"
        case _ if what.get("all"):
            return f"{kind.value} everything"
        case _:
            return f"{kind.value} {_named(what, SCOPES[1:]) or 'the run'}"


def _settings(what: Mapping[str, Any]) -> Iterable[str]:
    words = {"max_concurrency": "trials at once", "at_most_per_host": "at most per host"}
    for name, noun in words.items():
        if name in what:
            yield f"{noun}: {'no limit' if what[name] is None else what[name]}"
    for kind, limit in what.get("budget", {}).items():
        unit = {"cost_usd": "USD"}.get(kind, kind)
        yield f"budget: {'no limit of' if limit is None else format(limit, ',.10g')} {unit}"


_MAX_NAMED = 5


def _named(what: Mapping[str, Any], keys: Collection[str]) -> str:
    parts = []
    for key in keys:
        names = list(map(str, what.get(key, ())))
        if len(names) > _MAX_NAMED:
            parts.append(counted(len(names), key))
        elif names:
            parts.append(f"{key} {', '.join(names)}")
    return " and ".join(parts)
