"""The limiter of trials, also when another coordinator may own the run."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest

from labledger.errors import EngineUnavailable
from labledger.trial.life.start_limiter import (
    LeftToNextProcess,
    StartLimiter,
    StartRefused,
    WaitAbandoned,
)

PAST = 1.0


class Attempt:
    """A thread's attempt to pass a limiter, and its ending."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.ended: BaseException | bool = False
        self._work = work
        self._thread = threading.Thread(target=self._try)
        self._thread.start()

    def _try(self) -> None:
        try:
            self._work()
            self.ended = True
        except (WaitAbandoned, StartRefused) as error:
            self.ended = error

    def end(self) -> BaseException | bool:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.ended

    @property
    def waits(self) -> bool:
        self._thread.join(0.2)
        return self._thread.is_alive()


@pytest.fixture
def gate() -> Iterator[StartLimiter]:
    gate = StartLimiter(1)
    yield gate
    gate.abandon()


def pass_through(gate: StartLimiter, turn: int = 0) -> None:
    with gate.running(turn):
        pass


def lose_the_engine(gate: StartLimiter) -> None:
    with pytest.raises(EngineUnavailable), gate.running(0):
        raise EngineUnavailable("it is started again")


@pytest.mark.parametrize("work", [pass_through, StartLimiter.require_starting_allowed])
def test_nothing_is_done_after_the_lease_until_it_is_renewed(
    gate: StartLimiter, work: Callable[[StartLimiter], None]
) -> None:
    """A trial waits while the lease may have expired, and continues when it is renewed."""
    gate.allow_until(PAST)
    assert not gate.starting_allowed
    attempt = Attempt(lambda: work(gate))
    assert attempt.waits
    gate.allow_until(math.inf)
    assert attempt.end() is True
    assert gate.starting_allowed


def test_who_waited_for_a_run_that_is_lost_gives_up(gate: StartLimiter) -> None:
    """A closed limiter starts no trial and permits no further action."""
    gate.allow_until(PAST)
    attempts = [Attempt(lambda: pass_through(gate)), Attempt(gate.require_starting_allowed)]
    assert all(attempt.waits for attempt in attempts)
    gate.abandon()
    assert isinstance(attempts[0].end(), StartRefused)
    assert isinstance(attempts[1].end(), WaitAbandoned)
    gate.allow_until(math.inf)
    assert not gate.starting_allowed


def test_a_trial_whose_agent_has_ended_is_told_apart(gate: StartLimiter) -> None:
    """A trial whose agent has ended is graded despite a recall, not counted as never run."""
    gate.refuse([0])
    with gate.running(0, has_begun=True):
        pass
    gate.close()
    with pytest.raises(LeftToNextProcess), gate.running(0, has_begun=True):
        pass
    with pytest.raises(StartRefused) as refused:
        pass_through(gate)
    assert not isinstance(refused.value, LeftToNextProcess)


def test_a_trial_keeps_its_place_while_the_engine_is_away(gate: StartLimiter) -> None:
    """While the engine is away, the trial may run, so its place stays taken until it has ended."""
    lose_the_engine(gate)
    other = Attempt(lambda: pass_through(gate, 1))
    assert other.waits
    gate.give_back_kept(0)
    gate.expect(0)
    gate.keep(0)
    gate.expect(0)
    with gate.reservation(0):
        assert other.waits
    assert other.end() is True
    assert gate.free_permits == 1


def test_a_kept_place_is_free_when_another_trial_comes_first(gate: StartLimiter) -> None:
    """Otherwise the two trials would wait for each other; a host continues with each by itself."""
    host = StartLimiter(1, owns_attempts=True)
    for limiter in (gate, host):
        lose_the_engine(limiter)
        limiter.give_back_kept(1)
    assert (gate.free_permits, host.free_permits) == (1, 0)


@pytest.mark.parametrize("end", [lambda gate: gate.give_back(0), StartLimiter.abandon])
def test_a_trial_that_does_not_run_has_no_place(
    gate: StartLimiter, end: Callable[[StartLimiter], None]
) -> None:
    """A reserved place, also one for a trial that may run already, is returned once."""
    lose_the_engine(gate)
    gate.expect(7)
    assert gate.free_permits == -1
    end(gate)
    gate.give_back(7)
    gate.give_back(7)
    assert gate.free_permits == 1


def test_what_may_run_is_not_known_to_run(gate: StartLimiter) -> None:
    """An earlier coordinator's attempt keeps a place, and runs once its container is seen."""
    gate.expect(3)
    gate.expect(4)
    assert (gate.running_trials, gate.known_to_run) == (2, 0)
    with gate.reservation(3):
        assert (gate.running_trials, gate.known_to_run) == (2, 1)
    gate.give_back(4)
    assert (gate.running_trials, gate.known_to_run) == (0, 0)
