"""The gate of trials, when the run may belong to somebody else by now."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest

from labledger.trial.gate import Abandoned, NotStarted, StartGate

PAST = 1.0


class Attempt:
    """Something that a thread tries to get past a gate with, and how that ended."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.ended: BaseException | bool = False
        self._work = work
        self._thread = threading.Thread(target=self._try)
        self._thread.start()

    def _try(self) -> None:
        try:
            self._work()
            self.ended = True
        except (Abandoned, NotStarted) as error:
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
def gate() -> Iterator[StartGate]:
    gate = StartGate(1)
    yield gate
    gate.abandon()


def pass_through(gate: StartGate) -> None:
    with gate.passage(0):
        pass


@pytest.mark.parametrize("work", [pass_through, StartGate.require_open])
def test_nothing_is_done_after_the_lease_until_it_is_renewed(
    gate: StartGate, work: Callable[[StartGate], None]
) -> None:
    """A trial waits when its run may be somebody else's, and goes on when it is not."""
    gate.open_until(PAST)
    assert not gate.is_open
    attempt = Attempt(lambda: work(gate))
    assert attempt.waits
    gate.open_until(math.inf)
    assert attempt.end() is True
    assert gate.is_open


def test_who_waited_for_a_run_that_is_lost_gives_up(gate: StartGate) -> None:
    """An abandoned gate lets nothing start and nothing be touched any more."""
    gate.open_until(PAST)
    attempts = [Attempt(lambda: pass_through(gate)), Attempt(gate.require_open)]
    assert all(attempt.waits for attempt in attempts)
    gate.abandon()
    assert isinstance(attempts[0].end(), NotStarted)
    assert isinstance(attempts[1].end(), Abandoned)
    gate.open_until(math.inf)
    assert not gate.is_open
