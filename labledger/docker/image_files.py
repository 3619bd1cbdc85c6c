"""Images as files: save one as a tar, load one from a tar, and list which an engine has.

Hosts get images that no registry offers this way. Contents are streamed, so that memory stays flat.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labledger.docker.engine import Engine

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
