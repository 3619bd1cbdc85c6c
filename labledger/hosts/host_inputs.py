"""The inputs that a host has, and its transfers from and to object stores.

Inputs are staged files, workspaces, files of tasks and images. They arrive once, for all runs, and
are checked on arrival. An attempt gets hard links in its own store, so that deleting its outputs
never deletes an input. Unused artifacts are deleted.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from labledger import clock
from labledger.engine import container_files
from labledger.engine.engine import EnginePool
from labledger.errors import LabLedgerError
from labledger.files.artifact_store import ArtifactStore
from labledger.files.durable_files import file_pieces, make_folder
from labledger.files.partial_files import PartialFile
from labledger.hosts.host_messages import (
    DIGEST,
    GetInput,
    HostRefused,
    MissingReply,
    PulledImage,
    PutChunk,
    PutOutput,
    StorePlace,
    StoreReply,
)
from labledger.hosts.object_store import ObjectStore

_UNUSED_AFTER_S = 7 * 24 * 3600.0
_PULLS_AT_ONCE = 2
_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}")


class HostInputs:
    """The inputs of all runs on a host. Thread-safe."""

    def __init__(self, folder: Path, engines: EnginePool) -> None:
        self.store = ArtifactStore(folder)
        self._incoming = folder / "incoming"
        self._engines = engines
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        """A lock for each file that is arriving."""
        self._supplies: dict[str, Future[None]] = {}
        """Pulls and loads of images by id, and pulls by name, ended or not."""
        self._suppliers = ThreadPoolExecutor(_PULLS_AT_ONCE, "image")

    def missing(
        self, digests: Iterable[str], images: Iterable[tuple[str, str]] = ()
    ) -> MissingReply:
        """Return the inputs that the host lacks, and begin to pull missing images.

        Raises `EngineUnavailable`.
        """
        lacking = tuple(digest for digest in digests if not self.store.contains(digest))
        pulling: list[str] = []
        unobtainable: dict[str, str] = {}
        for ref, image_id in images:
            with self._engines.engine() as engine:
                if engine.image_id(image_id) is not None:
                    self._supplies.pop(image_id, None)
                    continue
            with self._lock:
                supply = self._supplies.get(image_id)
                if supply is None:
                    supply = self._suppliers.submit(self._pull, ref, image_id)
                    self._supplies[image_id] = supply
            if not supply.done():
                pulling.append(image_id)
            elif (error := supply.exception()) is not None:
                unobtainable[image_id] = str(error)
            else:
                # The image arrived, and was removed since.
                self._supplies.pop(image_id, None)
                pulling.append(image_id)
        return MissingReply(lacking, tuple(pulling), unobtainable)

    def find_images(self, refs: Iterable[str]) -> dict[str, str]:
        """Return the ids of the images that the host has. Raises `EngineUnavailable`."""
        with self._engines.engine() as engine:
            ids = {ref: engine.image_id(ref) for ref in refs}
        return {ref: image for ref, image in ids.items() if image is not None}

    def pull_image(self, ref: str) -> PulledImage:
        """Begin to pull an image that the host lacks, or return how the pull ended.

        Raises `EngineUnavailable`.
        """
        image = self.find_images((ref,)).get(ref)
        with self._lock:
            pull = self._supplies.get(ref)
            if pull is None and image is None:
                pull = self._supplies[ref] = self._suppliers.submit(self._pull_by_name, ref)
            if pull is not None and not pull.done():
                return PulledImage()
            self._supplies.pop(ref, None)
        if image is None and pull is not None:
            # If the pull succeeded after the engine was asked, the next request finds the image.
            error = pull.exception()
            return PulledImage(problem=None if error is None else str(error))
        return PulledImage(image)

    def put(self, chunk: PutChunk) -> tuple[int, bool]:
        """Add a piece of an artifact or of an image's tar. Return its size, and if it is complete.

        Raises `DigestMismatch`, and `HostRefused` for a name that is neither.
        """
        is_image = _is_image(chunk.name)
        with self._lock:
            lock = self._locks.setdefault(chunk.name, threading.Lock())
        with lock:
            if not is_image and self.store.contains(chunk.name):
                return chunk.offset + len(chunk.content), True
            partial = self._partial(chunk.name)
            size = partial.append(chunk.offset, chunk.content)
            if not chunk.last or size != chunk.offset + len(chunk.content):
                return size, False
            partial.finish(None if is_image else chunk.name)
        if is_image:
            self._begin_to_load(chunk.name)
        return size, True

    def fetch(self, store: ObjectStore, request: GetInput) -> None:
        """Get an artifact or an image's tar from an object store.

        Raises `StoreUnusable`, and `HostRefused` for a name that is neither.
        """
        is_image = _is_image(request.name)
        if not is_image and self.store.contains(request.name):
            return
        sha256 = request.sha256 if is_image else request.name
        partial = self._partial(request.name, ".fetched")
        store.fetch(request.object_name, request.size, sha256, partial)
        if is_image:
            self._begin_to_load(request.name)

    def _partial(self, name: str, suffix: str = "") -> PartialFile:
        target = self._image_tar(name) if _is_image(name) else self.store.path(name)
        return PartialFile(self._incoming / f"{name.replace(':', '-')}{suffix}", target)

    def _begin_to_load(self, image_id: str) -> None:
        with self._lock:
            self._supplies[image_id] = self._suppliers.submit(self._load, image_id)

    def link(self, digests: Collection[str], store: Path) -> None:
        """Link the artifacts of an attempt into its own `store`.

        Artifacts that the coordinator no longer has are left out. The attempt reports the
        consequence.
        """
        attempt_store = ArtifactStore(store)
        for digest in digests:
            source, target = self.store.path(digest), attempt_store.path(digest)
            make_folder(target.parent)
            with suppress(FileExistsError, FileNotFoundError):
                os.utime(source)
                os.link(source, target)

    def digests(self, limit: int) -> Iterator[str]:
        """Yield the digests of at most `limit` artifacts that the host has."""
        paths = (self.store.root / "sha256").glob("??/*")
        for _, path in zip(range(limit), paths, strict=False):
            yield path.name

    def delete_unused(self) -> None:
        """Delete artifacts that no attempt has used for a week, and incomplete ones of that age."""
        oldest = clock.unix_time() - _UNUSED_AFTER_S
        for path in [*(self.store.root / "sha256").glob("??/*"), *self._incoming.glob("*")]:
            with suppress(OSError):
                status = path.stat()
                if status.st_nlink == 1 and status.st_mtime < oldest:
                    path.unlink()

    def close(self) -> None:
        """Begin no further pull."""
        self._suppliers.shutdown(wait=False, cancel_futures=True)

    def _image_tar(self, image_id: str) -> Path:
        return self.store.root / "images" / f"{image_id.partition(':')[2]}.tar"

    def _pull(self, ref: str, image_id: str) -> None:
        """Pull an image. Raises `LabLedgerError` if its registry has another image, or none."""
        with self._engines.engine() as engine:
            if engine.image_id(ref) is None and _IMAGE_ID.fullmatch(ref) is None:
                engine.pull(ref)
            pulled_id = engine.image_id(ref)
        if pulled_id != image_id:
            raise LabLedgerError(f"{ref} is {pulled_id or 'not available'} there, not {image_id}")

    def _pull_by_name(self, ref: str) -> None:
        with self._engines.engine() as engine:
            engine.pull(ref)

    def _load(self, image_id: str) -> None:
        """Load an image from its tar, and delete the tar. Raises `LabLedgerError`."""
        tar = self._image_tar(image_id)
        try:
            with self._engines.engine() as engine:
                container_files.load(engine, tar)
                if engine.image_id(image_id) is None:
                    raise LabLedgerError(f"the tar that arrived does not hold {image_id}")
        finally:
            tar.unlink(missing_ok=True)


def _is_image(name: str) -> bool:
    """Return whether a name is an image id, not a digest. Raises `HostRefused` if neither."""
    if _IMAGE_ID.fullmatch(name) is not None:
        return True
    if DIGEST.fullmatch(name) is None:
        raise HostRefused(f"{name!r} is neither a digest nor the id of an image")
    return False


_TRANSFERS_AT_ONCE = 4
_MAX_OPEN = 4
"""How many stores stay open, because opening one takes time."""


class StoreTransfers:
    """The transfers of one host. Thread-safe."""

    def __init__(self, inputs: HostInputs) -> None:
        self._inputs = inputs
        self._threads = ThreadPoolExecutor(_TRANSFERS_AT_ONCE, "transfer")
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], tuple[ObjectStore, Future[Any]]] = {}
        """Transfers whose end is not reported yet, by the place and the name of the object."""
        self._stores: dict[str, ObjectStore] = {}
        """Open stores by their addresses, the last used one at the end."""

    def get_input(self, request: GetInput) -> StoreReply:
        """Get an input, or wait further for its arrival."""
        return self.carry_out(request, lambda store: self._inputs.fetch(store, request))

    def put_output(self, request: PutOutput, path: Path) -> StoreReply:
        """Put a file of a result, or wait further for the end of its transfer."""
        return self.carry_out(
            request, lambda store: store.put(request.object_name, file_pieces(path))
        )

    def carry_out(
        self, request: GetInput | PutOutput, transfer: Callable[[ObjectStore], Any]
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
        """Return the store of a place, and forget the least recently used one."""
        store = self._stores.pop(place.url, None) or ObjectStore(place)
        self._stores[place.url] = store
        if len(self._stores) > _MAX_OPEN:
            del self._stores[next(iter(self._stores))]
        return store

    def close(self) -> None:
        """End every transfer. A later process of the host begins them again."""
        with self._lock:
            for store, _ in self._running.values():
                store.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
