"""Files of containers that do not run, and of images, as streamed tars.

The engine lists what differs from the image and transfers files as tars; an image is saved and
loaded as one, so that a host can get what no registry offers. Everything is streamed: memory stays
flat whatever a container holds. Names and contents are as untrusted as any output.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labledger.engine.engine import Engine
from labledger.engine.engine_errors import ContainerFailed, EngineServerError
from labledger.engine.engine_facts import folders_of_own_files
from labledger.errors import EngineUnavailable
from labledger.records import JsonObject

if TYPE_CHECKING:
    from requests import Response


_TIMEOUT_S = 60
_NOT_FOUND = 404
_CHUNK = 1 << 18

ChangeKind = Literal["changed", "added", "deleted"]
_KINDS: tuple[ChangeKind, ...] = ("changed", "added", "deleted")
"""By the engine's numbers."""


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """The file system of one container, with the engine that holds it."""

    engine: Engine
    container: str
    """Its id or name."""

    def attributes(self) -> JsonObject:
        """Return what the engine knows of the container. Raises `NoSuchContainer`."""
        with self.engine.api(f"inspect container {self.container}") as client:
            attributes: JsonObject = client.inspect_container(self.container)
            return attributes

    def changes(self, *, with_engines_own: bool = True) -> Iterator[tuple[str, ChangeKind]]:
        """Yield each absolute path that differs from the image, in any order, and how.

        Without `with_engines_own`, a folder is left out that the engine itself changed, if the
        engine names it without its files there. A name that is not UTF-8 has U+FFFD in place of
        such bytes. Raises `ContainerFailed`, also if the engine does not answer in time, and
        `NoSuchContainer`.
        """
        action = f"compare container {self.container} with its image"
        try:
            response = self._get(action, "changes")
        except EngineServerError:
            # Podman says "layer not known" of a container that is gone.
            self.attributes()  # Raises `NoSuchContainer`.
            raise
        left_out = () if with_engines_own else folders_of_own_files(response.headers)
        with _closing(response):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            reader = _Reader(self.engine, response, action)
            texts = (decoder.decode(chunk) for chunk in reader.chunks())
            for change in _objects(texts):
                path, kind = str(change["Path"]), _KINDS[change["Kind"]]
                if kind != "changed" or path not in left_out:
                    yield path, kind

    @contextmanager
    def tar_of(self, path: str) -> Iterator[_Reader | None]:
        """Open a path, with everything below it, as a tar; None if nothing is there.

        Names in the tar begin with the last part of `path`. What the container has mounted below
        `path` is in the tar. A link is not followed if it is the last part of `path`.
        """
        action = f"read {path} in container {self.container}"
        response = self._get(action, "archive", path=path)
        with _closing(response):
            if response.status_code == _NOT_FOUND:
                self.attributes()  # Raises `NoSuchContainer`.
                yield None
            else:
                yield _Reader(self.engine, response, action)

    def put(self, tar: Iterable[bytes]) -> None:
        """Unpack a tar at `/`. What has the name of a member is replaced; folders are merged.

        Raises an `OSError` of `tar` as it is, and `ContainerFailed` or `EngineUnavailable`.
        """
        unreadable: list[OSError] = []

        def chunks() -> Iterator[bytes]:
            try:
                yield from tar
            except OSError as error:
                unreadable.append(error)
                raise

        try:
            with self.engine.api(f"put files into container {self.container}") as client:
                # An iterator is sent as a stream; a list would be taken for form fields.
                client.put_archive(self.container, "/", chunks())
        except EngineUnavailable:
            if unreadable:
                raise unreadable[0] from None
            raise

    def _get(self, action: str, what: str, **params: str) -> Response:
        """Return a streamed answer about the container. Raises `ContainerFailed`."""
        from docker.errors import create_api_error_from_http_exception
        from requests.exceptions import HTTPError, ReadTimeout

        with self.engine.api(action) as client:
            url = f"{client.base_url}/v{client.api_version}/containers/{self.container}/{what}"
            try:
                response = client.get(url, params=params, stream=True, timeout=_TIMEOUT_S)
            except ReadTimeout as error:
                message = f"could not {action}: the engine took longer than {_TIMEOUT_S} s"
                raise ContainerFailed(message) from error
            if response.status_code == _NOT_FOUND and what == "archive":
                return response
            try:
                response.raise_for_status()
            except HTTPError as error:
                create_api_error_from_http_exception(error)
            return response


class _Reader:
    """A streamed answer as a file that can be read once."""

    def __init__(self, engine: Engine, response: Response, action: str) -> None:
        self._engine, self._action = engine, action
        self._chunks = response.iter_content(_CHUNK)
        self._buffer = b""

    def chunks(self) -> Iterator[bytes]:
        """Yield the answer in pieces. Raises `EngineUnavailable`."""
        while True:
            with self._engine.api(self._action):
                chunk: bytes | None = next(self._chunks, None)
            if chunk is None:
                return
            yield chunk

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises `EngineUnavailable`."""
        while not self._buffer:
            with self._engine.api(self._action):
                chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._buffer = chunk
        piece, self._buffer = self._buffer[:size], self._buffer[size:]
        return piece


@contextmanager
def _closing(response: Response) -> Iterator[None]:
    try:
        yield
    finally:
        response.close()


def _objects(texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON list that arrives in pieces."""
    decoder = json.JSONDecoder()
    pending = ""
    for text in texts:
        pending += text
        start = 0
        while (at := pending.find("{", start)) >= 0:
            try:
                value, start = decoder.raw_decode(pending, at)
            except ValueError:
                start = at
                break
            yield value
        pending = pending[start:]


_CHUNK_BYTES = 1 << 20


def save(engine: Engine, image_id: str) -> Iterator[bytes]:
    """Yield the tar of an image, as `docker save` writes it. Raises `ContainerFailed`."""
    with engine.api(f"save image {image_id}") as client:
        yield from client.get_image(image_id, chunk_size=_CHUNK_BYTES)


def load(engine: Engine, tar: Path) -> None:
    """Load the images of a tar. Raises `ContainerFailed`, and `EngineUnavailable`."""
    with engine.api(f"load an image from {tar}") as client, tar.open("rb") as file:
        for line in client.load_image(file):  # type: ignore[no-untyped-call]
            if isinstance(line, dict) and "error" in line:
                from docker.errors import APIError

                raise APIError(str(line["error"]))


def image_ids(engine: Engine) -> frozenset[str]:
    """Return the ids (`sha256:…`) of the images that an engine has."""
    with engine.api("list the images") as client:
        return frozenset(client.images(quiet=True))
