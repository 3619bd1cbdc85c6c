"""Results of hosts: check them before they are believed, and bring what belongs to them here.

A host that is broken, or lies, can so harm its own trials alone: no name, slot, id or path of a
result is used before it is known to be that of the attempt, and the ledger can store all of it.
Then large artifacts and a file of events are fetched, through the cluster's object store or in
pieces; each is checked by its digest and durable before the result is returned.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import get_type_hints

from labledger import clock
from labledger.errors import MalformedJson, SchemaInvalid
from labledger.files.artifact_store import ArtifactStore
from labledger.hosts.coordinator_side.host_link import HostLink
from labledger.hosts.coordinator_side.store_relay import (
    StoreRelay,
    TransferThreads,
)
from labledger.hosts.host_messages import (
    CHUNK_BYTES,
    DIGEST,
    AttemptKey,
    Chunk,
    HostRefused,
    ReadChunk,
    ResultMessage,
    RunKey,
)
from labledger.hosts.host_transport import ClusterConnection, HostUnreachable
from labledger.hosts.message_bytes import Mismatch, codec
from labledger.hosts.object_store import PartialFile
from labledger.records import JsonObject, canonical_json, json_schemas
from labledger.records.attempt_result import Artifact, AttemptResult, EventFile
from labledger.records.model_calls import Api
from labledger.records.outcomes import NEVER_RUN
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.evidence.evidence_collection import EVIDENCE_SCHEMA
from labledger.trial.evidence.grading import PREDICTION_SCHEMA, SCORE_SCHEMA
from labledger.trial.output_folders import event_file_for

MAX_FILE_BYTES = 64 << 30
"""No artifact and no file of events of a result is fetched that is larger."""
_MAX_DEPTH = canonical_json.MAX_DEPTH + 8
"""Of a result: of what a container wrote, and of the records around it."""
_MAX_EVENT_LINE = 64 << 20
_CALL_SCHEMA = "model_call_record_v1"
_MAX_COUNT = 1 << 53
"""No call uses so many tokens, nor lasts so many milliseconds."""
_SCHEMAS = {
    "predictions": PREDICTION_SCHEMA,
    "scores": SCORE_SCHEMA,
    "evidence": EVIDENCE_SCHEMA,
}


class BadResult(HostRefused):
    """What a host sent is not a result of the attempt. The text continues a sentence."""


def read_result(message: ResultMessage, spec: AttemptSpec, staged_events: Path) -> AttemptResult:
    """Return the result in a message. Its file of events, if any, will be in `staged_events`.

    Raises `BadResult` if it is not one of the attempt, or not one at all.
    """
    try:
        document = canonical_json.loads(message.result, max_depth=_MAX_DEPTH)
        result = AttemptResult.from_json(document, staged_events)
        _require_types(result)
        _require_records(result)
        _require_calls(result)
    except (MalformedJson, SchemaInvalid, Mismatch) as error:
        raise BadResult(f"is none: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadResult(f"is none: {type(error).__name__}: {error}") from error
    _require_names(result, spec)
    _require_files(result, spec, message.contents, message.events_size)
    return result


def require_events(file: EventFile) -> None:
    """Raise `BadResult` unless a file of events holds as many as it says, each as JSON."""
    count = 0
    with file.path.open("rb") as content:
        while line := content.readline(_MAX_EVENT_LINE):
            try:
                body = canonical_json.loads(line)
            except MalformedJson as error:
                raise BadResult(f"has events of which line {count + 1} {error.message}") from error
            if not isinstance(body, dict) or canonical_json.dump_bytes(body) + b"\n" != line:
                raise BadResult(f"has events of which line {count + 1} is none")
            count += 1
    if count != file.count:
        raise BadResult(f"has {count:,} events, and says {file.count:,}")


def _require_types(result: AttemptResult) -> None:
    """Raise an exception unless every field is of its type, and of a value that can be stored.

    Those with records are left to their schemas.
    """
    for name, (pack, unpack) in _CODECS.items():
        unpack(pack(getattr(result, name)))
    if isinstance(result.events, EventFile):
        unpack_text, unpack_count = codec(str).unpack, codec(int).unpack
        unpack_text(result.events.name)
        unpack_text(result.events.sha256)
        numbers = [unpack_count(result.events.count)]
    else:
        for event in result.events:
            # Not by their codec, which would write and read each body once more.
            if type(event.row_seq) is not int or type(event.body) is not dict:
                raise Mismatch("an event is none")
        numbers = [event.row_seq for event in result.events]
        if len(set(numbers)) != len(numbers):
            raise Mismatch("two events have the same number")
    durations = [phase.duration_ms for phase in result.phases.values()]
    if min([*numbers, *durations, result.duration_ms, result.events_dropped]) < 0:
        raise Mismatch("a number is negative")
    if clock.parse(result.started_at).utcoffset() != clock.parse(result.ended_at).utcoffset():
        raise Mismatch("its times are not comparable")
    if result.status in NEVER_RUN:
        raise Mismatch(f"no trial ends as {result.status}")


_TYPES = get_type_hints(AttemptResult)
_CODECS = {
    field.name: codec(_TYPES[field.name])
    for field in fields(AttemptResult)
    if field.name not in {"events", *_SCHEMAS}
}


def _require_records(result: AttemptResult) -> None:
    """Raise `SchemaInvalid` or `Mismatch` unless its records are valid, and are of this result."""
    stamp = _stamp(result)
    for kind, schema in _SCHEMAS.items():
        records: tuple[JsonObject, ...] = getattr(result, kind)
        for record in records:
            json_schemas.require_valid(record, schema)
            if any(record[name] != value for name, value in stamp.items()):
                raise Mismatch(f"a record of its {kind} is of something else")


def _stamp(result: AttemptResult) -> JsonObject:
    """Return what every record of a result says of the trial that it is of."""
    return {
        "ids": result.ids.as_json(),
        "schedule_idx": result.schedule_idx,
        "slot_commit_id": result.slot_commit_id,
        "attempt": result.attempt,
    }


def _require_calls(result: AttemptResult) -> None:
    """Raise `SchemaInvalid` or `Mismatch` unless the calls to models are as a gateway counts."""
    stamp = _stamp(result) | {"ts": result.ended_at, "schema_version": _CALL_SCHEMA}
    for call in result.model_calls:
        document = {"reserved": None} | call.as_json()
        json_schemas.require_valid(document | stamp, _CALL_SCHEMA)
        Api(call.api)
        counts = [call.call, call.status, call.first_byte_ms, call.duration_ms, call.waited_ms]
        for usage in (call.usage, call.reserved):
            counts += () if usage is None else astuple(usage)
        if any(count is not None and count > _MAX_COUNT for count in counts):
            raise Mismatch("a call to a model has a number that is too large")
    numbers = [call.call for call in result.model_calls]
    if numbers != sorted(set(numbers)):
        raise Mismatch("two calls to models have the same number, or they are not in order")


def _require_names(result: AttemptResult, spec: AttemptSpec) -> None:
    expected = {
        "ids": spec.ids,
        "schedule_idx": spec.slot.schedule_idx,
        "slot_commit_id": spec.slot_commit_id,
        "attempt": spec.attempt,
        "container": spec.container_name,
    }
    if not spec.kind.is_carried_over(spec):
        expected |= {"image_ref": spec.image_ref, "image_id": spec.image_id}
    for name, value in expected.items():
        if (found := getattr(result, name)) != value:
            shown = json.dumps(str(found))[:200]
            raise BadResult(f"is of something else: its {name} is {shown}, not that of the attempt")


def _require_files(
    result: AttemptResult, spec: AttemptSpec, contents: Mapping[str, bytes], events_size: int
) -> None:
    """Raise `BadResult` unless the files have digests for names, and sizes within bounds."""
    sizes = {artifact.sha256: artifact.size for artifact in result.artifacts}
    if isinstance(result.events, EventFile):
        if result.events.name != event_file_for(spec).name:
            shown = json.dumps(result.events.name)[:200]
            raise BadResult(f"names a file of events that is not the attempt's: {shown}")
        sizes[result.events.sha256 or ""] = events_size
    for sha256, size in sizes.items():
        if not DIGEST.fullmatch(sha256) or not 0 <= size <= MAX_FILE_BYTES:
            raise BadResult(f"names a file that cannot be: {sha256[:80]!r} of {size} bytes")
    for sha256, content in contents.items():
        if canonical_json.sha256_hex(content) != sha256 or len(content) != sizes.get(sha256):
            raise BadResult(f"came with a file that is not the one it names: {sha256[:80]!r}")


@dataclass
class ResultTransfer:
    """Fetches what belongs to the results of one run."""

    connection: ClusterConnection
    store: ArtifactStore
    run: RunKey
    relay: StoreRelay
    _threads: TransferThreads = field(default_factory=partial(TransferThreads, "results"))
    _fetches: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Transfers of artifacts by digest: two results may have the same one."""

    async def receive(
        self, link: HostLink, message: ResultMessage, spec: AttemptSpec
    ) -> AttemptResult:
        """Return the result of an attempt once everything that it refers to is durable here.

        Raises `BadResult` for what is no result of it, `HostUnreachable`, `HostRefused` and
        `DigestMismatch`.
        """
        result = read_result(message, spec, self.store.staged_events)
        for artifact in result.artifacts:
            if artifact.sha256 not in message.contents:
                await self._provide(link, message.key, artifact)
        if isinstance(result.events, EventFile):
            await self._fetch_events(link, message, result.events)
        return replace(
            result, artifacts=tuple(_with_content(each, message) for each in result.artifacts)
        )

    async def _provide(self, link: HostLink, key: AttemptKey, artifact: Artifact) -> None:
        if await self._threads.run(self.store.keeps, artifact.sha256):
            return
        task = self._fetches.get(artifact.sha256)
        if task is None:
            digest, target = artifact.sha256, self.store.path(artifact.sha256)
            fetch = self._fetch(link, key, digest, artifact.size, target, digest)
            task = self._fetches[digest] = asyncio.create_task(fetch)
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                self._fetches.pop(artifact.sha256, None)

    async def _fetch_events(
        self, link: HostLink, message: ResultMessage, events: EventFile
    ) -> None:
        """Fetch a file of events, unless an earlier coordinator has."""
        if await self._threads.run(events.find_damage) is None:
            return
        await self._fetch(link, message.key, None, message.events_size, events.path, events.sha256)
        try:
            await self._threads.run(require_events, events)
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
        own = f"{self.run.run_id}.{key[0]}-{key[1]}.{name or 'events'}"
        incoming = self.store.root / "incoming"
        if sha256 is not None:
            # Another name each time: a result may be delivered again while this goes on.
            fetched = PartialFile(incoming / f"{own}.{secrets.token_hex(4)}", target)
            if await self.relay.fetch(link, key, name, size, sha256, fetched):
                return
        arriving = PartialFile(incoming / own, target)
        async with self._threads.places:
            arrived = arriving.size
            while arrived < size or not arrived:
                request = partial(ReadChunk, run=self.run, key=key, sha256=name, offset=arrived)
                chunk: Chunk = await link.ask(self.connection, request)
                if len(chunk.content) > CHUNK_BYTES:
                    raise BadResult("came with more bytes than were asked for")
                if not chunk.content and arrived < size:
                    arriving.discard()
                    raise HostUnreachable(f"{link.name} has less of {name or 'the events'}")
                arrived = await self._threads.run(arriving.append, arrived, chunk.content)
                if size == 0:
                    break
            await self._threads.run(arriving.finish, sha256)

    def close(self) -> None:
        self._threads.close()


def _with_content(artifact: Artifact, message: ResultMessage) -> Artifact:
    """Return an artifact with its content, if that came with the result."""
    content = message.contents.get(artifact.sha256)
    return artifact if content is None else Artifact(artifact.sha256, artifact.size, content)
