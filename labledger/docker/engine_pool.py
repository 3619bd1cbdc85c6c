"""Engines for the threads of one owner, who starts them: the executor, and preflight.

An engine is one connection, which two threads must not use at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, LifoQueue

from labledger.docker.engine import Engine


class EnginePool:
    """Engines for the threads of one owner: each is used by one thread at a time, then reused.

    Creates no more engines than threads use at the same time. Thread-safe.
    """

    def __init__(self) -> None:
        self._idle: LifoQueue[Engine] = LifoQueue()

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Provide an engine that no other thread uses meanwhile."""
        try:
            engine = self._idle.get_nowait()
        except Empty:
            engine = Engine()
        try:
            yield engine
        finally:
            self._idle.put(engine)

    def close(self) -> None:
        """Close every engine. No thread may be using one."""
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()
