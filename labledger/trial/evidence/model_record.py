"""The gateway's record of an attempt's calls as evidence.

A record is stored where the experiment asks for it: one artifact, a call in each line, redacted. A
request in which a secret was redacted has the digest of what is left: nothing that is derived from
a secret is stored, and a replay does not find it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from labledger.gateway.recording import Recorded, read_records
from labledger.records import JsonObject
from labledger.records.canonical_json import digest, dump_bytes
from labledger.records.model_grants import RECORD
from labledger.trial.evidence.evidence_collection import EvidenceCollector
from labledger.trial.evidence.redaction import Redactor

NAME = "model_record"
"""The record in the evidence."""


def collect_record(evidence: EvidenceCollector) -> None:
    """Add the recorded calls of a trial, also if there are none. Raises `OSError`."""
    lines = record_lines(evidence.outputs.folder, evidence.redactor)
    try:
        evidence.references[NAME] = evidence.add_stream(lines)
    except ValueError as error:
        evidence.add_problem(NAME, str(error))


def record_lines(trial: Path, redactor: Redactor) -> Iterator[bytes]:
    """Yield the recorded calls in a trial's folder, redacted.

    Raises `OSError`, and `ValueError` for what is no record.
    """
    for recorded in read_records(trial / RECORD):
        yield dump_bytes(_redacted(recorded, redactor).as_json()) + b"\n"


def _redacted(recorded: Recorded, redactor: Redactor) -> Recorded:
    if not redactor.has_secrets:
        return recorded
    request: JsonObject = redactor.redact_json(recorded.request)
    body = recorded.body
    if recorded.encoding == "base64":
        body = base64.b64encode(redactor.redact_bytes(recorded.body_bytes)).decode("ascii")
    return replace(
        recorded,
        request=request,
        digest=recorded.digest if request == recorded.request else digest(request),
        headers=tuple((name, redactor.redact_text(value)) for name, value in recorded.headers),
        body=redactor.redact_text(body),
        replaced=redactor.redact_json(dict(recorded.replaced)),
    )
