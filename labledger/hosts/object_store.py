"""An object store, such as S3, that a run's machines can reach, and files that arrive in pieces.

The store only carries files between machines. The receiver checks each file by its digest, and each
call ends in bounded time. Pieces may be repeated or delayed without harm, and a file gets its name
once it is complete and durable.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from labledger import clock
from labledger.errors import InvalidInput, LabLedgerError, Problem
from labledger.files.lab_folder import scratch_folder
from labledger.files.partial_files import DigestMismatch, PartialFile
from labledger.hosts.host_messages import StorePlace
from labledger.records.canonical_json import sha256_hex
from labledger.resources import require_for

MIN_BYTES = 1 << 20
"""The smallest file that is sent through the store, in bytes."""

CALL_TIMEOUT_S = 60.0
"""How many seconds one call to the store, which carries one piece, may take."""

_TRIAL_TIMEOUT_S = 10.0
_READ_BYTES = 4 << 20
_WRITE_BYTES = 8 << 20
"""How many bytes are uploaded at once. Stores require at least 5 MiB."""
_CLOSE_POLL_S = 0.5
_LONGEST_REASON = 200


class StoreUnusable(LabLedgerError):
    """The object store did not carry out a request."""


class BadObject(StoreUnusable):
    """The object store lacks an object, or has another content under its name."""


class ObjectStore:
    """The objects of one run. Thread-safe. `close` ends transfers at their next piece."""

    def __init__(self, place: StorePlace, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.place = place
        self._timeout_s = timeout_s
        self._closed = threading.Event()
        self._system: tuple[Any, str] | None = None
        """The file system of fsspec and the path in it, once it was opened."""

    def put(self, name: str, pieces: Iterator[bytes]) -> tuple[str, int]:
        """Store an object. Return its SHA-256 in hex and its size.

        Raises `StoreUnusable`, and the errors of `pieces`.
        """
        system, path = self._open(name)
        hasher, size = hashlib.sha256(), 0
        file = self._call(system.open, path, "wb", block_size=_WRITE_BYTES)
        try:
            for piece in pieces:
                self._call(file.write, piece)
                hasher.update(piece)
                size += len(piece)
            self._call(file.close)
        except BaseException:
            # Do not wait for the end, because the store may not answer.
            _start(_discard, system, path, file)
            raise
        return hasher.hexdigest(), size

    def fetch(self, name: str, size: int, sha256: str, target: PartialFile) -> None:
        """Get an object with a known size and digest, and make it durable.

        Raises `StoreUnusable`, `BadObject` for other content, and `OSError` for errors of the disk.
        """
        system, path = self._open(name)
        arrived = 0
        try:
            while arrived < size:
                end = min(arrived + _READ_BYTES, size)
                piece = self._call(system.cat_file, path, start=arrived, end=end)
                if len(piece) != end - arrived:
                    raise BadObject(f"{path} does not have the {size} bytes that it should have")
                arrived = target.append(arrived, piece)
            target.finish(sha256)
        except DigestMismatch as error:
            raise BadObject(f"{path}: {error.message}") from error
        finally:
            target.discard()

    def delete(self, name: str) -> None:
        """Delete an object, if it exists. Raises `StoreUnusable`."""
        system, path = self._open(name)
        with suppress(BadObject):
            self._call(system.rm_file, path)

    def delete_all(self) -> None:
        """Delete every object of the run. Raises `StoreUnusable`."""
        system, path = self._open()
        self._call(system.invalidate_cache)
        with suppress(BadObject):
            self._call(system.rm, path, recursive=True)

    def close(self) -> None:
        """End calls in progress, which then raise `StoreUnusable`."""
        self._closed.set()

    def _open(self, *names: str) -> tuple[Any, str]:
        """Return the file system of fsspec, and the path of an object in it."""
        if self._system is None:
            self._system = self._call(_file_system, self.place)
        system, path = self._system
        return system, "/".join([path, *names])

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call the store in a new thread, which is abandoned if it takes too long."""
        outcome = Future[Any]()

        def call() -> None:
            try:
                outcome.set_result(function(*arguments, **options))
            except BaseException as error:
                outcome.set_exception(error)

        _start(call)
        deadline = clock.monotonic() + self._timeout_s
        while not outcome.done():
            if self._closed.is_set() or clock.monotonic() > deadline:
                raise StoreUnusable(f"{self.place.url} did not answer in {self._timeout_s:.0f} s")
            with suppress(Exception):
                outcome.exception(_CLOSE_POLL_S)
        error = outcome.exception()
        if error is None:
            return outcome.result()
        kind = BadObject if isinstance(error, FileNotFoundError) else StoreUnusable
        reason = f"{type(error).__name__}: {error}"
        raise kind(f"{self.place.url}: {reason[:_LONGEST_REASON]}") from error


def try_object_store(place: StorePlace) -> None:
    """Put an object, get it and delete it.

    Raises `StoreUnusable`, and as `require_object_store` does.
    """
    require_object_store(place)
    store, name = ObjectStore(place.below("preflight"), _TRIAL_TIMEOUT_S), secrets.token_hex(8)
    store.put(name, iter([name.encode()]))
    with scratch_folder("object-store") as folder:
        arriving, target = folder / "arriving", folder / "arrived"
        store.fetch(name, len(name), sha256_hex(name.encode()), PartialFile(arriving, target))
    store.delete(name)


def require_object_store(place: StorePlace) -> None:
    """Raise `ExtraMissing` or `InvalidInput` if fsspec cannot open the store's address here."""
    require_for("an object store", "fsspec", "fsspec")
    from fsspec import get_filesystem_class

    try:
        get_filesystem_class(place.url.partition("://")[0])
    except (ImportError, ValueError) as error:
        raise InvalidInput("the cluster", [Problem(place.url, str(error))]) from error


def _discard(system: Any, path: str, file: Any) -> None:
    """Delete the object of a failed upload, as far as the store allows."""
    from fsspec.spec import AbstractBufferedFile

    with suppress(Exception):
        if isinstance(file, AbstractBufferedFile):
            # Closing the file would complete the object.
            file.closed = True
            file.discard()
        else:
            file.close()
    with suppress(Exception):
        system.rm_file(path)


def _start(function: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, name="object store", daemon=True).start()


def _file_system(place: StorePlace) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    # fsspec would keep a file system for each thread, for ever.
    options = {**place.options, "skip_instance_cache": True}
    if place.url.startswith(("file://", "local://")):
        # Unlike other stores, a file system needs folders.
        options.setdefault("auto_mkdir", True)
    system, path = url_to_fs(place.url, **options)
    return system, path
