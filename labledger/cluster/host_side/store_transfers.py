"""What a host gets from object stores and puts into them, by request of coordinators.

A transfer goes on while nobody asks for it: the coordinator asks again until it is over. One that
failed is reported with the reason, and the coordinator then sends or reads the file in pieces.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from labledger.cluster.host_messages import GetInput, PutOutput, StorePlace, StoreReply
from labledger.cluster.host_side.host_inputs import HostInputs
from labledger.cluster.object_store import ObjectStore
from labledger.errors import LabLedgerError

_TRANSFERS_AT_ONCE = 4
_MAX_OPEN = 4
"""How many stores stay open: each has connections and settings that take time to make."""
_PIECE_BYTES = 1 << 20


class StoreTransfers:
    """The transfers of one host. Thread-safe."""

    def __init__(self, inputs: HostInputs) -> None:
        self._inputs = inputs
        self._threads = ThreadPoolExecutor(_TRANSFERS_AT_ONCE, "transfer")
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], tuple[ObjectStore, Future[None]]] = {}
        """Transfers that are not reported as over, by the place and the name of the object."""
        self._stores: dict[str, ObjectStore] = {}
        """By their addresses, the one that was used last at the end."""

    def get_input(self, request: GetInput) -> StoreReply:
        """Get an input, or go on waiting for it."""
        return self._carry_out(request, lambda store: self._inputs.fetch(store, request))

    def put_output(self, request: PutOutput, path: Path) -> StoreReply:
        """Put a file of a result, or go on waiting for it."""

        def put(store: ObjectStore) -> None:
            with path.open("rb") as file:
                store.put(request.object_name, iter(lambda: file.read(_PIECE_BYTES), b""))

        return self._carry_out(request, put)

    def _carry_out(
        self, request: GetInput | PutOutput, transfer: Callable[[ObjectStore], None]
    ) -> StoreReply:
        name = (request.place.url, request.object_name)
        with self._lock:
            if name not in self._running:
                store = self._open(request.place)
                self._running[name] = store, self._threads.submit(transfer, store)
            _, future = self._running[name]
        wait([future], request.wait_s)
        if not future.done():
            return StoreReply(is_over=False)
        with self._lock:
            self._running.pop(name, None)
        error = None if future.cancelled() else future.exception()
        if error is None:
            return StoreReply(is_over=not future.cancelled())
        return StoreReply(True, error.message if isinstance(error, LabLedgerError) else str(error))

    def _open(self, place: StorePlace) -> ObjectStore:
        """Return the store of a place, and forget the one that was not used for longest."""
        store = self._stores.pop(place.url, None) or ObjectStore(place)
        self._stores[place.url] = store
        if len(self._stores) > _MAX_OPEN:
            del self._stores[next(iter(self._stores))]
        return store

    def close(self) -> None:
        """End every transfer. A later process of the host begins it again."""
        with self._lock:
            for store, _ in self._running.values():
                store.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
