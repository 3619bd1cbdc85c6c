"""Bring results from a host into the coordinator's store, before they count as arrived.

Small artifacts come with the result, large ones and a file of events through the cluster's object
store or in pieces, each checked by its digest and durable before the result is returned. Used by
the cluster executor, on the event loop of its connection.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from labledger.cluster.coordinator_side.host_link import HostLink
from labledger.cluster.coordinator_side.result_checks import BadResult, read_result, require_events
from labledger.cluster.coordinator_side.store_relay import StoreRelay
from labledger.cluster.host_messages import (
    CHUNK_BYTES,
    AttemptKey,
    Chunk,
    ReadChunk,
    ResultMessage,
    RunKey,
)
from labledger.cluster.host_transport import ClusterConnection, HostUnreachable
from labledger.cluster.partial_files import PartialFile
from labledger.records.artifacts import Artifact
from labledger.records.attempt_result import AttemptResult
from labledger.records.events import EventFile
from labledger.storage.artifact_store import ArtifactStore
from labledger.trial.attempt_spec import AttemptSpec

_CALL_TIMEOUT_S = 60.0
_TRANSFERS_AT_ONCE = 4


class ResultTransfer:
    """Fetches what belongs to the results of one run."""

    def __init__(
        self, connection: ClusterConnection, store: ArtifactStore, run: RunKey, relay: StoreRelay
    ) -> None:
        self._connection = connection
        self._store = store
        self._relay = relay
        self._run = run
        self._transfers = asyncio.Semaphore(_TRANSFERS_AT_ONCE)
        self._threads = ThreadPoolExecutor(_TRANSFERS_AT_ONCE, "results")
        self._fetches: dict[str, asyncio.Task[None]] = {}
        """Transfers of artifacts by digest: two results may have the same one."""

    async def receive(
        self, link: HostLink, message: ResultMessage, spec: AttemptSpec
    ) -> AttemptResult:
        """Return the result of an attempt once everything that it refers to is durable here.

        Raises `BadResult` for what is no result of it, `HostUnreachable`, `HostRefused` and
        `DigestMismatch`.
        """
        result = read_result(message, spec, self._store.staged_events)
        for artifact in result.artifacts:
            if artifact.sha256 not in message.contents:
                await self._provide(link, message.key, artifact)
        if isinstance(result.events, EventFile):
            await self._fetch_events(link, message, result.events)
        return replace(
            result, artifacts=tuple(_with_content(each, message) for each in result.artifacts)
        )

    async def _provide(self, link: HostLink, key: AttemptKey, artifact: Artifact) -> None:
        if self._store.contains(artifact.sha256):
            return
        task = self._fetches.get(artifact.sha256)
        if task is None:
            task = asyncio.create_task(self._fetch_artifact(link, key, artifact))
            self._fetches[artifact.sha256] = task
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                self._fetches.pop(artifact.sha256, None)

    async def _fetch_artifact(self, link: HostLink, key: AttemptKey, artifact: Artifact) -> None:
        target = self._store.path(artifact.sha256)
        await self._fetch(link, key, artifact.sha256, artifact.size, target, artifact.sha256)

    async def _fetch_events(
        self, link: HostLink, message: ResultMessage, events: EventFile
    ) -> None:
        """Fetch a file of events, unless an earlier coordinator has."""
        if await self._in_thread(events.find_damage) is None:
            return
        await self._fetch(link, message.key, None, message.events_size, events.path, events.sha256)
        try:
            await self._in_thread(require_events, events)
        except BadResult:
            events.path.unlink()
            raise

    async def _fetch(
        self,
        link: HostLink,
        key: AttemptKey,
        name: str | None,
        size: int,
        target: Path,
        sha256: str | None,
    ) -> None:
        """Fetch a file of an attempt, through the object store or else in pieces.

        What has arrived of the pieces before is not sent again.
        """
        own = f"{self._run.run_id}.{key[0]}-{key[1]}.{name or 'events'}"
        incoming = self._store.root / "incoming"
        if sha256 is not None:
            # Another name each time: a result may be delivered again while this goes on.
            fetched = PartialFile(incoming / f"{own}.{secrets.token_hex(4)}", target)
            if await self._relay.fetch(link, key, name, size, sha256, fetched):
                return
        partial = PartialFile(incoming / own, target)
        async with self._transfers:
            arrived = partial.size
            while arrived < size or not arrived:
                address, session = link.address, link.session
                if address is None or session is None:
                    raise HostUnreachable(f"{link.name} does not answer")
                request = ReadChunk(session, self._run, key, name, arrived)
                chunk: Chunk = await self._connection.call(address, request, _CALL_TIMEOUT_S)
                if len(chunk.content) > CHUNK_BYTES:
                    raise BadResult("came with more bytes than were asked for")
                if not chunk.content and arrived < size:
                    partial.discard()
                    raise HostUnreachable(f"{link.name} has less of {name or 'the events'}")
                arrived = await self._in_thread(partial.append, arrived, chunk.content)
                if size == 0:
                    break
            await self._in_thread(partial.finish, sha256)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _with_content(artifact: Artifact, message: ResultMessage) -> Artifact:
    """Return an artifact with its content, if that came with the result."""
    content = message.contents.get(artifact.sha256)
    return artifact if content is None else Artifact(artifact.sha256, artifact.size, content)
