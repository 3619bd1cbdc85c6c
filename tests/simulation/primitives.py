"""Python's locks, threads, clocks, queues, event loops and random bytes for simulated threads.

`install` replaces them in the standard library before labledger is imported. Conditions, events,
semaphores, futures and thread pools stay as they are, because they are built on these locks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import functools
import os
import queue
import random
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from simulation import scheduler
from simulation.scheduler import Process, Task, world


class Lock:
    """A lock of simulated threads, as `threading.Lock`."""

    __slots__ = ("__weakref__", "_owner", "_waiting")

    def __init__(self) -> None:
        self._owner: Process | None = None
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        now = world()
        if self._owner is not None:
            if not blocking:
                return False
            deadline = None if timeout < 0 else now.now + timeout
            while self._owner is not None:
                if deadline is not None and now.now >= deadline:
                    return False
                task = now.current
                self._waiting.append(task)
                now.wait(deadline, "lock")
                if task in self._waiting:
                    self._waiting.remove(task)
        self._take(now.current.process)
        return True

    def _take(self, process: Process) -> None:
        self._owner = process
        process.held[id(self)] = self

    def release(self) -> None:
        owner = self._owner
        if owner is None:
            raise RuntimeError("release unlocked lock")
        owner.held.pop(id(self), None)
        self._owner = None
        self._wake_one()

    def abandon(self) -> None:
        """Free the lock, because its owner died."""
        self._owner = None
        self._wake_one()

    def _wake_one(self) -> None:
        waiting = self._waiting
        while waiting:
            task = waiting.popleft()
            if task.process.is_alive:
                world().wake(task)
                return

    def locked(self) -> bool:
        return self._owner is not None

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._owner = None
        self._waiting.clear()


class RLock:
    """A lock that its thread may take again, as `threading.RLock`."""

    __slots__ = ("__weakref__", "_count", "_lock", "_task")

    def __init__(self) -> None:
        self._lock = Lock()
        self._task: Task | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        task = world().current
        if self._task is task and self._lock.locked():
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._task, self._count = task, 1
        return True

    def release(self) -> None:
        if self._task is not world().current or not self._lock.locked():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._task = None
            self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        """Return whether a thread holds it. Python's lock has this method since 3.14."""
        return self._lock.locked()

    def _is_owned(self) -> bool:
        return self._task is world().current and self._lock.locked()

    def _release_save(self) -> tuple[int, Task | None]:
        state = self._count, self._task
        self._task, self._count = None, 0
        self._lock.release()
        return state

    def _acquire_restore(self, state: tuple[int, Task | None]) -> None:
        self._lock.acquire()
        self._count, self._task = state

    def _recursion_count(self) -> int:
        return self._count if self._is_owned() else 0

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()
        self._task, self._count = None, 0


class Thread:
    """A simulated thread, as `threading.Thread`."""

    _counter = 0

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        del group
        Thread._counter += 1
        self._number = Thread._counter
        self.name = name or f"Thread-{Thread._counter}"
        self.daemon = bool(daemon)
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self._task: Task | None = None
        self._is_over = False
        self._joining: list[Task] = []

    def __hash__(self) -> int:
        # Pools keep their threads in a set: its order must not depend on addresses.
        return self._number

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.number

    def start(self) -> None:
        now = world()
        self._task = now.spawn(now.current.process, self.name, self._bootstrap)

    def _bootstrap(self) -> None:
        try:
            self.run()
        finally:
            self._is_over = True
            for task in self._joining:
                world().wake(task)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self._task is not None and not self._is_over

    def join(self, timeout: float | None = None) -> None:
        now = world()
        deadline = None if timeout is None else now.now + timeout
        while self.is_alive() and (deadline is None or now.now < deadline):
            self._joining.append(now.current)
            now.wait(deadline, f"join {self.name}")


class Timer(Thread):
    """A function that is called after a while, as `threading.Timer`."""

    def __init__(
        self, interval: float, function: Callable[..., object], args: Any = None, kwargs: Any = None
    ) -> None:
        super().__init__(target=function, args=args or (), kwargs=kwargs)
        self.finished = threading.Event()
        self._interval = interval

    def cancel(self) -> None:
        self.finished.set()

    def run(self) -> None:
        self.finished.wait(self._interval)
        if not self.finished.is_set():
            super().run()
        self.finished.set()


class _Selector:
    """The selector of an event loop. Only other threads and timers wake it."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._is_woken = False

    def select(self, timeout: float | None = None) -> list[Any]:
        now = world()
        now.point("loop")
        if not self._is_woken and (timeout is None or timeout > 0):
            self._task = now.current
            now.wait(None if timeout is None else now.now + timeout, "event loop")
            self._task = None
        self._is_woken = False
        return []

    def wake(self) -> None:
        self._is_woken = True
        if self._task is not None:
            world().wake(self._task)

    def close(self) -> None:
        return None

    def get_map(self) -> dict[Any, Any]:
        return {}


class EventLoop(asyncio.BaseEventLoop):
    """An event loop of a simulated thread, without files."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector()

    def time(self) -> float:
        return world().now

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        self._selector.wake()


def install() -> None:
    """Replace threads, clocks and randomness. Once per process, before labledger is imported."""
    threading.Lock = threading._allocate_lock = Lock
    threading.RLock = RLock
    # Until Python 3.12, a cached property has a lock for all its objects.
    functools.RLock = RLock
    threading.Thread = Thread
    threading.Timer = Timer
    threading.current_thread = lambda: world().current
    threading._time = monotonic
    concurrent.futures.thread._global_shutdown_lock = Lock()
    # Its end would take that lock, where there is no world; simulated pools have no real threads.
    threading._threading_atexits.clear()
    queue.SimpleQueue = queue._PySimpleQueue
    queue.time = monotonic
    asyncio.new_event_loop = asyncio.events.new_event_loop = EventLoop
    time.monotonic = monotonic
    time.perf_counter = monotonic
    time.time = unix_time
    time.sleep = sleep
    os.urandom = random_bytes
    random._urandom = random_bytes
    secrets.token_bytes = lambda nbytes=32: random_bytes(nbytes or 32)
    secrets.token_hex = lambda nbytes=32: random_bytes(nbytes or 32).hex()
    uuid.uuid4 = lambda: uuid.UUID(bytes=random_bytes(16), version=4)
    random.uniform = lambda low, high: low + (high - low) * world().random.random()
    os.getpid = lambda: world().current.process.pid


def monotonic() -> float:
    return world().now


def unix_time() -> float:
    return world().unix_time()


def sleep(seconds: float) -> None:
    world().sleep(seconds)


def random_bytes(size: int) -> bytes:
    return world().random.randbytes(size)


__all__ = ["EventLoop", "install", "scheduler"]
