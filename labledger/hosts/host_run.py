"""One run on a host: its attempts from acceptance to acknowledgement.

The host decides alone what happens with an attempt that belongs to it. It writes durably that it
has accepted one before anything of it exists, so an attempt that was never accepted has certainly
not run. It runs accepted ones with the executor of local runs, keeps results in the outbox until
they are acknowledged, and tries again by itself what its engine or disk prevented. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from labledger.clock import Backoff
from labledger.engine.engine import EnginePool
from labledger.errors import DiskFull, EngineUnavailable, LabLedgerError, LedgerError
from labledger.execution.executor import RunRecords
from labledger.execution.local_executor import LocalExecutor, remove_containers
from labledger.hosts.host_inputs import HostInputs
from labledger.hosts.host_messages import (
    AnotherHost,
    AttemptKey,
    Cancellation,
    CleanUp,
    Exchange,
    ExchangeReply,
    Failure,
    ForgetAttempts,
    Removal,
    ResultMessage,
    RunSetup,
    SupersededEpoch,
    input_digests,
)
from labledger.hosts.host_run_folder import HostRunFolder, Outbox, attempt_name
from labledger.records.attempt_result import AttemptResult
from labledger.records.outcomes import NOT_STARTED
from labledger.trial import attempt_notes
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.contract import Labels
from labledger.trial.disk_space import FullDisks
from labledger.trial.life import shared_files
from labledger.trial.life.container_start import attempt_of, kill_container
from labledger.trial.life.start_limiter import RunPermits, StartLimiter, StartRefused, WaitAbandoned

MAX_RESULT_BYTES = 8 << 20
"""A reply holds results until they have so many bytes together."""

_RECORD_BYTES = 8192
"""What a result counts beside its artifacts."""

REFUSALS_BEFORE_PROBLEM = 5
"""After so many attempts in a row that could not be started, the host tries them again itself."""

_FIRST_RETRY_S = 0.5
_MAX_RETRY_S = 10.0

_FORGET_TIMEOUT_S = 20.0
"""How long it may take until the threads of attempts have noticed that these are forgotten."""


@dataclass(slots=True)
class _Accepted:
    """An attempt that this process works on."""

    spec: AttemptSpec
    """With the paths of this host."""
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_RETRY_S, _MAX_RETRY_S))


@dataclass(slots=True)
class HostRun:
    """The attempts of one run on this host."""

    folder: HostRunFolder
    host: str
    """The name of this host."""
    slots: int
    permits: RunPermits
    """Shared by all runs of the host."""
    inputs: HostInputs
    engines: EnginePool
    engine_root: Path | None
    lacks_space: Callable[[], bool]
    """Whether a disk of the host is too full for a trial to be started."""
    changed: threading.Condition
    """Notified when there is something to report. Its lock guards everything below."""
    epoch: int = 0
    _limiter: StartLimiter = field(init=False)
    _executor: LocalExecutor = field(init=False)
    _outbox: Outbox = field(init=False)
    _open: dict[AttemptKey, _Accepted] = field(default_factory=dict)
    _ended: set[AttemptKey] = field(default_factory=set)
    """Those with a result in the outbox."""
    _failures: dict[AttemptKey, Failure] = field(default_factory=dict)
    _removed: dict[AttemptKey, int] = field(default_factory=dict)
    """The epoch in which each was acknowledged or cancelled. It is not accepted in it again."""
    _unconfirmed: set[AttemptKey] = field(default_factory=set)
    """Removals and cancellations that have ended, until the coordinator knows it."""
    _leaving: dict[AttemptKey, int] = field(default_factory=dict)
    """Those whose removal or cancellation has begun and not ended, with the epoch."""
    _forgotten: set[AttemptKey] = field(default_factory=set)
    """Open attempts whose results are dropped when they end."""
    _returning: dict[AttemptKey, AttemptSpec] = field(default_factory=dict)
    """Attempts that a later coordinator wants to run while they are still being cancelled."""
    _warnings: list[str] = field(default_factory=list)
    _granted_until: float = 0.0
    _mark: str | None = None
    """The mark that is known to be on the disk."""
    _is_lost: bool = False
    """Whether the coordinator of this epoch has said that the host was declared lost."""
    _last_problem: str = ""
    _problem: str | None = None
    """Why an attempt could not go on, until it is tried again."""
    _refusals_in_row: int = 0
    _last_refusal: float = 0.0
    _setup_done: bool = False
    _unwanted: dict[AttemptKey, CleanUp] = field(default_factory=dict)
    """Attempts that had not ended when they were to be cleaned up: each is when it ends."""
    _compared: set[str] = field(default_factory=set)
    """Tars of files of tasks of which an earlier process may have unpacked one, compared since."""
    _closed: bool = False

    def __post_init__(self) -> None:
        self._limiter = StartLimiter(
            self.slots,
            permits=self.permits,
            clock=time.monotonic,
            owns_attempts=True,
            is_held_back=self.lacks_space,
        )
        self._limiter.allow_until(0.0)
        self._executor = LocalExecutor(self.slots, FullDisks(), self._limiter)
        self._outbox = Outbox(self.folder.outbox)
        self._ended = set(self._outbox.keys())
        self.epoch = self.folder.read_epoch() or 0

    # -- orders of the coordinator

    def enter_epoch(self, setup: RunSetup) -> None:
        """Serve the coordinator of an epoch from now on.

        Raises `SupersededEpoch` if a later one has been seen.
        """
        with self.changed:
            if setup.epoch < self.epoch:
                raise SupersededEpoch(
                    f"{setup.run.run_id} belongs to the coordinator of epoch {self.epoch}; "
                    f"that of epoch {setup.epoch} has lost it"
                )
            if setup.epoch > self.epoch or self.folder.read_epoch() is None:
                self.folder.write_epoch(setup.epoch)
                self.epoch = setup.epoch
                self._granted_until = 0.0
                self._limiter.allow_until(0.0)
                self._limiter.reopen()
                self._is_lost = False
                self._failures.clear()
                self._unconfirmed.clear()

    def exchange(self, request: Exchange) -> ExchangeReply:
        """Carry out the orders, wait for something to report, and return it."""
        self.enter_epoch(request.setup)
        self._keep_mark(request)
        attempts = self._with_staged_files(request.setup, request.attempts)
        with self.changed:
            self._is_lost = self._is_lost or request.is_lost
            if self._is_lost:
                # Taken back, also from what is prepared; a request that was delayed is too late.
                self._limiter.allow_until(0.0)
                self._limiter.close()
            elif request.grant_until is not None:
                # A request that was delayed must not take back what a later one has allowed.
                self._granted_until = max(self._granted_until, request.grant_until)
                self._limiter.allow_until(self._granted_until)
            if request.stopping:
                self._limiter.close()
        for removal in request.removals:
            self._remove(removal)
        for cancellation in request.cancellations:
            self._cancel(cancellation)
        for spec in request.kills:
            self._kill(spec)
        for spec in attempts:
            self._accept(spec)
        with self.changed:
            self._unconfirmed -= request.confirmed
            self.changed.wait_for(lambda: self._closed or self._has_news(request), request.wait_s)
        return self._report(request)

    def _keep_mark(self, request: Exchange) -> None:
        """Keep the coordinator's mark. Raises `AnotherHost` if it has worked with another machine.

        That is one of which this is a copy, or this one before its folder was lost or restored:
        attempts that began there would begin here again.
        """
        with self.changed:
            is_strange = any(
                not self.folder.has_accepted(key) and key not in self._ended
                for key in request.delivered_before
            )
            if self._mark != request.mark:
                kept = self.folder.read_mark()
                is_known = kept is None and self.host in request.setup.known_hosts
                is_strange |= kept != request.mark and (request.is_marked or is_known)
            if is_strange:
                raise AnotherHost(
                    f"the machine that answers as {self.host} lacks what that host has of run "
                    f"{request.setup.run.run_id}: it is a copy of it, or its folder was deleted or "
                    "restored. Start the machine that began the trials, or declare the host lost"
                )
            if self._mark != request.mark:
                self.folder.write_mark(request.mark)
                self._mark = request.mark

    def _with_staged_files(
        self, setup: RunSetup, attempts: Sequence[AttemptSpec]
    ) -> Sequence[AttemptSpec]:
        """Return the attempts whose programs are as the run was started with; others have failed.

        The run's files are staged once. Those that an earlier process staged are compared.
        """
        accepted = []
        for spec in attempts:
            with self.changed:
                is_known = spec.key in self._open or spec.key in self._ended
            try:
                if not is_known:
                    self._stage_files(setup, input_digests(spec))
                accepted.append(spec)
            except LedgerError as error:
                self._fail(spec.key, "uncollected", f"{spec.host}: {error.message}")
        return accepted

    def _stage_files(self, setup: RunSetup, digests: Collection[str]) -> None:
        """Stage or compare the run's files, and compare what was unpacked of these artifacts.

        The host must have their artifacts. Raises `LedgerError` for a difference.
        """
        with self.changed:
            store, run_folder = self.inputs.store, self.folder.path
            if not self._setup_done:
                deps = self.folder.dependencies
                shared_files.stage_dependencies(setup.files, store, deps, sealed=setup.is_sealed)
                self._setup_done = True
            new = sorted(set(digests) - self._compared)
            shared_files.require_unchanged_files_of_tasks(run_folder, store, new)
            self._compared.update(new)

    def _accept(self, spec: AttemptSpec) -> None:
        """Accept an attempt, unless that has been done; run it, or go on with it."""
        key = spec.key
        with self.changed:
            if self._leaving.get(key, self.epoch) != self.epoch:
                self._returning[key] = spec
                return
            is_over = self._removed.get(key) == self.epoch or key in self._leaving or self._is_lost
            if self._closed or key in self._open or key in self._ended or is_over:
                return
            self._failures.pop(key, None)
            was_accepted = self.folder.has_accepted(key)
            here = self._on_this_host(spec, container_may_exist=was_accepted)
            if not was_accepted:
                attempt_notes.mark_not_started(here.folder)
                self.folder.accept(key)
            self.inputs.link(input_digests(spec), here.plan.store_root)
            self._open[key] = _Accepted(here)
        self._submit(key, here)

    def _submit(self, key: AttemptKey, spec: AttemptSpec) -> None:
        if not self._closed:
            self._executor.submit(spec).add_done_callback(partial(self._attempt_ended, key))

    def _on_this_host(self, spec: AttemptSpec, *, container_may_exist: bool) -> AttemptSpec:
        """Return an attempt with the paths of this host."""
        plan = replace(
            spec.plan,
            run_dir=self.folder.path,
            store_root=self.folder.store_of(spec.key),
            engine_root=self.engine_root,
        )
        here = replace(spec, plan=plan, container_may_exist=container_may_exist)
        return here.on_host(spec.host)

    def _remove(self, removal: Removal) -> None:
        """Remove what an acknowledged attempt left: its container first, its result last."""
        key = removal.spec.key
        if not self._begin_leaving(key):
            return
        here = self._on_this_host(removal.spec, container_may_exist=True)
        future = self._executor.remove(here, keep_folder=removal.keep_folder)
        future.add_done_callback(partial(self._left, key, is_final=True))

    def _cancel(self, cancellation: Cancellation) -> None:
        """Forget the result of an attempt that will run again, and remove what it left."""
        key = cancellation.spec.key
        if not self._begin_leaving(key):
            return
        self._outbox.discard(key)
        with self.changed:
            self._ended.discard(key)
        here = self._on_this_host(cancellation.spec, container_may_exist=True)
        future = self._executor.cancel(here, cancellation.reason)
        future.add_done_callback(partial(self._left, key, is_final=False))

    def _begin_leaving(self, key: AttemptKey) -> bool:
        """Return whether a removal is to be carried out: not if it has been, or is in progress."""
        with self.changed:
            if key in self._leaving or self._removed.get(key) == self.epoch or self._closed:
                return False
            self._leaving[key] = self.epoch
            return True

    def _left(self, key: AttemptKey, future: Future[None], *, is_final: bool) -> None:
        """Record that a removal has ended. One that failed is repeated by the next cleanup."""
        error = None if future.cancelled() else future.exception()
        if error is not None:
            with self.changed:
                self._warnings.append(f"attempt {attempt_name(key)} was not cleaned up: {error}")
        elif is_final and not future.cancelled():
            self._forget(key)
        self._end_leaving(key)

    def _end_leaving(self, key: AttemptKey) -> None:
        """Record that nothing of an attempt is left, and accept it again if that was asked."""
        self.folder.delete_store(key)
        with self.changed:
            self._ended.discard(key)
            self._removed[key] = self._leaving.pop(key)
            self._unconfirmed.add(key)
            returning = self._returning.pop(key, None)
            self.changed.notify_all()
        if returning is not None:
            self._accept(returning)

    def _forget(self, key: AttemptKey) -> None:
        """Delete the result and the record of acceptance of an attempt that is removed."""
        self._outbox.discard(key)
        self.folder.forget(key)

    def _kill(self, spec: AttemptSpec) -> None:
        try:
            with self.engines.engine() as engine:
                kill_container(engine, spec)
        except LabLedgerError as error:
            with self.changed:
                self._warnings.append(error.message)

    # -- what becomes of attempts

    def _attempt_ended(self, key: AttemptKey, future: Future[AttemptResult]) -> None:
        """Put a result into the outbox, or try again, or report why there is none."""
        with self.changed:
            if key in self._forgotten:
                self._forgotten.discard(key)
                self._open.pop(key, None)
                self.changed.notify_all()
                return
        try:
            result = future.result()
            if self._must_retry(result):
                self._retry_later(key, result.message or "its container could not be started")
                return
            self._outbox.put(key, result)
        except (WaitAbandoned, CancelledError):
            return
        except StartRefused:
            self._fail(key, "refused", "the run is stopping")
            return
        except (EngineUnavailable, DiskFull, OSError) as error:
            self._retry_later(key, str(error))
            return
        except LabLedgerError as error:
            self._fail(key, "uncollected", error.message)
            return
        except Exception as error:
            self._fail(key, "uncollected", f"{type(error).__name__}: {error}")
            return
        with self.changed:
            self._open.pop(key, None)
            self._ended.add(key)
            self.changed.notify_all()
        self._clean_up_unwanted(key)

    def _clean_up_unwanted(self, key: AttemptKey) -> None:
        """Remove what an attempt left that was to be cleaned up before it ended."""
        with self.changed:
            request = self._unwanted.pop(key, None)
        if request is not None:
            self._limiter.refuse_no_more(key[0])
            try:
                warnings = self.clean_up(replace(request, durable=frozenset({key})))
            except (LabLedgerError, OSError) as error:
                warnings = [f"attempt {attempt_name(key)} was not cleaned up: {error}"]
            with self.changed:
                self._warnings += warnings

    def _must_retry(self, result: AttemptResult) -> bool:
        """Return whether this host, not the trial, seems to be why a trial could not be started."""
        with self.changed:
            if result.reason not in NOT_STARTED:
                self._refusals_in_row = 0
                return False
            if self._executor.last_start_created > self._last_refusal:
                self._refusals_in_row = 0
            self._refusals_in_row += 1
            self._last_refusal = time.monotonic()
            return self._refusals_in_row > REFUSALS_BEFORE_PROBLEM

    @property
    def problem(self) -> str | None:
        """Why attempts cannot go on at present, None if they can."""
        with self.changed:
            can_start = self._executor.last_start_created > self._last_refusal
            if self._refusals_in_row > REFUSALS_BEFORE_PROBLEM and not can_start:
                return f"no trial could be started: {self._last_problem}"
            return self._problem

    def _retry_later(self, key: AttemptKey, problem: str) -> None:
        """Go on with an attempt after a while: what prevented it was this host."""
        with self.changed:
            accepted = self._open.get(key)
            if accepted is None or self._closed:
                return
            self._problem = self._last_problem = problem
            accepted.spec = replace(accepted.spec, container_may_exist=True).on_host(
                accepted.spec.host
            )
            delay_s = accepted.backoff.next_s()
            self.changed.notify_all()
        timer = threading.Timer(delay_s, self._try_again, (key, accepted.spec))
        timer.daemon = True
        timer.start()

    def _try_again(self, key: AttemptKey, spec: AttemptSpec) -> None:
        with self.changed:
            self._problem = None
        self._submit(key, spec)

    def _fail(self, key: AttemptKey, kind: str, message: str) -> None:
        with self.changed:
            self._open.pop(key, None)
            self._failures[key] = Failure(key, kind, message)
            self.changed.notify_all()
        self._clean_up_unwanted(key)

    # -- reports

    def _has_news(self, request: Exchange) -> bool:
        reported = (self._ended - self._leaving.keys()) | self._failures.keys()
        return bool(reported - request.received or self._warnings or self._unconfirmed)

    def _report(self, request: Exchange) -> ExchangeReply:
        with self.changed:
            waiting = sorted(self._ended - request.received - self._leaving.keys())
            for key in self._failures.keys() & request.received:
                del self._failures[key]
            failures = tuple(self._failures.values())
            warnings, self._warnings = tuple(self._warnings), []
            removed = tuple(self._unconfirmed)
        restarts = tuple((spec.key, why) for spec, why in self._executor.restart_notices())
        created = self._executor.last_start_created
        age_s = time.monotonic() - created
        return ExchangeReply(
            session=request.session,
            monotonic=time.monotonic(),
            results=tuple(self._results(waiting)),
            failures=failures,
            removed=removed,
            started=self.started() if request.wants_state else frozenset(),
            restarts=restarts,
            paused=tuple(spec.key for spec in self._executor.paused_attempts()),
            warnings=warnings,
            last_start_age_s=age_s if age_s < float("inf") else None,
        )

    def _results(self, keys: list[AttemptKey]) -> Iterator[ResultMessage]:
        """Yield results for one reply: the first, and more while they are small."""
        size = 0
        for key in keys:
            if size > MAX_RESULT_BYTES:
                return
            if (message := self._outbox.get(key)) is not None:
                size += sum(map(len, message.contents.values())) + _RECORD_BYTES
                yield message

    def started(self) -> frozenset[AttemptKey]:
        """Return the attempts for which a container was started, as far as this host knows."""
        with self.changed:
            keys = self._ended | self._open.keys()
        return frozenset(
            key
            for key in keys | set(self.folder.accepted())
            if key in self._ended or not self.folder.is_marked_not_started(key)
        )

    # -- cleanup

    def attempts(self, ledger_id: str, run_id: str) -> frozenset[AttemptKey]:
        """Return every attempt of the run of which this host has anything."""
        keys = self.folder.attempts() | set(self._outbox.keys())
        labels = {Labels.LEDGER: ledger_id, Labels.RUN: run_id}
        with self.engines.engine() as engine:
            for container in engine.containers_with_labels(labels):
                if (key := attempt_of(container.labels)) is not None:
                    keys.add(key)
        return frozenset(keys)

    def clean_up(self, request: CleanUp) -> list[str]:
        """Remove what durable attempts left. Return a warning for what could not be removed.

        One that has not ended, on a host that was declared lost, is ended, and removed after that.
        """
        with self.changed:
            durable = request.durable - self._open.keys()
            unwanted = {key: self._open[key].spec for key in request.durable - durable}
            self._unwanted |= dict.fromkeys(unwanted, request)
        self._limiter.refuse(idx for idx, _ in unwanted)
        for key, spec in unwanted.items():
            if not self.folder.is_marked_not_started(key):
                self._kill(spec)
        records = self._records(request.setup, durable, request.kept)
        warnings = self._executor.clean_up(records)
        for key in durable:
            self._forget(key)
            self.folder.delete_store(key)
            with self.changed:
                self._ended.discard(key)
                self._failures.pop(key, None)
                self._removed[key] = self.epoch
        if not self.attempts(request.setup.run.ledger_id, request.setup.run.run_id):
            self._delete_shared_files()
        return warnings

    def forget_attempts(self, request: ForgetAttempts) -> list[str]:
        """Drop what unfinished attempts have done, and remove their containers.

        The next coordinator runs them again, and their notes say why. Until then, nothing of the
        run is started. Return a warning for what could not be removed.
        """
        self._limiter.close()
        keys = {key for key in request.keys if self._begin_leaving(key)}
        warnings = []
        with self.changed:
            self._forgotten |= self._open.keys() & keys
        for key in keys:
            attempt_notes.record_cancellation(self.folder.trial(key), request.reason)
            self._outbox.discard(key)
        records = self._records(request.setup, keys)
        try:
            with self.engines.engine() as engine:
                remove_containers(engine, records)
        except LabLedgerError as error:
            warnings.append(f"containers were not removed: {error.message}")
        with self.changed:
            self.changed.wait_for(lambda: not self._open.keys() & keys, _FORGET_TIMEOUT_S)
            late = sorted(self._open.keys() & keys)
        warnings += [f"attempt {attempt_name(key)} has not ended yet" for key in late]
        for key in keys:
            self._end_leaving(key)
        return warnings

    def _records(
        self, setup: RunSetup, durable: Collection[AttemptKey], kept: Collection[AttemptKey] = ()
    ) -> RunRecords:
        """Return what a cleanup asks: which attempts may go, and which folders stay."""
        return RunRecords(
            ledger_id=setup.run.ledger_id,
            run_id=setup.run.run_id,
            run_dir=self.folder.path,
            is_durable=lambda idx, attempt: (idx, attempt) in durable,
            keeps_folder=lambda idx, attempt: (idx, attempt) in kept,
        )

    def _delete_shared_files(self) -> None:
        """Delete what attempts shared: none is left. A further one gets it again."""
        with self.changed:
            if self._open or self._leaving:
                return
            self.folder.delete_shared_files()
            self._setup_done = False
            self._compared.clear()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Stop working on attempts. Their containers go on; the next process adopts them."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self._executor.abandon()
        yield
        self._executor.shutdown()
        self._executor.close()
