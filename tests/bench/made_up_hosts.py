"""Very many hosts of a cluster in one process, whose trials are made up.

    python -m bench.made_up_hosts SOCKET HOSTS SLOTS SECONDS

There are HOSTS with SLOTS each, and a trial takes about SECONDS. They answer coordinators through a
Unix socket until the parent process ends. A host's attempts outlive coordinators.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import random
import signal
import struct
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from bench import synthetic
from labledger import __version__
from labledger.execution.host_state import HostState
from labledger.hosts import host_messages as messages
from labledger.hosts.message_bytes import decode, encode
from labledger.trial.attempt_spec import AttemptSpec

FRAME = struct.Struct("<III")
"""The header of each message: its length, the call's number and the host's number."""
_PR_SET_PDEATHSIG = 1


class MadeUpHost:
    """Answers like a host, and has a result for each attempt after a while."""

    def __init__(self, number: int, slots: int, seconds: float) -> None:
        self.name = f"host{number}/{number:08x}"
        self._slots = slots
        self._seconds = seconds
        self._waiting: list[AttemptSpec] = []
        self._ends: dict[messages.AttemptKey, tuple[float, AttemptSpec]] = {}
        self._removed: set[messages.AttemptKey] = set()
        self._images: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    async def answer(self, request: Any) -> object:
        match request:
            case messages.Describe():
                return messages.Described(self.name, self._state(), time.monotonic(), time.time())
            case messages.MissingInputs():
                self._images |= {image for _, image in request.images}
                return messages.MissingReply(())
            case messages.Exchange():
                return await self._exchange(request)
            case messages.ListAttempts():
                waiting = {_key(spec) for spec in self._waiting}
                return messages.ListedAttempts(frozenset(self._ends.keys() | waiting))
            case messages.CleanUp():
                for key in request.durable:
                    self._ends.pop(key, None)
                return messages.CleanedUp()
            case _:
                return messages.Refusal("HostRefused", f"{type(request)} is not made up")

    def _state(self) -> HostState:
        busy = len(self._running)
        return HostState(
            self.name,
            self.name.partition("/")[2],
            self._slots,
            busy,
            images=self._images,
            labledger_version=__version__,
        )

    @property
    def _running(self) -> list[float]:
        """The ends of running trials."""
        now = time.monotonic()
        return [end for end, _ in self._ends.values() if end > now]

    def _start(self) -> None:
        """Start trials in the free slots."""
        free = self._slots - len(self._running)
        for spec in self._waiting[: max(free, 0)]:
            # Not in the order in which they began.
            lasts = self._seconds * random.uniform(0.9, 1.1)
            self._ends[_key(spec)] = time.monotonic() + lasts, spec
        del self._waiting[: max(free, 0)]

    async def _exchange(self, request: messages.Exchange) -> messages.ExchangeReply:
        has = self._ends.keys() | {_key(spec) for spec in self._waiting}
        self._waiting += [spec for spec in request.attempts if _key(spec) not in has]
        for removal in request.removals:
            self._ends.pop(_key(removal.spec), None)
            self._removed.add(_key(removal.spec))
        self._removed -= request.confirmed
        self._start()
        if request.attempts or request.removals:
            self._changed.set()
            self._changed = asyncio.Event()
        deadline = time.monotonic() + request.wait_s
        while not (self._removed or self._ended(request)) and time.monotonic() < deadline:
            until = min([deadline, *self._running]) - time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), max(until, 0.001))
            self._start()
        results = [_message(self._ends[key][1]) for key in self._ended(request)]
        return messages.ExchangeReply(
            self.name,
            time.monotonic(),
            results=tuple(results),
            removed=tuple(self._removed),
            state=self._state() if request.wants_state else None,
        )

    def _ended(self, request: messages.Exchange) -> list[messages.AttemptKey]:
        now = time.monotonic()
        over = [key for key, (end, _) in self._ends.items() if end <= now]
        return [key for key in over if key not in request.received]


def _key(spec: AttemptSpec) -> messages.AttemptKey:
    return spec.slot.schedule_idx, spec.attempt


def _message(spec: AttemptSpec) -> messages.ResultMessage:
    result = synthetic.result(spec.run_id, spec.slot, spec.attempt)
    contents = {
        artifact.sha256: artifact.content
        for artifact in result.artifacts
        if artifact.content is not None
    }
    return messages.ResultMessage(_key(spec), json.dumps(result.as_json()).encode(), contents)


async def serve(path: str, hosts: list[MadeUpHost]) -> None:
    tasks: set[asyncio.Task[None]] = set()

    def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def answer(writer: asyncio.StreamWriter, call: int, host: int, request: bytes) -> None:
        reply = encode(await hosts[host].answer(decode(request)))
        if not writer.is_closing():
            writer.write(FRAME.pack(len(reply), call, host) + reply)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size, call, host = FRAME.unpack(await reader.readexactly(FRAME.size))
                spawn(answer(writer, call, host, await reader.readexactly(size)))
        writer.close()

    server = await asyncio.start_unix_server(accept, path)
    print("listening", flush=True)
    await server.serve_forever()


def main() -> None:
    path, hosts, slots, seconds = sys.argv[1:]
    # The process ends with its parent, however the parent ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    made_up = [MadeUpHost(number, int(slots), float(seconds)) for number in range(int(hosts))]
    asyncio.run(serve(path, made_up))


if __name__ == "__main__":
    main()
