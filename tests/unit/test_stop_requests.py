"""Requests to stop a run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from labledger.execution.run_events import StopRequest, on_signals
from labledger.runner.coordination.attempt_queues import PendingAttempts, Removals


def test_a_third_press_asks_for_nothing_more() -> None:
    """A stop has two levels: after the running trials, and now."""
    stop = StopRequest()
    levels = []
    for _ in range(3):
        stop.raise_level()
        levels.append(stop.level)
    assert levels == [1, 2, 2]


def test_the_reason_says_what_was_asked() -> None:
    """A first request that kills is described as one request."""
    for requests, killer, sentence in (
        ({2: "Ctrl-C"}, "Ctrl-C", "stopped by Ctrl-C, which killed the containers"),
        (
            {1: "Ctrl-C", 2: "Ctrl-C"},
            "a second Ctrl-C",
            "stopped by Ctrl-C, and a second one killed the containers",
        ),
        (
            {1: "TERM", 2: "Ctrl-C"},
            "Ctrl-C after TERM",
            "stopped by TERM, and Ctrl-C killed the containers",
        ),
    ):
        stop = StopRequest()
        for level, source in requests.items():
            stop.raise_to(level, source)
        assert (stop.killer, stop.message) == (killer, sentence)
    stop = StopRequest()
    stop.raise_level("Ctrl-C")
    assert stop.message == "stopped by Ctrl-C; running trials finished"


def wait_for_attempts() -> tuple[Future[Any], Callable[[], object]]:
    pending, future = PendingAttempts(), Future[Any]()
    pending.add(future, cast("Any", None))
    return future, lambda: pending.wait_for_next_end(0.2)


def wait_for_removals() -> tuple[Future[Any], Callable[[], object]]:
    removals, future = Removals(), Future[Any]()
    removals.add(future)
    return future, lambda: removals.failures(0.2)


@pytest.mark.parametrize("make_future", [wait_for_attempts, wait_for_removals])
def test_a_signal_as_a_wait_ends_does_not_make_it_endless(
    make_future: Callable[[], tuple[Future[Any], Callable[[], object]]],
) -> None:
    """A coordinator that waits for a trial notices the request, even on a slow machine."""
    future, wait = make_future()
    before = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(0.3))
    signals = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    rescue = threading.Timer(20, future.cancel)
    try:
        signals.start()
        rescue.start()
        wait()
        assert not future.cancelled()
    finally:
        rescue.cancel()
        signals.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_press_and_are_given_back(number: int) -> None:
    """Ctrl-C and TERM request a stop during a run, and act normally afterwards."""
    before = signal.getsignal(number)
    stop = StopRequest()
    with on_signals(stop):
        os.kill(os.getpid(), number)
        assert stop.level == 1
        os.kill(os.getpid(), number)
        assert stop.level == 2
    assert signal.getsignal(number) is before


def test_handlers_of_other_languages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that Python did not install cannot be restored, so it is not replaced."""
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr("signal.getsignal", lambda _number: None)
        with on_signals(StopRequest()):
            patch.undo()
            assert signal.getsignal(signal.SIGINT) is before


def test_hanging_up_is_one_request() -> None:
    """A closing terminal, which may send several signals, requests one stop."""
    stop = StopRequest()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with on_signals(stop):
            for number in (signal.SIGHUP, signal.SIGHUP):
                os.kill(os.getpid(), number)
                assert stop.level == 1
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.level == 2
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.level == 2
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_hanging_up_stays_ignored() -> None:
    """Under `nohup`, a run continues when the terminal closes."""
    stop = StopRequest()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_signals(stop):
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.level == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_signals_alone() -> None:
    """A run in another program's thread handles no signals."""
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with on_signals(StopRequest()):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
