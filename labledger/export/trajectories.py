"""Write the trajectories of a run: a JSON line per trial, with its identity and end.

A line holds the stored document unchanged. It is copied in pieces, so memory does not grow with it.
Only a trial's last attempt is included.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from labledger.ledger.reader import LedgerReader
from labledger.ledger.rows.model_usage import call_of_record
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import SlotRecords, digest_of
from labledger.records.json_codec import members
from labledger.records.model_calls import ModelCall
from labledger.trajectories.step_text import stored_cuts

SCHEMA = "trajectory_record_v1"
PATH = Path("trajectories.jsonl")
"""The file below the run folder, unless another one is given."""


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """The trajectory of a committed trial."""

    ids: JsonObject
    """Run, trial, variant, task and replication, as records have them."""
    schedule_idx: int
    attempt: int
    status: str
    verdict: str | None
    started_at: str
    ended_at: str
    origin: str
    """`gateway`, `agent_log` or `agent`."""
    sha256: str
    """The digest of the document, in hex."""
    cuts: tuple[str, ...] = ()
    """Why it lacks steps, in sentences."""
    calls: tuple[ModelCall, ...] | None = None
    """The agent's calls to models in this attempt; None if no gateway counted them."""

    def as_json(self) -> JsonObject:
        """Return the fields without the document, its digest and the calls."""
        document = {"schema_version": SCHEMA, **members(replace(self, calls=None))}
        del document["sha256"], document["calls"]
        if not self.cuts:
            del document["cuts"]
        return document


def stored_trajectories(reader: LedgerReader, run_id: str) -> Iterator[StoredTrajectory]:
    """Yield the trajectories of a run's committed trials, in schedule order."""
    for records in reader.slot_records(run_id):
        if (stored := stored_trajectory(records)) is not None:
            yield stored


def stored_trajectory(records: SlotRecords) -> StoredTrajectory | None:
    """Return the trajectory of a committed trial; None if it has none."""
    if not records.trials or not records.evidence:
        return None
    evidence = json.loads(records.evidence[-1])
    reference = evidence["evidence"].get("trajectory")
    if reference is None:
        return None
    trial = json.loads(records.trials[-1])
    return StoredTrajectory(
        ids=trial["ids"],
        schedule_idx=records.schedule_idx,
        attempt=evidence["attempt"],
        status=records.status.value,
        verdict=records.verdict,
        started_at=trial["started_at"],
        ended_at=trial["ended_at"],
        origin=evidence["ext"]["trajectory"]["origin"],
        sha256=digest_of(reference),
        cuts=tuple(stored_cuts(evidence)),
        calls=_calls(records, evidence),
    )


def _calls(records: SlotRecords, evidence: JsonObject) -> tuple[ModelCall, ...] | None:
    """Return the calls of the evidence's attempt; None if it had no models."""
    rows = [json.loads(record) for record in records.model_calls]
    if not rows and "models" not in evidence["ext"]:
        return None
    return tuple(call_of_record(row) for row in rows if row["attempt"] == evidence["attempt"])


def write_lines(reader: LedgerReader, run_id: str, out: BinaryIO) -> None:
    """Write a line for each trajectory. Raises `LedgerError` for a document that is not there."""
    for stored in stored_trajectories(reader, run_id):
        head = canonical_json.dump_bytes(stored.as_json())
        with reader.open_artifact(stored.sha256) as document:
            out.write(head[:-1] + b',"trajectory":')
            shutil.copyfileobj(document, out, 1 << 20)
            out.write(b"}\n")
