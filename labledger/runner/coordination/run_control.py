"""Apply what users request of a run while its coordinator works: pause, change, stop, cancel.

One transaction under the lease stores a request as applied, with its outcome. Only then the request
takes effect. If the coordinator dies in between, the next one reads the sum of all applied requests
(`Controls`), and applies the waiting ones first.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

from labledger import clock, fault_points
from labledger.errors import LabLedgerError
from labledger.execution.executor import TrialExecutor
from labledger.execution.host_state import Limits
from labledger.execution.run_events import Listener, StopRequest, run_event
from labledger.ledger.database.run_info import Lease, RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.ledger.rows.control_requests import (
    Cancellation,
    ControlRequest,
    Controls,
    budget_of,
    cancellation_of,
)
from labledger.ledger.writer import LedgerWriter
from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult
from labledger.records.identity import Slot
from labledger.records.outcomes import Reason, RequestKind, SlotStatus
from labledger.runner.coordination.commit_queue import CommitQueue
from labledger.text.control_phrases import ENDED_STAY, kept_sentence, paused_sentence
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.collect import infra_error_result

_LOOK_S = 0.25
"""Seconds between two checks for requests."""


def apply_waiting(
    reader: LedgerReader, writer: LedgerWriter, run: RunInfo, lease: Lease, emit: Listener
) -> None:
    """Apply the requests that were made while no coordinator owned the run.

    The caller is the new owner. Requests for a complete run are refused, because they were not
    meant for slots that are added later.
    """
    for request in reader.unchanged_requests(run.run_id, waiting=True):
        if run.next_schedule_idx == run.total_slots:
            text = "the run was complete, so there was nothing left to change"
            outcome: JsonObject = {"text": text, "refused": True}
        else:
            outcome = _outcome(request, reader, run, lease)
        fault_points.fault_point("before_apply")
        applied = writer.apply_request(lease, request, outcome)
        fault_points.fault_point("after_apply")
        emit(_applied_event(applied))


def _outcome(
    request: ControlRequest,
    reader: LedgerReader,
    run: RunInfo,
    lease: Lease,
    *,
    budget_was_spent: bool = False,
) -> JsonObject:
    """Return the outcome of a request, as a sentence and as numbers."""
    asked = request.phrase
    match request.kind:
        case RequestKind.STOP if request.asked_epoch != lease.epoch:
            text = "the coordinator to be stopped had already ended; nothing was done"
            return {"text": text, "refused": True}
        case RequestKind.SET if budget_was_spent and request.what.get("budget"):
            ending = "the run ends, because its budget was spent: `labledger resume` continues it"
            return {"text": f"{asked}; {ending}"}
        case RequestKind.CANCEL:
            kept = reader.slots_that_replace_verdicts(run.run_id)
            cancellation = cancellation_of(request, run.total_slots, frozenset())
            stay = [slot.schedule_idx for slot in kept if cancellation.includes(slot)]
            outcome: JsonObject = {"text": asked, "slots_before": run.total_slots}
            begun_idxs = [slot.schedule_idx for slot in reader.open_slots(run.run_id)]
            if any(cancellation.includes(reader.slot(run.run_id, idx)) for idx in begun_idxs):
                outcome["text"] += f"; {ENDED_STAY}"
            if stay:
                outcome["text"] += f"; {kept_sentence(len(stay))}"
                outcome["kept"] = stay
            return outcome
        case _:
            return {"text": asked}


def _applied_event(applied: ControlRequest) -> JsonObject:
    return run_event(
        "control_applied",
        request=applied.number,
        asked=applied.kind.value,
        what=applied.what,
        requested_by=applied.requested_by,
        because=applied.because,
        **(applied.outcome or {}),
    )


def limits_of(controls: Controls, max_concurrency: int | None) -> Limits:
    """Return the limits of a run's executor.

    `max_concurrency` comes from the command, None if it names no number. It overrides requests that
    were applied before.
    """
    at_once = max_concurrency or controls.max_concurrency
    return Limits(at_once, controls.at_most_per_host, controls.pauses_host)


@dataclass(slots=True)
class RunControl:
    """The requests of users about one run, for the coordinator that owns it."""

    reader: LedgerReader
    run: RunInfo
    commit_queue: CommitQueue
    executor: TrialExecutor
    stop_request: StopRequest
    emit: Listener
    max_concurrency: int | None = None
    """The limit from the command, until a request of this session sets another."""
    controls: Controls = field(default_factory=Controls)
    _next_look: float = 0.0

    def begin(self) -> None:
        """Apply the sum of earlier requests, and warn of what is paused."""
        self.controls = Controls.of(self.reader.unchanged_requests(self.run.run_id))
        self._limit_executor()
        for latch, request in self.controls.pauses.items():
            since = request.applied_at or request.requested_at
            sentence = paused_sentence(str(latch), since, request.source)
            command = f"`labledger unpause {self.run.run_id}` with the same options"
            self.emit(run_event("warning", message=f"{sentence}; {command} continues it"))

    def look(self) -> bool:
        """Apply waiting requests, once in `_LOOK_S` seconds. Return whether any was applied."""
        now = clock.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        applied = False
        for request in self.reader.unchanged_requests(self.run.run_id, waiting=True):
            if not self._apply(request):
                break  # Later requests wait too, so that all are applied in order.
            applied = True
        return applied

    def _apply(self, request: ControlRequest) -> bool:
        """Apply a request. Return False if the ledger's disk is full and the request must wait."""
        lease, was_spent = self.commit_queue.lease, bool(self.commit_queue.budget.at_stop)
        outcome = _outcome(request, self.reader, self.run, lease, budget_was_spent=was_spent)
        applied = self.commit_queue.apply_request(request, outcome)
        if applied is None:
            return False
        if not outcome.get("refused"):
            self.controls = self.controls.after(applied)
            self._take_effect(applied)
        self.emit(_applied_event(applied))
        return True

    def _take_effect(self, request: ControlRequest) -> None:
        match request.kind:
            case RequestKind.SET:
                if "max_concurrency" in request.what:
                    self.max_concurrency = None
                self.commit_queue.budget.change_limits(budget_of(request))
                self._limit_executor()
            case RequestKind.PAUSE | RequestKind.UNPAUSE:
                self._limit_executor()
            case RequestKind.STOP:
                level = 2 if request.what.get("now") else 1
                self.stop_request.raise_to(level, f"`labledger stop` of {request.source}")
            case _:
                pass

    def _limit_executor(self) -> None:
        self.executor.limit(limits_of(self.controls, self.max_concurrency))

    def holds(self, spec: AttemptSpec) -> bool:
        """Return whether an attempt must wait because of a pause.

        An attempt that has started is collected. An attempt of a cancelled slot does not wait: its
        slot ends.
        """
        if not self.is_paused(spec) or self.cancellation(spec.slot) is not None:
            return False
        return not (spec.container_may_exist and self.executor.has_started(spec))

    def is_paused(self, spec: AttemptSpec) -> bool:
        """Return whether a pause applies to an attempt: of its slot, or of its host."""
        controls = self.controls
        on_paused_host = bool(spec.host) and controls.pauses_host(spec.host)
        return on_paused_host or controls.pauses_slot(spec.slot)

    def cancellation(self, slot: Slot) -> Cancellation | None:
        """Return the cancellation of a slot; None if it is not cancelled."""
        return self.controls.cancellation(slot)


