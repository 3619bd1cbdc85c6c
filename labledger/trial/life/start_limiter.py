"""Limit how many trials run, start and collect at once, and give attempts their collaborators.

The `StartLimiter` also knows until when the run's lease is certainly valid (`allow_until`). A trial
must ask it before it creates, starts or deletes anything that another coordinator may use, because
this process may have been suspended. All threads of an executor share one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from labledger import clock
from labledger.engine.engine import Engine
from labledger.errors import EngineUnavailable, LabLedgerError
from labledger.trial import attempt_notes
from labledger.trial.container_spec import ContainerSpec
from labledger.trial.life.helper_containers import ModelsHelper, restart_stopped_proxies


class StartRefused(LabLedgerError):
    """This process does not start the trial, because the run is stopping or a user recalled it.

    Nothing of the trial is left behind, except as `LeftToNextProcess` says.
    """


class LeftToNextProcess(StartRefused):
    """The run is stopping, and an agent has run in the trial, or may have.

    The trial stays as it is, and the next process continues it.
    """


class WaitAbandoned(LabLedgerError):
    """The run is being abandoned.

    This process stops waiting for the trial; its container continues.
    """


MAX_STARTING = 8
"""How many containers are created or started at once."""

MAX_COLLECTING = 2
"""How many ended trials are collected at once. Each may have left tens of megabytes."""

_MAX_ENGINE_WAIT_S = 5.0
"""Seconds that one engine call waits for a container, between checks for `abandon`."""

_MAX_FILE_WAIT_S = 1.0
"""Seconds for which files are polled between two requests to the engine."""

_FILE_POLL_S = 0.03
"""Seconds between two looks at files that a container is to write."""


class RunPermits:
    """A pool of `width` permits to run a trial. Limiters of several runs may share it.

    A free permit goes to the run with the fewest running trials, and there to the lowest turn.
    Thread-safe.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.changed = threading.Condition()
        """Held while the permits, or a limiter that shares them, change."""
        self.free = width
        """How many permits are free; negative while more trials run than are allowed."""
        self.waiting: list[tuple[StartLimiter, int]] = []
        """The limiters and turns that wait for a permit."""

    @property
    def busy(self) -> int:
        """How many permits are taken."""
        return self.width - self.free

    def set_width(self, width: int) -> None:
        """Change how many trials run at once. Running trials continue."""
        with self.changed:
            self.free += width - self.width
            self.width = width
            self.changed.notify_all()

    def next_waiting(self) -> tuple[StartLimiter, int] | None:
        """Return the limiter and turn that get the next free permit, or None.

        Turns that may not start are skipped.
        """
        candidates = [
            candidate for candidate in self.waiting if candidate[0].lets_start(candidate[1])
        ]
        return min(
            candidates,
            key=lambda candidate: (candidate[0].running_trials, candidate[1]),
            default=None,
        )


