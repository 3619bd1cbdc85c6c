"""Bring to a host what attempts need there: staged files, workspaces and images, once each.

Artifacts come from the coordinator's store; an image is pulled by the host, and sent from the
coordinator's engine if the host cannot get the same one. Everything goes through the object store
of the cluster, or in bounded pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from labledger.engine import container_files
from labledger.engine.engine import Engine
from labledger.files.artifact_store import ArtifactStore
from labledger.hosts.coordinator_side.host_link import HostLink
from labledger.hosts.coordinator_side.store_relay import (
    TRANSFERS_AT_ONCE,
    StoreRelay,
    TransferThreads,
)
from labledger.hosts.host_messages import (
    CHUNK_BYTES,
    ChunkReply,
    HostRefused,
    MissingInputs,
    MissingReply,
    PutChunk,
)
from labledger.hosts.host_transport import ClusterConnection, HostUnreachable
from labledger.hosts.object_store import read_chunk

_FIRST_IMAGE_POLL_S = 0.5
_MAX_IMAGE_POLL_S = 10.0


class InputSupply:
    """Sends inputs to hosts, each once a host, however many attempts wait for it."""

    def __init__(
        self, connection: ClusterConnection, store: ArtifactStore, relay: StoreRelay
    ) -> None:
        self._connection = connection
        self._store = store
        self._relay = relay
        self._transfers = asyncio.Semaphore(TRANSFERS_AT_ONCE)
        self._threads = TransferThreads("inputs")
        self.sent_bytes: dict[str, int] = {}
        """How many bytes each host was sent in pieces, by its name."""

    async def provide(
        self, link: HostLink, digests: frozenset[str], images: Mapping[str, str]
    ) -> None:
        """Return when the host has these artifacts, and these images by name and id.

        Raises `HostUnreachable`, and `LabLedgerError` if an image cannot be provided.
        """
        ids = set(images.values())
        needed = (digests | ids) - link.known_inputs
        new = needed - link.supplies.keys()
        if new:
            by_name = {ref: image for ref, image in images.items() if image in new}
            task = asyncio.create_task(self._provide_new(link, set(new - ids), by_name))
            link.supplies |= dict.fromkeys(new, task)
        waiting = {link.supplies[name] for name in needed}
        try:
            for each in waiting:
                await asyncio.shield(each)
        finally:
            for name in needed:
                if (ended := link.supplies.get(name)) is not None and ended.done():
                    del link.supplies[name]

    async def _provide_new(
        self, link: HostLink, digests: set[str], images: Mapping[str, str]
    ) -> None:
        session = link.session
        reply = await self._missing(link, digests, images)
        for digest in reply.digests:
            if self._store.contains(digest):
                path = self._store.path(digest)
                size = path.stat().st_size
                if not await self._relay.supply(link, digest, size, partial(_pieces_of, path)):
                    async with self._transfers:
                        await self._send_artifact(link, digest)
        await self._provide_images(link, images, reply)
        if link.session == session:
            link.known_inputs |= digests | set(images.values())

    async def _provide_images(
        self, link: HostLink, images: Mapping[str, str], reply: MissingReply
    ) -> None:
        poll_s = _FIRST_IMAGE_POLL_S
        sent: set[str] = set()
        while reply.pulling or reply.images:
            for image_id, problem in reply.images.items():
                if image_id in sent:
                    raise HostRefused(f"{link.name} cannot get image {image_id}: {problem}")
                sent.add(image_id)
                if not await self._relay.supply(link, image_id, None, partial(_saved, image_id)):
                    async with self._transfers:
                        await self._send_image(link, image_id)
            await asyncio.sleep(poll_s)
            poll_s = min(poll_s * 2, _MAX_IMAGE_POLL_S)
            reply = await self._missing(link, set(), images)

    async def _missing(
        self, link: HostLink, digests: set[str], images: Mapping[str, str]
    ) -> MissingReply:
        inputs = tuple(sorted(digests)), tuple(images.items())
        reply: MissingReply = await link.ask(
            self._connection, lambda session: MissingInputs(session, *inputs)
        )
        return reply

    async def _send_artifact(self, link: HostLink, digest: str) -> None:
        path = self._store.path(digest)
        size = path.stat().st_size
        # Asks how much has arrived, if an earlier transfer broke off.
        offset = await self._put(link, digest, -1, b"", last=False) if size > CHUNK_BYTES else 0
        while True:
            chunk = await self._threads.run(read_chunk, path, offset, CHUNK_BYTES)
            is_last = offset + len(chunk) >= size
            arrived = await self._put(link, digest, offset, chunk, last=is_last)
            if is_last and arrived == offset + len(chunk):
                return
            offset = arrived

    async def _send_image(self, link: HostLink, image_id: str) -> None:
        """Send an image as a tar, which the coordinator's engine writes."""
        pieces = _of_chunk_size(_saved(image_id))
        offset = 0
        chunk = await self._threads.run(next, pieces, b"")
        while True:
            following = await self._threads.run(next, pieces, b"")
            arrived = await self._put(link, image_id, offset, chunk, last=not following)
            offset += len(chunk)
            if arrived != offset:
                raise HostUnreachable(f"another transfer of {image_id} interfered")
            if not following:
                return
            chunk = following

    async def _put(
        self, link: HostLink, name: str, offset: int, content: bytes, *, last: bool
    ) -> int:
        self.sent_bytes[link.name] = self.sent_bytes.get(link.name, 0) + len(content)
        reply: ChunkReply = await link.ask(
            self._connection, lambda session: PutChunk(session, name, offset, content, last)
        )
        return reply.size

    def close(self) -> None:
        self._threads.close()


def _saved(image_id: str) -> Iterator[bytes]:
    """Yield the tar of an image of the coordinator's engine."""
    with closing(Engine()) as engine:
        yield from container_files.save(engine, image_id)


def _pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _of_chunk_size(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of nearly `CHUNK_BYTES`."""
    held = bytearray()
    for piece in pieces:
        if held and len(held) + len(piece) > CHUNK_BYTES:
            yield bytes(held)
            held.clear()
        held += piece
    if held:
        yield bytes(held)
