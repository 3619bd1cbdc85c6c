"""Makes requests of a run that may be running elsewhere: pause, limits, stop, cancelled slots.

A request is a row of the ledger. The run's owner applies it now, or the next owner when the run is
resumed. The reply says what will happen. `proposed_request` refuses invalid requests.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from labledger import clock
from labledger.api.ledger import Ledger, open_ledger
from labledger.api.proposed_request import ProposedRequest
from labledger.api.run_state import running_trials, stop_of
from labledger.errors import MAX_REASON, Parameter, require_text
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.ledger.reading.counts import exhausted_kinds
from labledger.ledger.reading.progress_rows import OpenSlot
from labledger.ledger.rows.control_requests import (
    AnySlot,
    ControlRequest,
    Latch,
    cancellation_of,
)
from labledger.records import JsonObject
from labledger.records.json_codec import JsonForm
from labledger.records.outcomes import RequestKind
from labledger.text.control_phrases import ENDED_STAY, kept_sentence, request_phrase
from labledger.text.figures import clock_time
from labledger.text.words import counted

_POLL_S = 0.1
_DURATIONS_SQL = """
SELECT variant_id, avg(duration_ms) FROM (
  SELECT variant_id, duration_ms FROM trials WHERE run_id = :run_id
  ORDER BY schedule_idx DESC LIMIT 500)
