"""Ask something of a run that may be running elsewhere: pause, limits, stop, cancelled slots.

What is asked is a row of the ledger, which the run's owner applies, now or when the run is resumed.
"""

from __future__ import annotations

import getpass
import math
import platform
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from labledger import clock
from labledger.api.ledger import Ledger, open_ledger
from labledger.api.run_state import stop_of
from labledger.errors import InvalidInput, Parameter, Problem, RequestRefused, require_text
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.ledger.control_requests import (
    ENDED_STAY,
    ControlRequest,
    Controls,
    Latch,
    cancellation_of,
    describe,
    kept_sentence,
)
from labledger.ledger.counts import exhausted_kinds
from labledger.ledger.database.model import RunInfo
from labledger.records import JsonObject
from labledger.records.identity import Slot
from labledger.records.json_codec import JsonForm
from labledger.records.outcomes import RequestKind
from labledger.text import clock_time, counted
from labledger.trial.attempt_notes import phase_s
from labledger.trial.contract import trial_folder

_MAX_REASON = 1_000
_POLL_S = 0.1
_KEYS: Mapping[RequestKind, tuple[str, ...]] = {
    RequestKind.PAUSE: ("variant", "task", "host"),
    RequestKind.UNPAUSE: ("variant", "task", "host", "all"),
    RequestKind.SET: ("max_concurrency", "at_most_per_host", "budget"),
    RequestKind.STOP: ("now",),
    RequestKind.CANCEL: ("slot", "variant"),
}
_FORMS: Mapping[str, str] = {
    **dict.fromkeys(("variant", "task", "host"), "a list of texts"),
    "slot": "a list of whole numbers",
    **dict.fromkeys(("now", "all"), "true or false"),
    **dict.fromkeys(("max_concurrency", "at_most_per_host"), "a whole number, or none"),
    "budget": "limits by kind, each a number or none",
}
_DURATIONS_SQL = """
SELECT variant_id, avg(duration_ms) FROM (
  SELECT variant_id, duration_ms FROM trials WHERE run_id = :run_id
  ORDER BY schedule_idx DESC LIMIT 500)
GROUP BY variant_id"""


@dataclass(frozen=True, slots=True)
class ControlReply(JsonForm):
    """What became of something that was asked of a run."""

    run_id: str
    request: ControlRequest | None
    """The request as it was stored; None if nothing was to be asked, and for a dry run."""
    text: str
    """What happens now, and when, for a person."""
    running: int
    """How many trials of what is meant run at present."""
    about_s: float | None = None
    """In how many seconds they will have ended, as earlier trials went; None if not known."""
    slots: int = 0
    """How many slots that are not finished are meant."""


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
    """Ask something of a run. Its owner applies it, or the next one when the run is resumed.

    Args:
        run_id: The run.
        kind: What is asked: ``pause``, ``unpause``, ``set``, ``stop`` or ``cancel``.
        what: What exactly, such as ``{"variant": ["treatment"]}``; docs/reference/control.md has
            the keys of each kind.
        because: Why, in at most 1,000 characters. It is stored.
        requested_by: Who asks; None for ``user@machine`` of this process.
        wait_s: For how many seconds to wait for the owner of the run to apply the request.
        dry_run: Ask for nothing, only return what would happen.
        lab_dir: The lab folder.

    Returns:
        The request, with its outcome if it was applied meanwhile. To pause what is paused already,
        or to go on with what is not, is no request.

    Raises:
        RunNotFound: The ledger holds no such run.
        InvalidInput: `what` names nothing of the run, or has a key or a value that `kind` does not.
        RequestRefused: The run is complete, or nobody runs a run that is to be stopped.

    Example:
        >>> import labledger
        >>> reply = labledger.request_control("demo", "pause", {"variant": ["treatment"]})
        >>> reply.request.kind
        <RequestKind.PAUSE: 'pause'>
    """
    from labledger.ledger.writer import LedgerWriter

    kind, what = RequestKind(kind), dict(what or {})
    if because is not None:
        require_text("the reason", Parameter("because"), because, _MAX_REASON)
    lab = LabFolder.find(lab_dir)
    with open_ledger(lab_dir=lab_dir) as ledger:
        preview = _Preview(ledger, ledger.run(run_id), kind, what)
        preview.check()
        reply = preview.reply()
        if dry_run or preview.changes_nothing:
            return reply
        with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
            asked_by = requested_by or _this_user()
            request = writer.add_request(run_id, kind, what, asked_by, because)
        reply = replace(reply, request=request)
        return _await_outcome(ledger, reply, wait_s) if preview.is_owned else reply


