"""Check the results of hosts before use, and fetch their files.

A host that is broken or lies can harm only its own trials. No name, slot, id or path of a result is
used before it was compared with the attempt. Large files are fetched, checked by digest and made
durable before the result is returned.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path

from labledger import clock
from labledger.errors import MalformedJson, SchemaInvalid
from labledger.files.artifact_store import ArtifactStore
from labledger.files.partial_files import PartialFile
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
from labledger.records import JsonObject, canonical_json, json_schemas
from labledger.records.attempt_result import (
    MAX_LINE_BYTES,
    MAX_RECORD_DEPTH,
    Artifact,
    AttemptResult,
    EventFile,
)
from labledger.records.json_codec import TypeMismatch
from labledger.records.model_calls import Api
from labledger.records.outcomes import NEVER_RUN
from labledger.trial.evidence.evidence_collection import EVIDENCE_SCHEMA
from labledger.trial.evidence.grading import PREDICTION_SCHEMA, SCORE_SCHEMA
from labledger.trial.evidence_spec import EvidenceSpec
from labledger.trial.output_folders import event_file_for

MAX_FILE_BYTES = 64 << 30
"""The largest artifact or file of events that is fetched, in bytes."""
_CALL_SCHEMA = "model_call_record_v1"
_MAX_COUNT = 1 << 53
"""The largest believable number of tokens or milliseconds of a call."""
_SCHEMAS = {
    "predictions": PREDICTION_SCHEMA,
    "scores": SCORE_SCHEMA,
    "evidence": EVIDENCE_SCHEMA,
}


class BadResult(HostRefused):
    """A host sent no result of the attempt. The text continues a sentence."""


def read_result(message: ResultMessage, spec: EvidenceSpec, staged_events: Path) -> AttemptResult:
    """Return the result in a message. A file of events will be in `staged_events`.

    Raises `BadResult` if the message holds no result, or a result of another attempt.
    """
    try:
        document = canonical_json.loads(message.result, max_depth=MAX_RECORD_DEPTH)
        result = AttemptResult.from_json(document, staged_events)
        _require_values(result)
        _require_records(result)
        _require_calls(result)
    except (MalformedJson, SchemaInvalid, TypeMismatch) as error:
        raise BadResult(f"is none: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadResult(f"is none: {type(error).__name__}: {error}") from error
    _require_names(result, spec)
    _require_files(result, spec, message.contents, message.events_size)
    return result


def require_events(file: EventFile) -> None:
    """Raise `BadResult` unless a file of events holds the stated number of JSON objects."""
    count = 0
    with file.path.open("rb") as content:
        while line := content.readline(MAX_LINE_BYTES):
            try:
                body = canonical_json.loads(line)
            except MalformedJson as error:
                raise BadResult(
                    f"has a file of events whose line {count + 1} {error.message}"
                ) from error
            if not isinstance(body, dict) or canonical_json.dump_bytes(body) + b"\n" != line:
                raise BadResult(f"has a file of events whose line {count + 1} is no event")
            count += 1
    if count != file.count:
        raise BadResult(f"has {count:,} events, and says {file.count:,}")


def _require_values(result: AttemptResult) -> None:
    """Raise `ValueError` unless every field has a value that can be stored.

    The schemas check the fields with records.
    """
    if isinstance(result.events, EventFile):
        if result.events.sha256 is None:
            raise TypeMismatch("expected a string, found null", ("events", "sha256"))
        numbers = [result.events.count]
    else:
        numbers = [event.row_seq for event in result.events]
        if len(set(numbers)) != len(numbers):
            raise TypeMismatch("two events have the same number")
    durations = [phase.duration_ms for phase in result.phases.values()]
    if min([*numbers, *durations, result.duration_ms, result.events_dropped]) < 0:
        raise TypeMismatch("a number is negative")
    if clock.parse(result.started_at).utcoffset() != clock.parse(result.ended_at).utcoffset():
        raise TypeMismatch("its times are not comparable")
    if result.status in NEVER_RUN:
        raise TypeMismatch(f"no trial ends as {result.status}")


def _require_records(result: AttemptResult) -> None:
    """Raise `SchemaInvalid` or `TypeMismatch` unless its records are valid and belong to it."""
    stamp = _stamp(result)
    for kind, schema in _SCHEMAS.items():
        records: tuple[JsonObject, ...] = getattr(result, kind)
        for record in records:
            json_schemas.require_valid(record, schema)
            if any(record[name] != value for name, value in stamp.items()):
                raise TypeMismatch(f"a record of its {kind} belongs to another trial")


def _stamp(result: AttemptResult) -> JsonObject:
    """Return the identification of the trial that every record of a result must have."""
    return {
        "ids": result.ids.as_json(),
        "schedule_idx": result.schedule_idx,
        "slot_commit_id": result.slot_commit_id,
        "attempt": result.attempt,
    }


def _require_calls(result: AttemptResult) -> None:
    """Raise `SchemaInvalid` or `TypeMismatch` for calls to models that no gateway would record."""
    stamp = _stamp(result) | {"ts": result.ended_at, "schema_version": _CALL_SCHEMA}
    for call in result.model_calls:
        document = {"reserved": None} | call.as_json()
        json_schemas.require_valid(document | stamp, _CALL_SCHEMA)
        Api(call.api)
        counts = [call.call, call.status, call.first_byte_ms, call.duration_ms, call.waited_ms]
        for usage in (call.usage, call.reserved):
            counts += () if usage is None else astuple(usage)
        if any(count is not None and count > _MAX_COUNT for count in counts):
            raise TypeMismatch("a call to a model has a number that is too large")
    numbers = [call.call for call in result.model_calls]
    if numbers != sorted(set(numbers)):
        raise TypeMismatch("two calls to models have the same number, or they are not in order")


def _require_names(result: AttemptResult, spec: EvidenceSpec) -> None:
    expected = {
        "ids": spec.ids,
        "schedule_idx": spec.schedule_idx,
        "slot_commit_id": spec.slot_commit_id,
        "attempt": spec.attempt,
        "container": spec.container.name,
    }
    if not spec.is_carried_over:
        expected |= {"image_ref": spec.container.image_ref, "image_id": spec.container.image_id}
    for name, value in expected.items():
        if (actual := getattr(result, name)) != value:
            shown = json.dumps(str(actual))[:200]
            raise BadResult(f"belongs to another trial: its {name} is {shown}")


def _require_files(
    result: AttemptResult, spec: EvidenceSpec, contents: Mapping[str, bytes], events_size: int
) -> None:
    """Raise `BadResult` unless the files have digests as names, and sizes within bounds."""
    sizes = {artifact.sha256: artifact.size for artifact in result.artifacts}
    if isinstance(result.events, EventFile):
        if result.events.name != event_file_for(spec.container).name:
            shown = json.dumps(result.events.name)[:200]
            raise BadResult(f"names a file of events of another attempt: {shown}")
        sizes[result.events.sha256 or ""] = events_size
    for sha256, size in sizes.items():
        if not DIGEST.fullmatch(sha256) or not 0 <= size <= MAX_FILE_BYTES:
            raise BadResult(f"names an impossible file: {sha256[:80]!r} of {size} bytes")
    for sha256, content in contents.items():
        if canonical_json.sha256_hex(content) != sha256 or len(content) != sizes.get(sha256):
            raise BadResult(f"came with another file than it names: {sha256[:80]!r}")


@dataclass
class ResultTransfer:
    """Fetches the files of the results of one run."""

    connection: ClusterConnection
    store: ArtifactStore
    run: RunKey
    relay: StoreRelay
    _threads: TransferThreads = field(default_factory=partial(TransferThreads, "results"))
    _fetches: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Transfers of artifacts by digest, because two results may share an artifact."""

    async def receive(
        self, link: HostLink, message: ResultMessage, spec: EvidenceSpec
    ) -> AttemptResult:
        """Return the result of an attempt once all files that it refers to are durable here.

        Raises `BadResult` if it is no result of the attempt, `HostUnreachable`, `HostRefused` and
        `DigestMismatch`.
        """
        result = read_result(message, spec, self.store.staged_events)
        for artifact in result.artifacts:
            if artifact.sha256 not in message.contents:
                await self._provide(link, message.key, artifact)
        if isinstance(result.events, EventFile):
            await self._fetch_events(link, message, result.events)
        return replace(
            result, artifacts=tuple(_with_content(one, message) for one in result.artifacts)
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
        """Fetch a file of events, unless an earlier coordinator has fetched it."""
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

        Pieces that have arrived before are not sent again.
        """
        file_name = f"{self.run.run_id}.{key[0]}-{key[1]}.{name or 'events'}"
        incoming = self.store.root / "incoming"
        if sha256 is not None:
            # A new name each time, because the result may be delivered again meanwhile.
            fetched = PartialFile(incoming / f"{file_name}.{secrets.token_hex(4)}", target)
            if await self.relay.fetch(link, key, name, size, sha256, fetched):
                return
        arriving = PartialFile(incoming / file_name, target)
        async with self._threads.places:
            arrived = arriving.size
            while arrived < size or not arrived:
                request = partial(ReadChunk, run=self.run, key=key, sha256=name, offset=arrived)
                chunk: Chunk = await link.ask(self.connection, request)
                if len(chunk.content) > CHUNK_BYTES:
                    raise BadResult("came with more bytes than were requested")
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
    """Return an artifact, with its content if it came with the result."""
    content = message.contents.get(artifact.sha256)
    return artifact if content is None else Artifact(artifact.sha256, artifact.size, content)
