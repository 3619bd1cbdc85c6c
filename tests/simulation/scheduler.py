"""Simulated threads and time: one thread runs at a time, and a seed decides which is next.

Each simulated thread is a greenlet. It can be interrupted when it waits and at *points*:
statements, writes, locks and calls of the engine. Time passes only here. No thread of a killed
process runs again, and its locks are free.
"""

from __future__ import annotations

import heapq
import random
import sys
from asyncio import _get_running_loop, _set_running_loop
from collections.abc import Callable
from itertools import count
from typing import Any

from greenlet import getcurrent, greenlet

_SWITCH_S = 20e-6
"""The average time of a turn, in seconds."""
_PREEMPTED = 0.03
"""How often a thread is interrupted at a point."""
BEGINNING = 1000.0
"""The time at which a world begins, in seconds."""
MAX_TURNS = 150_000
"""A world with more turns than this does not end."""


class SimulationStuck(Exception):
    """Every thread waits for another one, or the world takes too many turns."""


def _start() -> None:
    """Start all greenlets from here, because their stacks begin where they are started."""
    fiber = getcurrent().parent.switch()
    while True:
        fiber = fiber.switch()


class Machine:
    """A simulated machine: its clocks, and the processes that run on it."""

    def __init__(self, name: str, unix_time: float) -> None:
        self.name = name
        self.unix_time = unix_time
        """Its wall clock when the world begins."""
        self.boot = 1
        self.processes: list[Process] = []

    def living(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive]


class Process:
    """A simulated process."""

    def __init__(self, world: Scheduler, machine: Machine, name: str) -> None:
        self.world = world
        self.machine = machine
        self.name = name
        self.pid = world.new_pid()
        self.is_alive = True
        self.paused_until = 0.0
        self.exit: BaseException | None = None
        self.result: Any = None
        self.threads: list[Task] = []
        self.held: dict[int, Any] = {}
        """Locks that its threads hold, by their `id`."""
        self.on_death: list[Callable[[], None]] = []
        self.at_most: int | None = None
        """How many trials it may run at once."""
        self.steps = 0
        """How many points it has passed."""
        self.dies_at: int | None = None
        """The point at which it is killed."""
        self.dies_at_name: tuple[str, int] | None = None
        """The kind of point at which it is killed, and how many of them come before."""
        machine.processes.append(self)


class Task:
    """A simulated thread."""

    __slots__ = ("deadline", "fiber", "is_done", "is_ready", "name", "number", "process", "reason")

    def __init__(self, process: Process, name: str, number: int) -> None:
        self.process = process
        self.name = name
        self.number = number
        self.fiber = getcurrent()
        self.is_ready = True
        self.is_done = False
        self.deadline: float | None = None
        self.reason = ""


