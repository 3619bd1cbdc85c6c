"""The pace of a key: how it falls and grows, and how attempts share it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from labledger.gateway.providers.pacing import Pace, PaceSettings
from labledger.gateway.providers.retry_after import retry_after_s

SETTINGS = PaceSettings(first=8, most=16, jitter=0.0)


class Attempt:
    """An attempt that uses the key."""


ONE, OTHER, THIRD = Attempt(), Attempt(), Attempt()


class Clock:
    """A clock that stands still, with an event loop's timers."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def turns(number: int = 5) -> None:
    """Let other tasks run."""
    for _ in range(number):
        await asyncio.sleep(0)


def run(test: Callable[[Pace, Clock], Awaitable[Any]]) -> None:
    async def in_loop() -> None:
        clock = Clock()
        await test(Pace(SETTINGS, clock), clock)

    asyncio.run(in_loop())


async def enter(pace: Pace, number: int, attempt: Attempt = ONE) -> list[asyncio.Task[float]]:
    tasks = [asyncio.create_task(pace.enter(attempt)) for _ in range(number)]
    await turns()
    return tasks


def test_no_more_are_under_way_than_the_pace_allows() -> None:
    """Further requests wait, and start in order when one ends."""

    async def test(pace: Pace, clock: Clock) -> None:
        tasks = await enter(pace, 10)
        assert [task.done() for task in tasks] == [True] * 8 + [False] * 2
        pace.leave(ONE)
        await turns()
        assert [task.done() for task in tasks] == [True] * 9 + [False]
        assert (pace.in_flight, pace.waiting) == (8, 1)
        pace.leave(ONE)
        await turns()

    run(test)


def test_limits_met_together_slow_once() -> None:
    """Eight simultaneous limits are one event, and the pace falls to seven tenths."""

    async def test(pace: Pace, clock: Clock) -> None:
        await enter(pace, 8)
        sent_at, clock.now = clock.now, clock.now + 1
        for _ in range(8):
            pace.limited(ONE, sent_at, None)
            pace.leave(ONE)
        assert round(pace.concurrency, 6) == 5.6
        assert pace.paused_s == 0.5

    run(test)


def test_pauses_grow_until_the_provider_answers() -> None:
    """Each further limit doubles the pause, and an answer resets it."""

    async def test(pace: Pace, clock: Clock) -> None:
        pauses = []
        for _ in range(9):
            clock.now += 100
            sent_at = await pace.enter(ONE)
            pace.limited(ONE, sent_at, None)
            pace.leave(ONE)
            pauses.append(pace.paused_s)
        assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
        assert pace.concurrency == 1
        clock.now += 100
        sent_at = await pace.enter(ONE)
        pace.answered(ONE, sent_at)
        pace.limited(ONE, sent_at, None)
        assert pace.paused_s == 0.5

    run(test)


def test_the_pace_grows_by_one_for_each_round() -> None:
    """While all places are in use, one round of answers adds one place."""

    async def test(pace: Pace, clock: Clock) -> None:
        await enter(pace, 8)
        for _ in range(8):
            pace.answered(ONE, clock.now)
        assert 8.9 < pace.concurrency < 9
        for _ in range(1000):
            pace.answered(ONE, clock.now)
        assert pace.concurrency == SETTINGS.most or 2 * pace.in_flight < pace.concurrency

    run(test)


def test_a_long_wait_lets_one_request_try() -> None:
    """After ten seconds of an hour's wait, one request is tried, and its answer releases all."""

    async def test(pace: Pace, clock: Clock) -> None:
        sent_at = await pace.enter(ONE)
        pace.limited(ONE, sent_at, 3600)
        pace.leave(ONE)
        tasks = await enter(pace, 3)
        assert not any(task.done() for task in tasks)
        clock.now += 10
        pace.wake()
        await turns()
        assert [task.done() for task in tasks] == [True, False, False]
        pace.answered(ONE, clock.now)
        pace.leave(ONE)
        clock.now += 0
        await turns()
        assert any(task.done() for task in tasks[1:])
        assert pace.paused_s == 0
        for task in tasks:
            task.cancel()

    run(test)


@pytest.mark.parametrize("named", [0.0, 1e-9, 0.05, None])
def test_the_shortest_pause_is_the_backoff(named: float | None) -> None:
    """A provider that names no time, or a tiny one, is asked at the backoff's pace."""

    async def test(pace: Pace, clock: Clock) -> None:
        pauses = []
        for _ in range(3):
            sent_at = await pace.enter(ONE)
            pace.limited(ONE, sent_at, named)
            pace.leave(ONE)
            pauses.append(pace.paused_s)
            clock.now += pace.paused_s
        assert pauses == pytest.approx([0.5, 1, 2])
        (task,) = await enter(pace, 1)
        await asyncio.wait_for(task, 60)

    run(test)


