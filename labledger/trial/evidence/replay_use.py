"""What an attempt used of the record that it replayed, and where it first differed from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from labledger.gateway.recording import parse_record
from labledger.gateway.replay import MissedRequest, first_difference, short
from labledger.records import JsonObject
from labledger.records.model_calls import CallState, ModelCall
from labledger.records.model_grants import MISSED
from labledger.records.outcomes import Reason
from labledger.trial.evidence.redaction import Redactor


@dataclass(frozen=True, slots=True)
class ReplayUse:
    """What an attempt used of the record that it replayed."""

    left: int
    """Recorded calls that the agent did not ask for."""
    miss: str | None = None
    """A sentence on the first call that the record does not answer; None if it answered all."""

    @classmethod
    def read(
        cls, record: Path, folder: Path, calls: tuple[ModelCall, ...], redactor: Redactor
    ) -> ReplayUse:
        """Return what the attempt in a trial's folder used of a record.

        Raises `OSError`, and `ValueError` if a file is none of the gateway's.
        """
        with record.open("rb") as file:
            recorded = sum(1 for _ in file)
        missed = [call.call for call in calls if call.reason == Reason.REPLAY_MISS]
        given = sum(call.replayed and call.state is not CallState.UNKNOWN for call in calls)
        left = max(0, recorded - given + len(missed))
        if not missed:
            return cls(left)
        path = folder / MISSED
        request = MissedRequest.from_json(json.loads(path.read_bytes()))
        difference = _difference(record, request, redactor)
        return cls(left, f"call {missed[0]} of the agent {difference}")

    def as_json(self) -> JsonObject:
        """Return what the evidence has of it."""
        return {"left": self.left}


def _difference(record: Path, missed: MissedRequest, redactor: Redactor) -> str:
    """Say how a request differs from the recorded call that was to come next.

    Both are redacted first: a part of a secret would not be recognized.
    """
    if missed.expected is None:
        return "comes after all calls of the record"
    with record.open("rb") as file:
        lines = (parse_record(line, record) for line in file)
        expected = next(each.request for each in lines if each.call == missed.expected)
    request = redactor.redact_json(missed.request)
    if request == expected:
        return f"differs from call {missed.expected} of the record in a redacted secret"
    where, was, now = first_difference(redactor.redact_json(expected), request)
    return (
        f"differs from call {missed.expected} of the record first at {where}: "
        f"recorded {short(was)}, now {short(now)}"
    )