class StartLimiter:
    """Lets at most as many trials run at once as there are permits, while others prepare.

    It also stops trials from touching folders and containers once the run may belong to another
    coordinator. A *turn* identifies a trial; the lowest starts first. Thread-safe.
    """

    def __init__(
        self,
        width: int,
        *,
        permits: RunPermits | None = None,
        clock: Callable[[], float] = clock.unix_time,
        owns_attempts: bool = False,
        is_held_back: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a limiter with `width` permits, or with `permits` shared with other runs.

        While `is_held_back` returns true, prepared trials are not started. It is called whenever
        something changes, such as by `allow_until`.

        `clock` is the clock of `allow_until`. With `owns_attempts`, the attempts belong to this
        process for ever, as a host's do, and only their starts need permission.
        """
        self._permits = permits or RunPermits(width)
        self._changed = self._permits.changed
        self._clock = clock
        self._owns_attempts = owns_attempts
        self._is_held_back = is_held_back
        self.running_trials = 0
        """How many trials hold a permit."""
        self.last_start_created = -math.inf
        """The monotonic creation time of the newest container that was started successfully."""
        self.engine_calls = threading.BoundedSemaphore(MAX_STARTING)
        """Held while a container is created or started."""
        self.collecting = threading.BoundedSemaphore(MAX_COLLECTING)
        """Held while a trial is collected."""
        self.paused: SimpleQueue[ContainerSpec] = SimpleQueue()
        """Trials whose containers were seen paused. Added again at each poll."""
        self._seen_paused: set[str] = set()
        self._closed = False
        self._refused: set[int] = set()
        """Turns that get no permit."""
        self._held: set[int] = set()
        """Turns that wait for `release`."""
        self._kept: set[int] = set()
        """Turns whose permits are reserved until they come again. Their trials may run
        meanwhile."""
        self._expected: set[int] = set()
        """Turns that have come again, with a permit until it is known whether their trials run."""
        self._abandoned = False
        self._allowed_until = math.inf

    def close(self) -> None:
        """Let no further trial start."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def reopen(self) -> None:
        """Let trials start again, because another coordinator continues the run."""
        with self._changed:
            self._closed = False

    def refuse(self, turns: Iterable[int]) -> None:
        """Refuse to start the trials of these turns, until `refuse_no_more`. Others continue."""
        with self._changed:
            self._refused.update(turns)
            self._changed.notify_all()

    def refuse_no_more(self, turn: int) -> None:
        with self._changed:
            self._refused.discard(turn)

    def hold(self, turns: Iterable[int]) -> None:
        """Let the trials of these turns wait, prepared or not, until `release`. Others continue."""
        with self._changed:
            self._held.update(turns)

    def release(self, turn: int) -> None:
        with self._changed:
            self._held.discard(turn)
            self._changed.notify_all()

    def abandon(self) -> None:
        """Make every thread stop waiting for its container, and refuse further starts."""
        self._abandoned = True
        with self._changed:
            for turn in [*self._kept, *self._expected]:
                self.give_back(turn)
        self.close()

    def allow_until(self, unix_time: float) -> None:
        """Allow starts until `unix_time`, and none later until this is called again.

        The time is by the limiter's clock, which is not the system's on a host.
        """
        with self._changed:
            self._allowed_until = unix_time
            self._changed.notify_all()

    def set_width(self, width: int) -> None:
        """Change how many trials run at once. Running trials continue."""
        self._permits.set_width(width)

    @property
    def starting_allowed(self) -> bool:
        """True while the run certainly belongs to this process."""
        return self.may_start or (self._owns_attempts and not self._abandoned)

    @property
    def may_start(self) -> bool:
        """True while a container may be started."""
        is_allowed = not self._abandoned and self._clock() < self._allowed_until
        return is_allowed and not self._is_held_back()

    def lets_start(self, turn: int) -> bool:
        """Return whether the container of a turn may be started, if there is a permit."""
        return self.may_start and turn not in self._held

    @property
    def known_to_run(self) -> int:
        """How many trials hold a permit, without expected trials, which may have ended."""
        with self._changed:
            return self.running_trials - len(self._expected)

    @property
    def free_permits(self) -> int:
        """How many permits to run are free; negative while more trials run than are allowed."""
        return self._permits.free

    def require_starting_allowed(self) -> None:
        """Wait until the run certainly belongs to this process. Raises `WaitAbandoned`."""
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or self.starting_allowed)
            if self._abandoned:
                raise WaitAbandoned

    def wait(
        self, engine: Engine, spec: ContainerSpec, container: str, deadline_s: float | None = None
    ) -> int | None:
        """Wait for a trial's container. Return its exit status, or None after its deadline.

        `container` is its id. `deadline_s` is its deadline in seconds, by default the deadline of
        all phases. Its state is polled as well, in case the engine fails to report its end. Raises
        `WaitAbandoned` if the run may belong to another coordinator by then.
        """
        status = None
        start, limit_s = clock.monotonic(), spec.deadline_s if deadline_s is None else deadline_s
        while (left_s := _left_s(spec, start, limit_s)) > 0:
            status = engine.wait(container, min(_MAX_ENGINE_WAIT_S, left_s))
            if status is None:
                status = self._ended_status(engine, spec, container)
            if status is not None:
                break
        self.require_starting_allowed()
        return status

    def wait_for(
        self,
        engine: Engine,
        spec: ContainerSpec,
        container: str,
        *,
        happened: Callable[[], bool],
        stops_soon: Callable[[], bool],
        deadline_s: float,
    ) -> tuple[bool, int | None]:
        """Wait until something has happened in a trial's container, or until it has stopped.

        Return whether it has happened and, if not, the exit status; None after the deadline.
        `happened` is called every `_FILE_POLL_S` seconds. So is `stops_soon`, which says that the
        engine's own wait is likely to return soon. Raises as `wait` does, and `NoSuchContainer`.
        """
        start = clock.monotonic()
        while (left_s := _left_s(spec, start, deadline_s)) > 0:
            status, until = None, clock.monotonic() + min(_MAX_FILE_WAIT_S, left_s)
            while clock.monotonic() < until and not self._abandoned:
                if happened():
                    self.require_starting_allowed()
                    return True, None
                if stops_soon():
                    status = engine.wait(container, _MAX_FILE_WAIT_S)
                    break
                clock.sleep(_FILE_POLL_S)
            if status is None:
                # Unlike the engine's own wait, polled files do not show that a container is gone.
                engine.inspect_existing(container)
                status = self._ended_status(engine, spec, container)
            if status is not None:
                self.require_starting_allowed()
                return False, status
        self.require_starting_allowed()
        return False, None

    def _ended_status(self, engine: Engine, spec: ContainerSpec, container: str) -> int | None:
        """Return the exit status of an ended container, else None. Reports a paused one.

        Raises `WaitAbandoned`.
        """
        if self._abandoned:
            raise WaitAbandoned
        state = engine.inspect(container)
        if state is not None and state.has_ended:
            return state.exit_status
        if spec.uses_egress_proxy:
            restart_stopped_proxies(engine, spec.labels())
        if spec.uses_models and ModelsHelper.of(spec).is_lost(engine):
            # Its agent can no longer reach a model.
            engine.kill(container)
        if state is not None and state.status == "paused":
            self.paused.put(spec)
            self._seen_paused.add(container)
        return None

    def was_seen_paused(self, container: str) -> bool:
        """Return whether a container was seen paused while a thread waited for it."""
        return container in self._seen_paused

    @contextmanager
    def running(self, turn: int, *, has_begun: bool = False) -> Iterator[None]:
        """Wait for a permit to run and hold it. The lowest `turn` gets the next permit.

        Raises `StartRefused` if the limiter is closed while waiting, or the turn is refused. With
        `has_begun`, the agent of the trial has ended. Such a trial is graded even if it is refused,
        and a closed limiter raises `LeftToNextProcess`.
        """
        permits, entry = self._permits, (self, turn)

        def is_refused() -> bool:
            return self._closed or (turn in self._refused and not has_begun)

        with self._changed:
            self.give_back(turn)
            permits.waiting.append(entry)
            self._changed.wait_for(
                lambda: is_refused() or (permits.free > 0 and permits.next_waiting() == entry)
            )
            permits.waiting.remove(entry)
            if is_refused():
                # Another run's trial may wait behind this one.
                self._changed.notify_all()
                raise LeftToNextProcess if has_begun else StartRefused
            self._change_free_permits(-1)
        with self._holding(turn):
            yield

    @contextmanager
    def reservation(self, turn: int) -> Iterator[None]:
        """Hold a permit to run, even if none is free, for a trial that is running already."""
        with self._changed:
            self.give_back(turn)
            self._change_free_permits(-1)
        with self._holding(turn):
            yield

    @contextmanager
    def _holding(self, turn: int) -> Iterator[None]:
        """Free a permit at the end. Keep it without an engine, because the trial may be running."""
        try:
            yield
        except EngineUnavailable:
            with self._changed:
                self._kept.add(turn)
            raise
        except BaseException:
            self._change_free_permits(+1)
            raise
        self._change_free_permits(+1)

    def expect(self, turn: int) -> None:
        """Take a permit, even if none is free, for a trial that may be running already."""
        with self._changed:
            if turn not in self._kept | self._expected:
                self._change_free_permits(-1)
            self._kept.discard(turn)
            self._expected.add(turn)

    def keep(self, turn: int) -> None:
        """Keep the permit of a trial, if it has one.

        Without an engine, the trial may be running.
        """
        with self._changed:
            if turn in self._expected:
                self._expected.discard(turn)
                self._kept.add(turn)

    def give_back(self, turn: int) -> None:
        """Free the permit of a trial that is now known not to run, if it has one.

        Does not affect permits held by `running` or `reservation`.
        """
        with self._changed:
            if turn in self._kept | self._expected:
                self._kept.discard(turn)
                self._expected.discard(turn)
                self._change_free_permits(+1)

    def give_back_kept(self, turn: int) -> None:
        """Release the places reserved for later trials, if this trial has none.

        Otherwise, this trial would wait for those trials, and they would wait for its place. A host
        continues each trial independently, so nothing is released there.
        """
        with self._changed:
            if turn not in self._kept and not self._owns_attempts:
                for reserved_turn in list(self._kept):
                    self.give_back(reserved_turn)

    def _change_free_permits(self, permits: int) -> None:
        with self._changed:
            self._permits.free += permits
            self.running_trials -= permits
            self._changed.notify_all()


def _left_s(spec: ContainerSpec, start: float, limit_s: float) -> float:
    """Return how many seconds are left of a deadline `limit_s` after the monotonic time `start`.

    The deadline is extended by the time that providers' limits hold the agent back, as in
    `trial.sh`.
    """
    waited_s = attempt_notes.waited_s(spec.folder) if spec.uses_models else 0.0
    return start + limit_s + waited_s - clock.monotonic()