@pytest.mark.parametrize("named", [1e15, 1e300, float("inf")])
def test_no_wait_is_endless(named: float) -> None:
    """After ten seconds of an unlimited wait, one request is tried."""

    async def test(pace: Pace, clock: Clock) -> None:
        pace.limited(ONE, await pace.enter(ONE), named)
        pace.leave(ONE)
        assert pace.paused_s == 3600
        clock.now += 10
        (task,) = await enter(pace, 1)
        assert task.done()

    run(test)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        *(({"retry-after": text}, None) for text in ("-1", "nan", "inf", "1e400", "1_0", "", "٣")),
        ({"retry-after": "9" * 400}, None),
        (
            {
                "retry-after": "Wed, 21 Oct 2015 07:28:09 GMT",
                "date": "Wed, 21 Oct 2015 07:28:00 GMT",
            },
            9.0,
        ),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 99 Oct 99999 07:28:00 GMT"}, None),
    ],
)
def test_times_to_wait_are_read(headers: Mapping[str, str], seconds: float | None) -> None:
    """Seconds and dates are read by the provider's clock, and other text is ignored."""
    assert retry_after_s(headers) == seconds


def test_requests_that_give_up_leave_no_place_taken() -> None:
    """A request that is cancelled while waiting or starting takes no place."""

    async def test(pace: Pace, clock: Clock) -> None:
        tasks = await enter(pace, 10)
        tasks[8].cancel()
        await turns()
        pace.leave(ONE)
        tasks[9].cancel()
        await turns()
        assert (pace.in_flight, pace.waiting) == (7, 0)

    run(test)


def test_attempts_take_turns() -> None:
    """One attempt's first request goes before another attempt's second, which came earlier."""

    async def test(pace: Pace, clock: Clock) -> None:
        await enter(pace, 4)
        await enter(pace, 4, OTHER)
        many = await enter(pace, 3)
        (one,) = await enter(pace, 1, THIRD)
        for _ in range(2):
            pace.leave(ONE)
            await turns()
        assert [task.done() for task in many] == [True, False, False]
        assert one.done()
        for task in many:
            task.cancel()
        await turns()

    run(test)


def test_an_attempt_that_meets_limits_alone_is_slowed_alone() -> None:
    """If other attempts are answered, one attempt's limits slow that attempt only."""

    async def test(pace: Pace, clock: Clock) -> None:
        pace.answered(OTHER, await pace.enter(OTHER))
        pace.leave(OTHER)
        for _ in range(20):
            (mine,) = await enter(pace, 1)
            (theirs,) = await enter(pace, 1, OTHER)
            assert theirs.done()
            pace.answered(OTHER, theirs.result())
            pace.leave(OTHER)
            if mine.done():
                pace.limited(ONE, mine.result(), None)
                pace.leave(ONE)
            else:
                mine.cancel()
                await turns()
            assert (pace.concurrency, pace.paused_s) == (SETTINGS.first, 0)
            clock.now += 0.1

    run(test)


@pytest.mark.parametrize("requests", [1, 2, 7])
def test_limits_of_one_attempt_do_not_keep_a_new_one_from_its_first_call(requests: int) -> None:
    """An attempt without limits may try, whatever limits the others met."""

    async def test(pace: Pace, clock: Clock) -> None:
        mine = await enter(pace, requests)
        for _ in range(9):
            for task in [task for task in mine if task.done()]:
                mine.remove(task)
                pace.limited(ONE, task.result(), 60)
                pace.leave(ONE)
                mine += await enter(pace, 1)
            clock.now += 10
            pace.wake()
            await turns()
        for task in [task for task in mine if task.done()]:
            pace.limited(ONE, task.result(), 60)
            pace.leave(ONE)
        (first, second) = await enter(pace, 2, OTHER)
        assert (first.done(), second.done()) == (True, False)
        pace.answered(OTHER, first.result())
        pace.leave(OTHER)
        await turns()
        assert second.done()
        for task in mine:
            task.cancel()
        await turns()

    run(test)