@dataclass(slots=True)
class CancelledAttempts:
    """Attempts of cancelled slots: attempts in flight, to be killed, and ones that never ran."""

    control: RunControl
    executor: TrialExecutor
    in_flight: dict[tuple[int, int], AttemptSpec] = field(default_factory=dict)
    never_ran: list[AttemptSpec] = field(default_factory=list)
    """Attempts that never ran. Their slots end without them."""
    recalled: set[tuple[int, int]] = field(default_factory=set)
    """Slot and attempt of dispatched attempts that certainly have not started. Their containers may
    exist, but nothing has run in them."""
    _next_kill: float = 0.0

    def add_if_cancelled(self, spec: AttemptSpec) -> None:
        """If the slot of an attempt in flight is cancelled, kill the attempt, now and in `kill`."""
        if self.control.cancellation(spec.slot) is not None:
            self.in_flight[spec.key] = spec
            self._kill(spec)

    def kill(self) -> None:
        """Kill attempts in flight again: their containers may have been about to start."""
        now = clock.monotonic()
        if self.in_flight and now >= self._next_kill:
            self._next_kill = now + _LOOK_S
            for spec in self.in_flight.values():
                self._kill(spec)

    def _kill(self, spec: AttemptSpec) -> None:
        """Kill an attempt, if this process certainly owns the run. Errors are retried later."""
        if self.executor.may_start:
            with suppress(LabLedgerError):
                self.executor.kill(spec)

    def take_if_cancelled(self, spec: AttemptSpec) -> bool:
        """Return whether an attempt need not run: its slot is cancelled, and nothing began."""
        if self.may_have_begun(spec) or self.control.cancellation(spec.slot) is None:
            return False
        self.never_ran.append(spec)
        return True

    def may_have_begun(self, spec: AttemptSpec) -> bool:
        """Return whether a queued attempt may have run."""
        return spec.container_may_exist and spec.key not in self.recalled

    def ended_unstarted(self, spec: AttemptSpec) -> bool:
        """Note that an attempt was not allowed to start. Return whether its slot is cancelled."""
        if not spec.container_may_exist:
            self.recalled.add(spec.key)
        if self.in_flight.pop(spec.key, None) is None:
            return False
        self.never_ran.append(spec)
        return True

    def is_uncertain(self, spec: AttemptSpec) -> None:
        """Note that the state of a dispatched attempt is unknown."""
        self.recalled.discard(spec.key)

    def ended(self, spec: AttemptSpec, result: AttemptResult) -> AttemptResult:
        """Return the result of an attempt that ended. If its slot is cancelled, say so in it."""
        if self.in_flight.pop(spec.key, None) is None:
            return result
        cancellation = self.control.cancellation(spec.slot)
        if cancellation is None or result.reason != Reason.CONTAINER_KILLED:
            return result
        return replace(
            result,
            status=SlotStatus.AGENT_ERROR,
            reason=Reason.CANCELLED,
            message=cancellation.reason,
        )

    def end_next(self, commit_queue: CommitQueue) -> bool:
        """End a slot whose attempt never ran. Return False if there is none, or no disk space."""
        if not self.never_ran:
            return False
        spec = self.never_ran[0]
        cancellation = self.control.cancellation(spec.slot)
        if cancellation is None:
            raise AssertionError(f"slot {spec.slot.schedule_idx} is not cancelled")
        if spec.attempt == 1 and not self.may_have_begun(spec):
            idx = spec.slot.schedule_idx
            commit_queue.skip_slot(idx, SlotStatus.CANCELLED, cancellation.reason)
        else:
            # Earlier attempts stay, and an earlier coordinator may have begun this one.
            now, message = clock.utc_now(), cancellation.reason
            result = infra_error_result(spec.evidence, now, Reason.CANCELLED, message)
            if not commit_queue.commit_or_stage(result, final=True):
                return False
        self.never_ran.pop(0)
        return True
