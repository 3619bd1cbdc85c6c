"""Carry large files between coordinator and hosts through the object store of their cluster.

Every method returns whether it carried the file; otherwise the caller sends or reads the file in
pieces. A machine that could not use the store is not asked for a while. Call this module on the
connection's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from labledger import clock
from labledger.files.partial_files import PartialFile
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
    StoreUnusable,
    require_object_store,
)

_WAIT_S = 8.0
"""How many seconds a host waits for the end of a transfer before it replies."""
_RETRY_S = 300.0
"""How many seconds a machine that could not use the store is not asked again."""
_COORDINATOR = "the coordinator"


class TransferThreads:
    """Threads for work that would block the event loop: files, the engine, object stores."""

    def __init__(self, name: str, count: int = 4) -> None:
        self._pool = ThreadPoolExecutor(count, name)
        self.places = asyncio.Semaphore(count)
        """Limits how many transfers of several calls run at once."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function in one of the threads, and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *arguments)

    def close(self) -> None:
        """Begin no further work."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class StoreRelay:
    """The files of one run in the object store. Without a `place`, it carries nothing."""

    def __init__(
        self,
        connection: ClusterConnection,
        setup: RunSetup,
        place: StorePlace | None,
        warn: Callable[[str], None],
    ) -> None:
        """Raises `ExtraMissing` and `InvalidInput` if fsspec cannot open the place.

        Each coordinator has its own folder, so that a coordinator that lost the run does not
        disturb its successor.
        """
        self._connection = connection
        self._setup = setup
        self._place: StorePlace | None = None
        if place is not None:
            require_object_store(place)
            self._place = place.below(setup.run.ledger_id, setup.run.run_id)
            self._own = self._place.below(str(setup.epoch))
            self._store = ObjectStore(self._own)
        self._warn = warn
        self._retry_at: dict[str, float] = {}
        """When to ask each machine that could not use the store again, by its name."""
        self._inputs: dict[str, asyncio.Task[tuple[str, int]]] = {}
        """The inputs in the store, with digest and size. Each is put once for all hosts."""
        self._threads = TransferThreads("object-store")

    async def supply(
        self, link: HostLink, name: str, size: int | None, pieces: Callable[[], Iterator[bytes]]
    ) -> bool:
        """Bring an artifact or an image's tar to a host. Return whether the host has it.

        A `size` of None means unknown and large. Raises the errors of `pieces`, `HostUnreachable`
        and `WrongSession`.
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
        # The object may have been deleted.
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
            self._warn("objects that are no longer needed cannot be deleted in the object store")
        return True

    def clean_up(self) -> list[str]:
        """Delete the objects of all coordinators of the run. Return a warning if that failed.

        Hosts and results are not affected: a needed file is sent again.
        """
        if self._place is None:
            return []
        try:
            ObjectStore(self._place).delete_all()
        except StoreUnusable as error:
            return [f"files of the run may be left in the object store: {error.message}"]
        return []

    def close(self) -> None:
        """End transfers in progress."""
        if self._place is not None:
            self._store.close()
        self._threads.close()

    def _carries(self, link: HostLink, size: int | None) -> bool:
        """Return whether a file is large enough, and no machine failed recently."""
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
        """Send files of a machine in pieces for a while. Warn the first time."""
        if machine not in self._retry_at:
            self._warn(
                f"{machine} cannot use the object store: {problem}; its files go through the "
                "scheduler instead"
            )
        self._retry_at[machine] = clock.monotonic() + _RETRY_S
