"""The checks of a result that a host has sent, against the attempt that the host was sent.

A host that is broken, or lies, can so harm its own trials alone: no name, slot, id or path of a
result is used before it is known to be that of the attempt, and the ledger can store all of it.
The checks come before anything that a result refers to is fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from labledger import clock
from labledger.cluster.host_messages import HostRefused, ResultMessage
from labledger.cluster.typed_values import Mismatch, codec
from labledger.errors import MalformedJson, SchemaInvalid
from labledger.records import JsonObject, canonical_json, json_schemas
from labledger.records.attempt_result import AttemptResult
from labledger.records.events import EventFile
from labledger.records.outcomes import NEVER_RUN
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.evidence.artifacts import EVIDENCE_SCHEMA
from labledger.trial.evidence.events import event_file_for
from labledger.trial.evidence.results.grading import PREDICTION_SCHEMA, SCORE_SCHEMA

MAX_FILE_BYTES = 64 << 30
"""No artifact and no file of events of a result is fetched that is larger."""
_MAX_DEPTH = canonical_json.MAX_DEPTH + 8
"""Of a result: of what a container wrote, and of the records around it."""
_MAX_EVENT_LINE = 64 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
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
    stamp = {
        "ids": result.ids.as_json(),
        "schedule_idx": result.schedule_idx,
        "slot_commit_id": result.slot_commit_id,
        "attempt": result.attempt,
    }
    for kind, schema in _SCHEMAS.items():
        records: tuple[JsonObject, ...] = getattr(result, kind)
        for record in records:
            json_schemas.require_valid(record, schema)
            if any(record[name] != value for name, value in stamp.items()):
                raise Mismatch(f"a record of its {kind} is of something else")


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
        if not _DIGEST.fullmatch(sha256) or not 0 <= size <= MAX_FILE_BYTES:
            raise BadResult(f"names a file that cannot be: {sha256[:80]!r} of {size} bytes")
    for sha256, content in contents.items():
        if canonical_json.sha256_hex(content) != sha256 or len(content) != sizes.get(sha256):
            raise BadResult(f"came with a file that is not the one it names: {sha256[:80]!r}")
