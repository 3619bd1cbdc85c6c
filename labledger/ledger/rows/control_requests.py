"""Requests of people about a run, and the state that applied requests add up to.

Any process may write a request. The run's owner applies each request once, in order, in the
transaction that stores the outcome. Without an owner, requests wait for the next one. Pauses,
limits and cancelled slots are stored nowhere else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol, Self

from labledger.errors import LedgerError
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.rows import run_rows
from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import JsonForm
from labledger.records.outcomes import RequestKind
from labledger.text.control_phrases import (
    cancelled_phrase,
    request_phrase,
    scope_phrase,
    source_phrase,
)

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
    """The fields of a slot that decide whether a request applies to it."""

    @property
    def schedule_idx(self) -> int: ...
    @property
    def variant_id(self) -> str: ...
    @property
    def task_id(self) -> str: ...


@dataclass(frozen=True, slots=True, order=True)
class Latch(JsonForm):
    """One thing that can be paused independently: the run, a variant, tasks or a host."""

    scope: str
    """One of `SCOPES`."""
    name: str = ""
    """The variant, a glob of task ids, or the host, as ``NAME`` or ``NAME/ID``."""

    def __str__(self) -> str:
        return scope_phrase(self.scope, self.name)

    def holds_slot(self, slot: AnySlot) -> bool:
        """Return whether this pause keeps attempts of a slot from starting on any host."""
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
        """Return whether this pause keeps attempts from starting on a host."""
        return self.scope == "host" and self.name in (host, host.partition("/")[0])


@dataclass(frozen=True, slots=True)
class ControlRequest(JsonForm):
    """A request about a run, as stored in the ledger."""

    number: int
    """Its number in the run, from 1."""
    requested_at: str
    requested_by: str
    """Who asked, as ``user@machine``."""
    kind: RequestKind
    what: JsonObject
    """The details. docs/reference/control.md describes them for each kind."""
    because: str | None = None
    """The user's reason, if any."""
    asked_epoch: int = 0
    """The run's epoch at the time of the request: the number of its owners so far."""
    applied_at: str | None = None
    """When the run's owner applied it; None while it waits."""
    applied_epoch: int | None = None
    outcome: JsonObject | None = None
    """The outcome: a sentence as `text`, and numbers; None while the request waits."""

    @property
    def waits(self) -> bool:
        return self.applied_at is None

    @property
    def latches(self) -> tuple[Latch, ...]:
        """The things that it pauses or unpauses."""
        named = [Latch(scope, name) for scope in SCOPES[1:] for name in self.what.get(scope, ())]
        return tuple(named) or (Latch("run"),)

    @property
    def phrase(self) -> str:
        """The request as a phrase, such as ``pause variant treatment``."""
        return request_phrase(self.kind, self.what)

    @property
    def source(self) -> str:
        """Who asked, and why, as a phrase."""
        return source_phrase(self.requested_by, self.because)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Slots that one request cancelled. They are not run, or not run to their end."""

    number: int
    """The number of the request."""
    source: str
    """Who cancelled them, and why."""
    slots: frozenset[int]
    variants: frozenset[str]
    slots_before: int
    """Only slots before this number are cancelled. Later ones were added to the run afterwards."""
    kept: frozenset[int] = frozenset()
    """Slots of reruns that are not cancelled, because an earlier slot counts in the pass rate. A
    cancelled slot would replace it, and is left out of the pass rate.
    """

    def includes(self, slot: AnySlot) -> bool:
        """Return whether the request cancelled a slot."""
        idx = slot.schedule_idx
        is_named = idx in self.slots or slot.variant_id in self.variants
        return is_named and idx < self.slots_before and idx not in self.kept

    @property
    def reason(self) -> str:
        """The reason that is stored with each cancelled slot."""
        return cancelled_phrase(self.source, self.number)


def cancellation_of(
    request: ControlRequest, slots_before: int, kept: frozenset[int]
) -> Cancellation:
    """Return the cancellation of a request."""
    slots, variants = (frozenset(request.what.get(key, ())) for key in ("slot", "variant"))
    return Cancellation(request.number, request.source, slots, variants, slots_before, kept)


@dataclass(frozen=True, slots=True)
class Controls:
    """The state of a run after its applied requests."""

    pauses: Mapping[Latch, ControlRequest] = field(default_factory=dict)
    """Everything that is paused, with the request that paused it."""
    cancellations: tuple[Cancellation, ...] = ()
    max_concurrency: int | None = None
    at_most_per_host: int | None = None

    @classmethod
    def of(cls, requests: Iterable[ControlRequest]) -> Self:
        """Return the state after all applied requests, in order."""
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
                remaining = {latch: by for latch, by in self.pauses.items() if latch not in ended}
                return replace(self, pauses=remaining)
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
        """Return the cancellation of a slot; None if it is not cancelled."""
        return next((c for c in self.cancellations if c.includes(slot)), None)

    @property
    def holds_slots(self) -> bool:
        """Whether the run, a variant or tasks are paused. Paused hosts do not count."""
        return any(latch.scope != "host" for latch in self.pauses)

    def pauses_slot(self, slot: AnySlot) -> bool:
        """Return whether a pause keeps attempts of a slot from starting on any host."""
        return any(latch.holds_slot(slot) for latch in self.pauses)

    def pauses_host(self, host: str) -> bool:
        """Return whether a pause keeps attempts from starting on a host."""
        return any(latch.holds_host(host) for latch in self.pauses)


def read_requests(connection: Connection, run_no: int) -> list[ControlRequest]:
    """Return the requests of a run, the oldest first, without checking their digests."""
    return [_request(row) for row in connection.execute(_ALL_SQL, (run_no,))]


def read_unchanged_requests(
    connection: Connection, run_no: int, *, waiting: bool = False
) -> list[ControlRequest]:
    """Return the requests of a run, the oldest first, for the owner who applies them.

    With `waiting`, returns only requests that are not applied. Raises `LedgerError` if another
    program changed or inserted a row.
    """
    rows = connection.execute(_WAITING_SQL if waiting else _ALL_SQL, (run_no,)).all()
    for row in rows:
        if row.row_digest is None or not statements.fits_its_digest("control_request", row):
            raise LedgerError(
                f"request {row.request_no} of the run cannot be applied, because its row of "
                "control_request was changed, or was not written by labledger",
                hint="`labledger verify` lists every change; continue with a copy of the ledger "
                "from before the change",
            )
    return [_request(row) for row in rows]


def _request(row: Any) -> ControlRequest:
    _, number, asked_at, asked_by, kind, what, because, asked_epoch, at, epoch, outcome, _ = row
    return ControlRequest(
        number,
        asked_at,
        asked_by,
        RequestKind(kind),
        json.loads(what),
        because,
        asked_epoch,
        at,
        epoch,
        outcome and json.loads(outcome),
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
        raise LedgerError("the run has completed meanwhile; the request was not stored")
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
    """Store the outcome of a request, and the budget limits that it sets.

    Call this in the transaction of the run's owner. Raises `LedgerError` if the request is already
    applied.
    """
    values = (now, epoch, canonical_json.dumps(outcome), run_no, request.number)
    if connection.execute(_APPLY_SQL, values).rowcount != 1:
        raise LedgerError(f"request {request.number} is already applied")
    if request.kind is RequestKind.SET and not outcome.get("refused"):
        run_rows.write_budget(connection, run_no, budget_of(request))
    return replace(request, applied_at=now, applied_epoch=epoch, outcome=outcome)


def budget_of(request: ControlRequest) -> dict[str, float]:
    """Return the budget limits that a request sets, by kind. Infinity removes a limit."""
    limits = request.what.get("budget", {})
    return {kind: math.inf if limit is None else limit for kind, limit in limits.items()}


def copy_requests(source: Connection, source_no: int, target: Connection, target_no: int) -> None:
    """Copy the applied requests of a run from another ledger, without numbers that the run has
    here.
    """
    existing_numbers = {request.number for request in read_requests(target, target_no)}
    for row in source.execute(_APPLIED_SQL, (source_no,)):
        if row.request_no not in existing_numbers:
            target.execute(statements.insert("control_request"), (target_no, *row))