def _this_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _await_outcome(ledger: Ledger, reply: ControlReply, wait_s: float) -> ControlReply:
    """Wait for a request to be applied; return the reply with it as it is then."""
    until = clock.monotonic() + wait_s
    while reply.request is not None and reply.request.waits and clock.monotonic() < until:
        clock.sleep(_POLL_S)
        request = ledger.control_requests(reply.run_id)[reply.request.number - 1]
        reply = replace(reply, request=request)
    return reply


class _Preview:
    """What a request means for a run as it is now."""

    def __init__(self, ledger: Ledger, run: RunInfo, kind: RequestKind, what: JsonObject) -> None:
        self.ledger = ledger
        self.run = run
        self.kind = kind
        self.what = what
        self.is_owned = ledger.is_owned(run)
        self.requests = ledger.control_requests(run.run_id)
        waiting = (
            replace(each, applied_at="", outcome={"text": "", "slots_before": run.total_slots})
            for each in self.requests
            if each.waits and each.kind is not RequestKind.STOP
        )
        applied = (each for each in self.requests if not each.waits)
        self.controls = Controls.of([*applied, *waiting])
        """What the requests add up to, as if those that wait were applied."""
        self._request = ControlRequest(
            0,
            "",
            "",
            kind,
            what,
            applied_at="",
            outcome={"slots_before": run.total_slots, "text": ""},
        )

    @property
    def changes_nothing(self) -> bool:
        """Whether everything is so already that is asked for."""
        match self.kind:
            case RequestKind.PAUSE:
                return set(self._request.latches) <= self.controls.pauses.keys()
            case RequestKind.UNPAUSE if self.what.get("all"):
                return not self.controls.pauses
            case RequestKind.UNPAUSE:
                return self.controls.pauses.keys().isdisjoint(self._request.latches)
            case RequestKind.CANCEL:
                return self._unfinished == 0
            case RequestKind.STOP:
                stop = stop_of(self.run, self.requests)
                return stop is not None and bool(stop.what.get("now") or not self.what.get("now"))
            case _:
                return False

    # -- what is refused

    def check(self) -> None:
        """Raise `InvalidInput` or `RequestRefused` for a request that means nothing for the run."""
        if self.run.next_schedule_idx == self.run.total_slots:
            raise RequestRefused(
                f"run {self.run.run_id} is complete: there is nothing left to {self.kind.value}",
                hint=f"`labledger report {self.run.run_id}` has its results",
            )
        if self.kind is RequestKind.STOP and not self.is_owned:
            raise RequestRefused(
                f"run {self.run.run_id} is not running: no coordinator owns it",
                hint=f"`labledger clean --run {self.run.run_id} --dry-run` shows what it left; "
                f"`labledger resume {self.run.run_id}` continues it",
            )
        if self.run.regrades is not None and (
            self.kind is RequestKind.CANCEL or "budget" in self.what
        ):
            raise RequestRefused(
                f"run {self.run.run_id} grades trials that have run: none of them can be "
                "cancelled, and nothing is spent",
                hint=f"`labledger stop {self.run.run_id}` stops it",
            )
        problems = list(self._problems())
        if problems:
            raise InvalidInput("the request", problems)

    def _problems(self) -> Iterable[Problem]:
        unknown = self.what.keys() - set(_KEYS[self.kind])
        for key in sorted(unknown):
            expected = ", ".join(_KEYS[self.kind])
            yield Problem(key, f"`{self.kind.value}` has no such key; expected {expected}")
        if self.kind in (RequestKind.SET, RequestKind.CANCEL) and not self.what:
            expected = " or ".join(_KEYS[self.kind])
            yield Problem(
                self.kind.value, f"found nothing to {self.kind.value}; expected {expected}"
            )
        known_keys = sorted(self.what.keys() - unknown)
        ill_formed = [key for key in known_keys if not _has_form(key, self.what[key])]
        for key in ill_formed:
            yield Problem(key, f"found {self.what[key]!r}; expected {_FORMS[key]}")
        if unknown or ill_formed:
            return
        known = [variant.variant_id for variant in self.run.variants]
        for name in self._names("variant"):
            if name not in known:
                yield Problem(
                    Parameter("variant"), f"found {name!r}; expected one of {', '.join(known)}"
                )
        for glob in self._names("task"):
            if self.kind is RequestKind.PAUSE and not any(
                fnmatchcase(task, glob) for task in self.ledger.task_ids(self.run.run_id)
            ):
                yield Problem(Parameter("task"), f"no task of the run fits {glob!r}")
        yield from self._host_problems()
        for idx in self._names("slot"):
            yield from self._slot_problems(idx)
        if self.kind is RequestKind.SET:
            yield from self._limit_problems()

    def _host_problems(self) -> Iterable[Problem]:
        for name in self._names("host"):
            if not name:
                yield Problem(Parameter("host"), f"found {name!r}; expected a host's name")
            elif self.run.on is None and self.kind is RequestKind.PAUSE:
                text = f"found {name!r}; the run is on this machine alone, and not on a cluster"
                yield Problem(Parameter("host"), text, hint="pause the run instead")

    def _slot_problems(self, idx: Any) -> Iterable[Problem]:
        last = self.run.total_slots - 1
        if not 0 <= idx <= last:
            yield Problem(Parameter("slot"), f"found {idx!r}; expected a number from 0 to {last}")
        elif idx < self.run.next_schedule_idx:
            text = f"slot {idx} is committed already; its result stays"
            yield Problem(Parameter("slot"), text)
        elif idx in self._finished:
            text = f"slot {idx} has finished, and waits to be committed; its result stays"
            yield Problem(Parameter("slot"), text)
        elif self._cancels_again(idx):
            text = f"slot {idx} is cancelled already; it is committed as such in its turn"
            yield Problem(Parameter("slot"), text)
        elif idx in self._kept:
            earlier = self._kept[idx].supersedes
            text = (
                f"slot {idx} runs slot {earlier} again, which counts in the pass rate; cancelled, "
                "it would be left out"
            )
            yield Problem(Parameter("slot"), text)

    def _cancels_again(self, idx: int) -> bool:
        slot = self.ledger.reader.slot(self.run.run_id, idx)
        return self.controls.cancellation(slot) is not None

    @cached_property
    def _finished(self) -> frozenset[int]:
        """The slots whose result waits to be committed."""
        slots = self.ledger.reader.open_slots(self.run.run_id)
        return frozenset(slot.schedule_idx for slot in slots if slot.final)

    def _limit_problems(self) -> Iterable[Problem]:
        from labledger.execution.budget import check_limits
        from labledger.experiment.plan import ExperimentPlan

        for name in ("max_concurrency", "at_most_per_host"):
            number = self.what.get(name)
            if number is not None and number < 1:
                yield Problem(Parameter(name), f"found {number!r}; expected 1 or more, or none")
        if self.what.get("at_most_per_host") is not None and self.run.on is None:
            text = "the run is on this machine alone, and not on a cluster"
            hint = "`max_concurrency=` limits how many trials run at once"
            yield Problem(Parameter("at_most_per_host"), text, hint=hint)
        budget = self.what.get("budget", {})
        wrong = [kind for kind in budget if kind not in ("cost_usd", "tokens")]
        if wrong:
            yield Problem("budget", f"found {wrong[0]!r}; expected cost_usd or tokens")
        elif budget:
            limits = {kind: math.inf if each is None else each for kind, each in budget.items()}
            check_limits(ExperimentPlan.of_document(self.run.resolved), limits)

    def _names(self, key: str) -> list[Any]:
        names: list[Any] = self.what.get(key, [])
        return names

    # -- what will happen

    def reply(self) -> ControlReply:
        """Return what happens now, and when."""
        running = self._running() if self.is_owned else []
        meant = [slot for slot, host, _ in running if self._means(slot, host)]
        mean_ms = self._durations() if running else {}
        for_s = {slot.schedule_idx: elapsed_s for slot, _, elapsed_s in running}
        left = [
            max(1.0, mean / 1000 - for_s[slot.schedule_idx])
            for slot in meant
            if (mean := mean_ms.get(slot.variant_id)) is not None
        ]
        about_s = max(left, default=None)
        text = self._text(len(meant), about_s)
        return ControlReply(self.run.run_id, None, text, len(meant), about_s, self._unfinished)

    def _running(self) -> list[tuple[Slot, str, float]]:
        """Return each slot whose trial runs, with its host and for how many seconds it does.

        Trials that were dispatched and have not begun are prepared: folders on this machine say
        so; elsewhere, those that were dispatched last are, and the time is that since dispatch.
        """
        run_id, now = self.run.run_id, clock.now()
        folder = LabFolder(self.ledger.reader.path.parent).run_folder(run_id)
        attempts = {s.schedule_idx: s.attempt for s in self.ledger.reader.open_slots(run_id)}
        here, elsewhere = [], []
        for slot, host, since in self.ledger.open_slots(run_id):
            dispatched_s = max(0.0, (now - clock.parse(since)).total_seconds())
            if host != platform.node():
                elsewhere.append((slot, host, dispatched_s))
                continue
            idx = slot.schedule_idx
            elapsed_s = phase_s(trial_folder(folder, idx, attempts.get(idx, 1)), dispatched_s)
            if elapsed_s is not None:
                here.append((slot, host, elapsed_s))
        return here + elsewhere[: self._at_once(len(elsewhere))]

    def _at_once(self, dispatched: int) -> int | None:
        """Return how many trials of the run go on at once; None if that is not known.

        The hosts of a cluster decide it, or an option of the command that owns the run, which is
        stored nowhere: more are dispatched then than the experiment's own number allows.
        """
        if self.controls.max_concurrency is not None or self.run.on is not None:
            return self.controls.max_concurrency
        from labledger.execution.executor import capacity_of

        width: int | None = self.run.resolved.get("design", {}).get("max_concurrency")
        if width is None or dispatched > capacity_of(width):
            return None
        return width

    def _means(self, slot: Slot, host: str) -> bool:
        """Return whether a slot with a trial is among those that are meant."""
        if self.kind is RequestKind.CANCEL:
            return slot.schedule_idx in self._names("slot") or slot.variant_id in self._names(
                "variant"
            )
        if self.kind in (RequestKind.PAUSE, RequestKind.UNPAUSE):
            return any(
                latch.holds_slot(slot) or latch.holds_host(host) for latch in self._request.latches
            )
        return True

    def _durations(self) -> Mapping[str, float]:
        """Return the mean duration of the latest trials of each variant, in milliseconds."""
        rows = self.ledger.rows(_DURATIONS_SQL, {"run_id": self.run.run_id})[1]
        return {variant: mean for variant, mean in rows if mean is not None}

    @cached_property
    def _kept(self) -> Mapping[int, Slot]:
        """The slots that are not cancelled, because they run again what counts."""
        reader = self.ledger.reader
        return {s.schedule_idx: s for s in reader.slots_that_replace_verdicts(self.run.run_id)}

    @cached_property
    def _unfinished(self) -> int:
        """How many slots without a final result a cancellation names."""
        if self.kind is not RequestKind.CANCEL:
            return 0
        kept = self._finished | self._kept.keys()
        cancellation = cancellation_of(self._request, self.run.total_slots, frozenset(kept))
        slots = self.ledger.reader.slots(self.run.run_id, self.run.next_schedule_idx)
        return sum(
            cancellation.includes(slot) and self.controls.cancellation(slot) is None
            for slot in slots
        )

    def _text(self, running: int, about_s: float | None) -> str:
        """Return what happens now, for a person."""
        about = "" if about_s is None else f", about {clock_time(about_s)}"
        trials = counted(running, "trial")
        match self.kind:
            case RequestKind.PAUSE if self.changes_nothing:
                return f"{_names(self._request.latches)} is paused already"
            case RequestKind.PAUSE:
                what = _names(self._request.latches)
                run_on = f"{trials} {'runs' if running == 1 else 'run'} on{about}"
                none = "none of its trials runs now" if self.is_owned else "nobody runs it now"
                on = run_on if running else none
                return f"{what}: nothing more starts; {on}"
            case RequestKind.UNPAUSE:
                return self._unpause_text()
            case RequestKind.STOP if self.changes_nothing:
                verb = "runs" if running == 1 else "run"
                return f"it is stopping already; {trials} {verb} on{about}"
            case RequestKind.STOP if self.what.get("now"):
                return f"stopping now: {trials} killed; their slots run again on resume"
            case RequestKind.STOP:
                verbs = ("runs", "is") if running == 1 else ("run", "are")
                text = f"{trials} {verbs[0]} on{about}, and {verbs[1]} stored"
                return f"stopping: nothing more starts; {text}"
            case RequestKind.CANCEL if self.changes_nothing:
                what = self._request.phrase.removeprefix("cancel ")
                return f"{what}: no slot is left to cancel"
            case RequestKind.CANCEL:
                killed = f"{trials} of them killed" if running else "none of their trials runs now"
                if not self.is_owned:
                    killed = f"nobody runs it now, and {ENDED_STAY}"
                cancelled = f"{counted(self._unfinished, 'slot')} cancelled for good; {killed}"
                stay = sum(
                    slot.variant_id in self._names("variant") for slot in self._kept.values()
                )
                rest = f"; {kept_sentence(stay)}" if stay else ""
                if finished := self._named_finished:
                    stays = "stays" if finished == 1 else "stay"
                    rest += f"; {counted(finished, 'slot')} that finished {stays}"
                what = self._request.phrase.removeprefix("cancel ")
                return f"{what}: {cancelled}{rest}"
            case _:
                since = "from the next dispatch on" if self.is_owned else "once it is resumed"
                return f"{describe(self.kind, self.what)}, {since}{self._spent_already()}"

    @property
    def _named_finished(self) -> int:
        """How many slots that have finished belong to a variant that is to be cancelled."""
        reader, variants = self.ledger.reader, self._names("variant")
        slots = (reader.slot(self.run.run_id, idx) for idx in self._finished)
        return sum(slot.variant_id in variants for slot in slots)

    def _spent_already(self) -> str:
        """Return a warning if a budget is to be set that is spent already, else nothing."""
        budget = {
            kind: limit for kind, limit in self.what.get("budget", {}).items() if limit is not None
        }
        spent = self.ledger.reader.spent_so_far(self.run.run_id) if budget else {}
        if not exhausted_kinds(budget, spent):
            return ""
        ends = "the run ends" if self.is_owned else "it will not go on"
        return f"; that much is spent already: {ends}"

    def _unpause_text(self) -> str:
        ended = self.controls.pauses.keys() if self.what.get("all") else self._request.latches
        left = [latch for latch in self.controls.pauses if latch not in ended]
        stay = f"; still paused: {_names(left)}" if left else ""
        if self.changes_nothing:
            return f"{_names(ended) or 'nothing'} is not paused{stay}"
        return f"{_names(ended)} goes on{stay}"


def _has_form(key: str, value: Any) -> bool:
    match key:
        case "variant" | "task" | "host":
            return isinstance(value, list) and all(isinstance(each, str) for each in value)
        case "slot":
            return isinstance(value, list) and all(type(each) is int for each in value)
        case "now" | "all":
            return isinstance(value, bool)
        case "budget":
            return isinstance(value, dict) and all(
                each is None or type(each) in (int, float) for each in value.values()
            )
        case _:
            return value is None or type(value) is int


def _names(latches: Iterable[Latch]) -> str:
    return " and ".join(map(str, latches))
