"""Read and write files of stopped containers and of images, as streamed tars.

The engine lists what differs from the image. A saved image brings a host what no registry offers.
Everything is streamed, so memory stays flat. Names and contents are untrusted.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labledger.engine.engine import NOT_FOUND, Engine, get_answer
from labledger.engine.engine_errors import ContainerFailed, EngineServerError
from labledger.engine.engine_facts import folders_of_own_files
from labledger.errors import EngineUnavailable
from labledger.files.tars import PieceStream
from labledger.records import JsonObject

if TYPE_CHECKING:
    from requests import Response


_CHUNK = 1 << 18

ChangeKind = Literal["changed", "added", "deleted"]
_KINDS: tuple[ChangeKind, ...] = ("changed", "added", "deleted")
"""Indexed by the engine's numbers."""


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """The file system of one container, with the engine that holds it."""

    engine: Engine
    container: str
    """Its id or name."""

    def attributes(self) -> JsonObject:
        """Return the engine's description of the container. Raises `NoSuchContainer`."""
        with self.engine.api(f"inspect container {self.container}") as client:
            attributes: JsonObject = client.inspect_container(self.container)
            return attributes

    def changes(self, *, with_engines_own: bool = True) -> Iterator[tuple[str, ChangeKind]]:
        """Yield each absolute path that differs from the image, in any order, and how it differs.

        Without `with_engines_own`, skips a folder that the engine itself changed, if the engine
        lists the folder without its files. Bytes of a name that are not UTF-8 become U+FFFD.

        Raises `NoSuchContainer`, and `ContainerFailed`, also if the engine does not answer in time.
        """
        action = f"compare container {self.container} with its image"
        try:
            response = self._get(action, "changes")
        except EngineServerError:
            # For a container that is gone, Podman says "layer not known".
            self.attributes()  # Raises `NoSuchContainer`.
            raise
        left_out = () if with_engines_own else folders_of_own_files(response.headers)
        with closing(response):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            texts = map(decoder.decode, self._pieces(response, action))
            for change in _objects(texts):
                path, kind = str(change["Path"]), _KINDS[change["Kind"]]
                if kind != "changed" or path not in left_out:
                    yield path, kind

    @contextmanager
    def tar_of(self, path: str) -> Iterator[PieceStream | None]:
        """Open a path, with everything below it, as a tar.

        Provides None if the path does not exist.
        """
        action = f"read {path} in container {self.container}"
        response = self._get(action, "archive", path=path)
        with closing(response):
            if response.status_code == NOT_FOUND:
                self.attributes()  # Raises `NoSuchContainer`.
                yield None
            else:
                yield PieceStream(self._pieces(response, action))

    def put(self, tar: Iterable[bytes]) -> None:
        """Unpack a tar at `/`. Members replace files of the same name; folders are merged.

        An `OSError` of `tar` is passed on. Raises `ContainerFailed` and `EngineUnavailable`.
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
                # The library sends an iterator as a stream, but treats a list as form fields.
                client.put_archive(self.container, "/", chunks())
        except EngineUnavailable:
            if unreadable:
                raise unreadable[0] from None
            raise

    def _get(self, action: str, what: str, **params: str) -> Response:
        """Return the engine's streamed answer to a request. Raises `ContainerFailed`."""
        from requests.exceptions import ReadTimeout

        path = f"/containers/{self.container}/{what}"
        with self.engine.api(action) as client:
            try:
                return get_answer(
                    client, path, params, stream=True, may_be_missing=what == "archive"
                )
            except ReadTimeout as error:
                message = f"could not {action}: the engine took longer than {client.timeout} s"
                raise ContainerFailed(message) from error

    def _pieces(self, response: Response, action: str) -> Iterator[bytes]:
        """Yield the pieces of a streamed answer. Raises `EngineUnavailable`."""
        pieces = response.iter_content(_CHUNK)
        while True:
            with self.engine.api(action):
                piece: bytes | None = next(pieces, None)
            if piece is None:
                return
            yield piece


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
    """Load the images of a tar. Raises `ContainerFailed` and `EngineUnavailable`."""
    with engine.api(f"load an image from {tar}") as client, tar.open("rb") as file:
        for line in client.load_image(file):  # type: ignore[no-untyped-call]
            if isinstance(line, dict) and "error" in line:
                from docker.errors import APIError

                raise APIError(str(line["error"]))


def image_ids(engine: Engine) -> frozenset[str]:
    """Return the ids (`sha256:…`) of the images that an engine has."""
    with engine.api("list the images") as client:
        return frozenset(client.images(quiet=True))
