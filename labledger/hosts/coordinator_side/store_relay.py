"""Carry large files between coordinator and hosts through the object store of their cluster.

Then they pass neither through the scheduler nor through its machine. Nothing depends on it: every
method says whether the file was carried, and the caller must send or read it in pieces if it was
not. A machine that could not use the store is left alone for a while, with one warning. Call it on
the event loop of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from labledger import clock
from labledger.hosts.coordinator_side.host_link import HostLink
from labledger.hosts.host_messages import (
    AttemptKey,
    GetInput,
    HostRefused,
    PutOutput,
    RunSetup,
    StorePlace,
    StoreReply,
    WrongSession,
)
from labledger.hosts.host_transport import ClusterConnection
from labledger.hosts.object_store import (
    MIN_BYTES,
    BadObject,
    ObjectStore,
    PartialFile,
    StoreUnusable,
    require_object_store,
)

_WAIT_S = 8.0
"""How long a host waits for the end of a transfer before it replies."""
_RETRY_S = 300.0
"""For how long a machine is left alone that could not use the store."""
_COORDINATOR = "the coordinator"


class TransferThreads:
    """Threads for what would hold up the event loop: files, the engine, and object stores."""

    def __init__(self, name: str, count: int = 4) -> None:
        self._pool = ThreadPoolExecutor(count, name)
        self.places = asyncio.Semaphore(count)
        """For transfers that take several calls: so many at once."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns in one of the threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *arguments)

    def close(self) -> None:
        """Begin nothing further."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class StoreRelay:
    """The files of one run in the object store. Without a `place`, it carries nothing."""

    def __init__(
        self,
        connection: ClusterConnection,
        setup: RunSetup,
        place: StorePlace | None,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` warns. Raises `ExtraMissing` and `InvalidInput` if fsspec cannot open the place.

        Each coordinator has a folder of its own, so that one that has lost the run disturbs nobody.
        """
        self._connection = connection
        self._setup = setup
        self._place: StorePlace | None = None
        if place is not None:
            require_object_store(place)
            self._place = place.below(setup.run.ledger_id, setup.run.run_id)
            self._own = self._place.below(str(setup.epoch))
            self._store = ObjectStore(self._own)
        self._tell = tell
        self._retry_at: dict[str, float] = {}
        """When each machine that could not use the store is asked again, by its name."""
        self._inputs: dict[str, asyncio.Task[tuple[str, int]]] = {}
        """The inputs that were put, with digest and size: each once, for all hosts."""
        self._threads = TransferThreads("object-store")

    async def supply(
        self, link: HostLink, name: str, size: int | None, pieces: Callable[[], Iterator[bytes]]
    ) -> bool:
        """Bring an artifact or an image's tar to a host. Return whether the host has it.

        `size` is None if it is not known, and large. Raises what `pieces` raises,
        `HostUnreachable` and `WrongSession`.
        """
        if not self._carries(link, size):
            return False
        object_name = "inputs-" + name.replace(":", "-")
        task = self._inputs.get(name)
        if task is None:
            put = self._threads.run(lambda: self._store.put(object_name, pieces()))
            task = self._inputs[name] = asyncio.create_task(put)
        try:
            sha256, put_size = await asyncio.shield(task)
        except StoreUnusable as error:
            self._inputs.pop(name, None)
            self._leave_alone(_COORDINATOR, error.message)
            return False
        except Exception:
            self._inputs.pop(name, None)
            raise

        def request(session: str) -> GetInput:
            place = self._own
            return GetInput(session, place, object_name, name, sha256, put_size, _WAIT_S)

        if await self._ask(link, request):
            return True
        # Somebody may have deleted it.
        self._inputs.pop(name, None)
        return False

    async def fetch(
        self,
        link: HostLink,
        key: AttemptKey,
        name: str | None,
        size: int,
        sha256: str,
        target: PartialFile,
    ) -> bool:
        """Get a file of a result from a host. Return whether it is here, durably.

        `name` is the digest of an artifact, None for the file of events. Raises `OSError` for this
        disk, `HostUnreachable` and `WrongSession`.
        """
        if not self._carries(link, size):
            return False
        object_name = f"{key[0]}-{key[1]}-{sha256}"

        def request(session: str) -> PutOutput:
            return PutOutput(session, self._own, object_name, self._setup.run, key, name, _WAIT_S)

        if not await self._ask(link, request):
            return False
        try:
            await self._threads.run(self._store.fetch, object_name, size, sha256, target)
        except BadObject as error:
            self._leave_alone(link.name, error.message)
            return False
        except StoreUnusable as error:
            self._leave_alone(_COORDINATOR, error.message)
            return False
        try:
            await self._threads.run(self._store.delete, object_name)
        except StoreUnusable:
            self._tell("objects that are not needed any more cannot be deleted in the object store")
        return True

    def clean_up(self) -> list[str]:
        """Delete what this and earlier coordinators of the run left. Return a warning if it failed.

        Hosts and results are not affected: what is needed after all is carried again, or in pieces.
        """
        if self._place is None:
            return []
        try:
            ObjectStore(self._place).delete_all()
        except StoreUnusable as error:
            return [f"files of the run may be left in the object store: {error.message}"]
        return []

    def close(self) -> None:
        """End what is in progress."""
        if self._place is not None:
            self._store.close()
        self._threads.close()

    def _carries(self, link: HostLink, size: int | None) -> bool:
        """Return whether a file of this size is worth trying, and both machines can be."""
        if self._place is None or (size is not None and size < MIN_BYTES):
            return False
        now = clock.monotonic()
        return all(self._retry_at.get(name, now) <= now for name in (_COORDINATOR, link.name))

    async def _ask(self, link: HostLink, request: Callable[[str], GetInput | PutOutput]) -> bool:
        """Have a host carry out its part. Return whether it did."""
        reply = StoreReply(is_over=False)
        while not reply.is_over:
            try:
                reply = await link.ask(self._connection, request)
            except WrongSession:
                raise
            except HostRefused as error:
                reply = StoreReply(True, error.message)
        if reply.problem is not None:
            self._leave_alone(link.name, reply.problem)
        return reply.problem is None

    def _leave_alone(self, machine: str, problem: str) -> None:
        """Let files of a machine go in pieces for a while. Warns the first time."""
        if machine not in self._retry_at:
            self._tell(
                f"{machine} cannot use the object store: {problem}; its files go through the "
                "scheduler instead"
            )
        self._retry_at[machine] = clock.monotonic() + _RETRY_S