def test_an_attempt_waits_ten_seconds_at_most_for_answers_of_others() -> None:
    """An attempt without limits goes after ten seconds, although others hold all places."""

    async def test(pace: Pace, clock: Clock) -> None:
        pace.limited(ONE, await pace.enter(ONE), None)
        clock.now += 1
        await enter(pace, 1)
        (first, second) = await enter(pace, 2, OTHER)
        assert not first.done()
        clock.now += 10
        pace.wake()
        await turns()
        assert (first.done(), second.done()) == (True, False)
        second.cancel()
        await turns()

    run(test)


def test_limits_of_most_attempts_slow_all_down() -> None:
    """If more attempts meet limits than are answered, the pace falls and all pause."""

    async def test(pace: Pace, clock: Clock) -> None:
        for attempt in (ONE, OTHER, THIRD):
            pace.answered(attempt, await pace.enter(attempt))
        clock.now += 1
        pace.limited(ONE, clock.now, 5)
        assert pace.paused_s == 0
        pace.limited(OTHER, clock.now, 5)
        assert pace.paused_s == 5
        assert pace.concurrency < SETTINGS.first

    run(test)


def test_a_request_that_keeps_meeting_limits_does_not_go_first() -> None:
    """Requests within an attempt also go in rotation."""

    async def test(pace: Pace, clock: Clock) -> None:
        refused, others = await pace.enter(ONE), await enter(pace, 9)
        pace.limited(ONE, refused, None)
        pace.leave(ONE)
        again = asyncio.create_task(pace.enter(ONE))
        for _ in range(8):
            pace.leave(ONE)
        clock.now += 1
        pace.wake()
        await turns()
        assert (others[-1].done(), again.done()) == (True, True)

    run(test)


def test_an_attempt_without_a_place_gets_one_from_those_with_several() -> None:
    """The first request of an attempt goes at once, however many places others hold."""

    async def test(pace: Pace, clock: Clock) -> None:
        await enter(pace, 4, ONE)
        await enter(pace, 4, OTHER)
        (first, second) = await enter(pace, 2, THIRD)
        assert (first.done(), second.done()) == (True, False)
        second.cancel()
        await turns()

    run(test)


def test_the_pace_holds_for_attempts_with_one_request_each() -> None:
    """If each attempt has at most one place, the attempts beyond the pace wait."""

    async def test(pace: Pace, clock: Clock) -> None:
        attempts = [Attempt() for _ in range(12)]
        tasks = [task for attempt in attempts for task in await enter(pace, 1, attempt)]
        assert [task.done() for task in tasks] == [True] * 8 + [False] * 4
        for task in tasks:
            task.cancel()
        await turns()

    run(test)


def test_long_answers_of_one_attempt_leave_places_to_others() -> None:
    """An attempt has at most half of the places while others use the key."""

    async def test(pace: Pace, clock: Clock) -> None:
        pace.answered(OTHER, await pace.enter(OTHER))
        pace.leave(OTHER)
        mine = await enter(pace, 20)
        (theirs,) = await enter(pace, 1, OTHER)
        assert theirs.done()
        assert sum(task.done() for task in mine) == SETTINGS.first / 2
        for task in mine:
            task.cancel()
        await turns()

    run(test)


@pytest.mark.parametrize("seed", range(20))
def test_no_place_is_lost_and_no_request_waits_for_ever(seed: int) -> None:
    """Whatever requests meet and whenever they are cancelled, all others go in the end."""
    chance = random.Random(seed)

    async def test(pace: Pace, clock: Clock) -> None:
        attempts = [Attempt() for _ in range(4)]
        tasks: list[asyncio.Task[None]] = []
        under_way: list[tuple[Attempt, float]] = []

        async def ask(attempt: Attempt) -> None:
            under_way.append((attempt, await pace.enter(attempt)))

        def end(*, limited: bool) -> None:
            attempt, sent_at = under_way.pop(chance.randrange(len(under_way)))
            if limited:
                pace.limited(attempt, sent_at, chance.choice([None, 0, 60]))
            else:
                pace.answered(attempt, sent_at)
            pace.leave(attempt)

        for _ in range(200):
            act = chance.random()
            if act < 0.5:
                tasks.append(asyncio.create_task(ask(chance.choice(attempts))))
            elif act < 0.6 and tasks:
                chance.choice(tasks).cancel()
            elif act < 0.9 and under_way:
                end(limited=chance.random() < 0.5)
            else:
                clock.now += chance.choice([0.01, 1, 10])
                pace.wake()
            await turns(3)
            assert pace.in_flight == len(under_way)
        for _ in range(1000):
            while under_way:
                end(limited=False)
            clock.now += 5
            pace.wake()
            await turns(3)
        assert all(task.done() for task in tasks)
        assert (pace.in_flight, pace.waiting) == (0, 0)

    run(test)
