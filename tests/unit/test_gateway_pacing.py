"""The pace of a key: how it falls and grows, and that a long `Retry-After` stops nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from labledger.gateway.pacing import Pace, PaceSettings

SETTINGS = PaceSettings(first=8, most=16, jitter=0.0)


class Clock:
    """A clock that stands still, and an event loop's timers by it."""

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


async def enter(pace: Pace, number: int) -> list[asyncio.Task[float]]:
    tasks = [asyncio.create_task(pace.enter()) for _ in range(number)]
    await turns()
    return tasks


def test_no_more_are_under_way_than_the_pace_allows() -> None:
    """Others wait, and go in their order as soon as one has ended."""

    async def test(pace: Pace, clock: Clock) -> None:
        tasks = await enter(pace, 10)
        assert [task.done() for task in tasks] == [True] * 8 + [False] * 2
        pace.leave()
        await turns()
        assert [task.done() for task in tasks] == [True] * 9 + [False]
        assert (pace.in_flight, pace.waiting) == (8, 1)
        pace.leave()
        await turns()

    run(test)


def test_limits_met_together_slow_once() -> None:
    """Eight requests that meet a limit at once are one event: the pace falls to seven tenths."""

    async def test(pace: Pace, clock: Clock) -> None:
        await enter(pace, 8)
        sent_at, clock.now = clock.now, clock.now + 1
        for _ in range(8):
            pace.limited(sent_at, None)
            pace.leave()
        assert round(pace.concurrency, 6) == 5.6
        assert pace.paused_s == 0.5

    run(test)


def test_pauses_grow_until_the_provider_answers() -> None:
    """Each further limit doubles the pause, and an answer begins anew."""

    async def test(pace: Pace, clock: Clock) -> None:
        pauses = []
        for _ in range(9):
            clock.now += 100
            sent_at = await pace.enter()
            pace.limited(sent_at, None)
            pace.leave()
            pauses.append(pace.paused_s)
        assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
        assert pace.concurrency == 1
        clock.now += 100
        sent_at = await pace.enter()
        pace.answered(sent_at)
        pace.limited(sent_at, None)
        assert pace.paused_s == 0.5

    run(test)


def test_the_pace_grows_by_one_for_each_round() -> None:
    """While all places are used, as many answers as there are places add one."""

    async def test(pace: Pace, clock: Clock) -> None:
        await enter(pace, 8)
        for _ in range(8):
            pace.answered(clock.now)
        assert 8.9 < pace.concurrency < 9
        for _ in range(1000):
            pace.answered(clock.now)
        assert pace.concurrency == SETTINGS.most or 2 * pace.in_flight < pace.concurrency

    run(test)


def test_a_long_wait_lets_one_request_try() -> None:
    """After ten seconds of an hour one request goes out; an answer lets all go."""

    async def test(pace: Pace, clock: Clock) -> None:
        sent_at = await pace.enter()
        pace.limited(sent_at, 3600)
        pace.leave()
        tasks = await enter(pace, 3)
        assert not any(task.done() for task in tasks)
        clock.now += 10
        pace._wake()
        await turns()
        assert [task.done() for task in tasks] == [True, False, False]
        pace.answered(clock.now)
        pace.leave()
        clock.now += 0
        await turns()
        assert any(task.done() for task in tasks[1:])
        assert pace.paused_s == 0
        for task in tasks:
            task.cancel()

    run(test)


def test_a_short_wait_is_kept() -> None:
    """Nothing goes out before the time that the provider names, and then a timer lets it go."""

    async def test(pace: Pace, clock: Clock) -> None:
        sent_at = await pace.enter()
        pace.limited(sent_at, 0.05)
        pace.leave()
        (task,) = await enter(pace, 1)
        assert not task.done()
        clock.now += 0.06
        await asyncio.wait_for(task, 60)

    run(test)


def test_requests_that_give_up_leave_no_place_taken() -> None:
    """A request that is cancelled while it waits, or as it is let out, takes no place."""

    async def test(pace: Pace, clock: Clock) -> None:
        tasks = await enter(pace, 10)
        tasks[8].cancel()
        await turns()
        pace.leave()
        tasks[9].cancel()
        await turns()
        assert (pace.in_flight, pace.waiting) == (7, 0)

    run(test)


def test_those_that_were_sent_go_first() -> None:
    """A request that met a limit goes before those that have not been sent."""

    async def test(pace: Pace, clock: Clock) -> None:
        tasks = await enter(pace, 9)
        again = asyncio.create_task(pace.enter(again=True))
        await turns()
        pace.leave()
        await turns()
        assert (again.done(), tasks[8].done()) == (True, False)
        tasks[8].cancel()
        await turns()

    run(test)