GROUP BY variant_id"""


@dataclass(frozen=True, slots=True)
class ControlReply(JsonForm):
    """The reply to a request of a run."""

    run_id: str
    request: ControlRequest | None
    """The stored request; None for a dry run, and if the request would change nothing."""
    text: str
    """A sentence that says what will happen and when, or, once the owner has applied the request,
    what has happened."""
    running: int
    """How many affected trials are running."""
    about_s: float | None = None
    """The estimated seconds until they have ended, from earlier trials; None if unknown."""
    slots: int = 0
    """How many unfinished slots a cancellation affects."""
    owned: bool = False
    """Whether a coordinator owns the run. If not, the next one applies the request."""


def request_control(
    run_id: str,
    kind: RequestKind | str,
    what: JsonObject | None = None,
    *,
    because: str | None = None,
    requested_by: str | None = None,
    wait_s: float = 0.0,
    dry_run: bool = False,
    lab_dir: str | Path | None = None,
) -> ControlReply:
    """Make a request of a run. Its owner applies it, or the next owner when the run is resumed.

    Args:
        run_id: The run.
        kind: ``pause``, ``unpause``, ``set``, ``stop`` or ``cancel``.
        what: The arguments, such as ``{"variant": ["treatment"]}``; docs/reference/control.md
            lists the keys of each kind.
        because: Why, in at most 1,000 characters. Stored with the request.
        requested_by: The requester; None for ``user@machine`` of this process.
        wait_s: How many seconds to wait for the owner of the run to apply the request.
        dry_run: Make no request, only return what would happen.
        lab_dir: The lab folder.

    Returns:
        The reply, with the request's outcome if it was applied within `wait_s`. A request that
        would change nothing, such as a second pause, is not stored.

    Raises:
        RunNotFound: The ledger has no such run.
        InvalidInput: `what` matches nothing in the run, or a key or value does not fit `kind`.
        RequestRefused: The run is complete, or the request is to stop a run without an owner.

    Example:
        >>> import labledger
        >>> reply = labledger.request_control("demo", "pause", {"variant": ["treatment"]})
        >>> reply.request.kind
        <RequestKind.PAUSE: 'pause'>
    """
    from labledger.ledger.writer import LedgerWriter

    kind, what = RequestKind(kind), dict(what or {})
    if because is not None:
        require_text("the reason", Parameter("because"), because, MAX_REASON)
    lab = LabFolder.find(lab_dir)
    with open_ledger(lab_dir=lab_dir) as ledger:
        proposed = ProposedRequest(ledger, ledger.run(run_id), kind, what)
        proposed.check()
        preview = _Preview(proposed)
        reply = preview.reply()
        if dry_run or preview.changes_nothing:
            return reply
        with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
            asked_by = requested_by or _this_user()
            request = writer.add_request(run_id, kind, what, asked_by, because)
        reply = replace(reply, request=request)
        if not proposed.is_owned:
            return reply
        return preview.after(_await_outcome(ledger, reply, wait_s))


def _this_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _await_outcome(ledger: Ledger, reply: ControlReply, wait_s: float) -> ControlReply:
    """Wait until a request is applied or the time is over. Return the reply with its new state."""
    until = clock.monotonic() + wait_s
    while reply.request is not None and reply.request.waits and clock.monotonic() < until:
        clock.sleep(_POLL_S)
        request = ledger.control_requests(reply.run_id)[reply.request.number - 1]
        reply = replace(reply, request=request)
    return reply


class _Preview:
    """Predicts the effect of a proposed request, and counts the affected trials and slots."""

    def __init__(self, asked: ProposedRequest) -> None:
        self.asked = asked
        self.run, self.kind, self.what = asked.run, asked.kind, asked.what
        self.controls = asked.controls

    @property
    def changes_nothing(self) -> bool:
        """Whether the run is already in the requested state."""
        match self.kind:
            case RequestKind.PAUSE:
                return set(self.asked.request.latches) <= self.controls.pauses.keys()
            case RequestKind.UNPAUSE if self.what.get("all"):
                return not self.controls.pauses
            case RequestKind.UNPAUSE:
                return self.controls.pauses.keys().isdisjoint(self.asked.request.latches)
            case RequestKind.CANCEL:
                return self._unfinished == 0
            case RequestKind.STOP:
                stop = stop_of(self.run, self.asked.requests)
                return stop is not None and bool(stop.what.get("now") or not self.what.get("now"))
            case _:
                return False

    def reply(self) -> ControlReply:
        """Return what the request will do, and when."""
        running = []
        if self.asked.is_owned:
            lab = LabFolder(self.asked.ledger.reader.path.parent)
            running = running_trials(lab, self.run, self.controls, self.asked.open_slots)
        meant = [(slot, elapsed_s) for slot, elapsed_s in running if self._means(slot)]
        mean_ms = self._durations() if running else {}
        seconds_left = [
            max(1.0, mean / 1000 - elapsed_s)
            for slot, elapsed_s in meant
            if (mean := mean_ms.get(slot.variant_id)) is not None
        ]
        about_s = max(seconds_left, default=None)
        text = self._text(len(meant), about_s)
        owned = self.asked.is_owned
        return ControlReply(
            self.run.run_id, None, text, len(meant), about_s, self._unfinished, owned
        )

    def after(self, reply: ControlReply) -> ControlReply:
        """Return the reply, with a text about what has happened if the request was applied."""
        outcome = None if reply.request is None else reply.request.outcome
        if outcome is None:
            return reply
        if outcome.get("refused"):
            return replace(reply, text=outcome["text"])
        return replace(reply, text=self._text(reply.running, reply.about_s, is_applied=True))

    def _means(self, slot: OpenSlot) -> bool:
        """Return whether the request affects a running trial's slot."""
        if self.kind is RequestKind.CANCEL:
            is_named = slot.schedule_idx in self.asked.names("slot")
            return is_named or slot.variant_id in self.asked.names("variant")
        if self.kind in (RequestKind.PAUSE, RequestKind.UNPAUSE):
            return any(
                latch.holds_slot(slot) or latch.holds_host(slot.host)
                for latch in self.asked.request.latches
            )
        return True

    def _durations(self) -> Mapping[str, float]:
        """Return the mean duration of the latest trials of each variant, in milliseconds."""
        rows = self.asked.ledger.rows(_DURATIONS_SQL, {"run_id": self.run.run_id})[1]
        return {variant: mean for variant, mean in rows if mean is not None}

    @cached_property
    def _unfinished(self) -> int:
        """How many slots without a final result a cancellation affects."""
        if self.kind is not RequestKind.CANCEL:
            return 0
        not_cancelled = frozenset(self.asked.finished.keys() | self.asked.kept.keys())
        cancellation = cancellation_of(self.asked.request, self.run.total_slots, not_cancelled)
        slots = self.asked.ledger.reader.slots(self.run.run_id, self.run.next_schedule_idx)
        return sum(
            cancellation.includes(slot) and self.controls.cancellation(slot) is None
            for slot in slots
        )

    def _text(self, running: int, about_s: float | None, *, is_applied: bool = False) -> str:
        """Return a sentence that says what will happen, or what has happened if `is_applied`."""
        about = "" if about_s is None else f", about {clock_time(about_s)}"
        trials = counted(running, "trial")
        run_on = f"{trials} still {'runs' if running == 1 else 'run'}{about}"
        if not running:
            run_on = "no trial runs"
        latches = _names(self.asked.request.latches)
        is_owned = self.asked.is_owned
        match self.kind:
            case RequestKind.PAUSE if self.changes_nothing:
                return f"{latches} is already paused"
            case RequestKind.PAUSE if not is_owned:
                return f"{latches}: no more trials start when the run is resumed; {_UNOWNED}"
            case RequestKind.PAUSE:
                rest = run_on if running else "none of its trials runs now"
                return f"{latches}: no more trials start; {rest}"
            case RequestKind.UNPAUSE:
                return self._unpause_text()
            case RequestKind.STOP if self.changes_nothing:
                return f"the run is already stopping; {run_on}"
            case RequestKind.STOP if self.what.get("now"):
                killed = _killed(running, is_applied=is_applied) or "no trial runs now"
                return f"stopping now: {killed}; trials without a result run again on resume"
            case RequestKind.STOP:
                are = "is" if running == 1 else "are"
                return f"stopping: no more trials start; {run_on}, and {are} saved at the end"
            case RequestKind.CANCEL:
                return self._cancel_text(running, is_applied=is_applied)
            case _:
                since = "from the next trial on" if is_owned else "once the run is resumed"
                return f"{request_phrase(self.kind, self.what)}, {since}{self._spent_already()}"

    def _cancel_text(self, running: int, *, is_applied: bool) -> str:
        """Return what will happen, or has happened, to the trials that are cancelled."""
        cancelled = self.asked.request.phrase.removeprefix("cancel ")
        if self.changes_nothing:
            return f"{cancelled}: no trial is left to cancel"
        number = self._unfinished
        past = "was" if number == 1 else "were"
        verb = f"{past} cancelled for good" if is_applied else "will be cancelled for good"
        trials = f"{counted(number, 'trial')} {verb}"
        if not self.asked.is_owned:
            trials += f" when the run is resumed; {_UNOWNED}, and {ENDED_STAY}"
        else:
            killed = _killed(running, is_applied=is_applied) or _none_runs(number)
            trials += f"; {killed}"
        stay = self._of_named_variants(self.asked.kept.values())
        rest = f"; {kept_sentence(stay)}" if stay else ""
        if finished := self._of_named_variants(self.asked.finished.values()):
            are = "is" if finished == 1 else "are"
            rest += f"; {counted(finished, 'finished trial')} {are} kept"
        return f"{cancelled}: {trials}{rest}"

    def _of_named_variants(self, slots: Iterable[AnySlot]) -> int:
        """Return how many slots belong to a variant that the request names."""
        return sum(slot.variant_id in self.asked.names("variant") for slot in slots)

    def _spent_already(self) -> str:
        """Return a warning if the requested budget is already spent, else an empty text."""
        budget = {
            kind: limit for kind, limit in self.what.get("budget", {}).items() if limit is not None
        }
        spent = self.asked.ledger.reader.spent_so_far(self.run.run_id) if budget else {}
        if not exhausted_kinds(budget, spent):
            return ""
        ends = "the run ends" if self.asked.is_owned else "the run will start no trial"
        return f"; that much is already spent: {ends}"

    def _unpause_text(self) -> str:
        ended = self.controls.pauses.keys() if self.what.get("all") else self.asked.request.latches
        paused = [latch for latch in self.controls.pauses if latch not in ended]
        stay = f"; still paused: {_names(paused)}" if paused else ""
        if self.changes_nothing:
            return f"{_names(ended) or 'nothing'} is not paused{stay}"
        return f"{_names(ended)} continues{stay}"


_UNOWNED = "no process runs it now"
"""The clause for a run without an owner."""


def _none_runs(trials: int) -> str:
    return f"{'it does' if trials == 1 else 'they do'} not run now"


def _killed(running: int, *, is_applied: bool) -> str:
    """Return a clause: trials will be, or are being, killed. Empty if no trial runs."""
    if not running:
        return ""
    are = "is" if running == 1 else "are"
    verb = f"{are} being killed" if is_applied else "will be killed"
    return f"{counted(running, 'running trial')} {verb}"


def _names(latches: Iterable[Latch]) -> str:
    return " and ".join(map(str, latches))