class Scheduler:
    """The threads and the time of one world."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = BEGINNING
        self.turns = 0
        self.log: list[str] = []
        self._pids = count(1000)
        self._numbers = count()
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ready: list[Task] = []
        self._waiting: dict[int, Task] = {}
        """Tasks that wait, by their number."""
        self._deadlines: list[tuple[float, int, Task]] = []
        self.origin = Machine("world", 0.0)
        driver = Process(self, self.origin, "world")
        self.current = self.driver = Task(driver, "world", next(self._numbers))
        driver.threads.append(self.driver)
        self._failure: BaseException | None = None
        self._is_between_turns = False
        self._starter = greenlet(_start)
        self._starter.switch()

    def new_pid(self) -> int:
        return next(self._pids)

    def note(self, text: str) -> None:
        """Add a line to the log of the world."""
        who = "world" if self._is_between_turns else self.current.process.name
        self.log.append(f"{self.now - 1000:10.4f} {who:<12} {text}")

    # -- threads

    def spawn(self, process: Process, name: str, function: Callable[[], object]) -> Task:
        """Start a thread of a process. It runs when the scheduler first chooses it."""
        task = Task(process, name, next(self._numbers))
        process.threads.append(task)

        def run() -> None:
            _set_running_loop(None)
            try:
                function()
            except BaseException as error:
                if process.exit is None:
                    process.exit = error
            self._end(task)

        task.fiber = greenlet(run)
        self._ready.append(task)
        return task

    def fail(self, error: BaseException) -> None:
        """Let the world end with an error."""
        self._failure = self._failure or error

    def _end(self, task: Task) -> None:
        task.is_done = True
        self._pass_turn(None)

    def wait(self, deadline: float | None, reason: str = "") -> None:
        """Wait until `wake` is called for the current thread, or until a time."""
        task = self.current
        task.is_ready, task.deadline, task.reason = False, deadline, reason
        self._waiting[task.number] = task
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, next(self._order), task))
        self._pass_turn(task)

    def wake(self, task: Task) -> None:
        """Let a waiting thread continue."""
        if not task.is_ready:
            self._make_ready(task)

    def _make_ready(self, task: Task) -> None:
        task.is_ready, task.deadline = True, None
        self._waiting.pop(task.number, None)
        if task.process.is_alive:
            self._ready.append(task)

    def sleep(self, seconds: float) -> None:
        self.wait(self.now + max(seconds, 0.0), "sleep")

    def give_way(self) -> None:
        """Let another thread run, if one can."""
        task = self.current
        self._ready.append(task)
        self._pass_turn(task)

    def point(self, kind: str, detail: str = "") -> None:
        """A step at which the process may be killed or its thread interrupted."""
        if self._is_between_turns:
            return
        process = self.current.process
        process.steps += 1
        if process.dies_at is not None and process.steps >= process.dies_at:
            self.note(f"killed at {kind} {detail}")
            self.kill(process)
        elif process.dies_at_name is not None and process.dies_at_name[0] == kind:
            name, points_left = process.dies_at_name
            process.dies_at_name = (name, points_left - 1)
            if points_left <= 0:
                self.note(f"killed at {kind} {detail}")
                self.kill(process)
        if process.paused_until > self.now:
            self.wait(process.paused_until, "paused")
        elif self.random.random() < _PREEMPTED:
            self.give_way()

    # -- events of the world

    def at(self, moment: float, happen: Callable[[], None]) -> None:
        """Let something happen at a time. It happens between two turns, and must not wait."""
        heapq.heappush(self._events, (moment, next(self._order), happen))

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        self.at(self.now + seconds, happen)

    # -- turns

    def _pass_turn(self, task: Task | None) -> None:
        """Give the turn to another thread, and return when the current one has it again."""
        try:
            following = self._choose()
        except BaseException as error:
            self._failure = self._failure or error
            following = self.driver
            if not following.is_ready:
                following.is_ready = True
        if following is not task:
            self.current = following
            loop = _get_running_loop()
            if following.fiber:
                following.fiber.switch()
            else:
                self._starter.switch(following.fiber)
            _set_running_loop(loop)
        if task is self.driver and self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _choose(self) -> Task:
        if self._failure is not None:
            raise self._failure
        self.turns += 1
        if self.turns > MAX_TURNS:
            raise SimulationStuck(f"{MAX_TURNS} turns, and no end")
        while True:
            self.now += _SWITCH_S * self.random.random() * 2
            self._let_happen()
            alive = self._ready
            while alive:
                index = self.random.randrange(len(alive)) if len(alive) > 1 else 0
                task = alive[index]
                alive[index] = alive[-1]
                alive.pop()
                if not task.process.is_alive:
                    continue
                if task.process.paused_until > self.now:
                    self._resume_later(task)
                    continue
                return task
            self._advance()

    def _resume_later(self, task: Task) -> None:
        def resume() -> None:
            self._ready.append(task)

        self.at(task.process.paused_until, resume)

    def _let_happen(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            self._is_between_turns = True
            heapq.heappop(self._events)[-1]()
            self._is_between_turns = False
        while self._deadlines and self._deadlines[0][0] <= self.now:
            deadline, _, task = heapq.heappop(self._deadlines)
            if not task.is_ready and task.deadline == deadline and task.process.is_alive:
                self._make_ready(task)

    def _advance(self) -> None:
        """Let time pass until something happens."""
        while self._deadlines:
            deadline, _, task = self._deadlines[0]
            if not task.is_ready and task.deadline == deadline and task.process.is_alive:
                break
            heapq.heappop(self._deadlines)
        times = [heap[0][0] for heap in (self._events, self._deadlines) if heap]
        if not times:
            waiting = [
                f"{task.process.name}/{task.name}: {task.reason}"
                for task in self._waiting.values()
                if task.process.is_alive
            ]
            raise SimulationStuck(f"every thread waits: {'; '.join(waiting)}")
        self.now = max(self.now, min(times))

    # -- processes

    def kill(self, process: Process) -> None:
        """End a process at once. Does not return if it is the current one."""
        if not process.is_alive:
            return
        process.is_alive = False
        for task in process.threads:
            self._waiting.pop(task.number, None)
        for lock in list(process.held.values()):
            lock.abandon()
        process.held.clear()
        for act in process.on_death:
            act()
        if self.current.process is process and not self._is_between_turns:
            self._park()

    def _park(self) -> None:
        """Never run the current thread again."""
        self._pass_turn(None)

    def unix_time(self) -> float:
        """The wall clock of the machine of the current process."""
        return self.current.process.machine.unix_time + self.now


_world: Scheduler | None = None


def world() -> Scheduler:
    """The world that the current process simulates."""
    assert _world is not None, "no world was made"
    return _world


def enter(world: Scheduler) -> None:
    global _world
    _world = world
    sys.setswitchinterval(1.0)
