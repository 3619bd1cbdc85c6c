"""Check the records of a source beyond their digests, which anybody can recompute.

Run ids must be safe as folder names and texts canonical JSON; records must fit their schemas and
be about their own slot. `source.Source.verify` runs these checks before an import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from labledger.errors import LedgerError, MalformedJson, SchemaInvalid
from labledger.ledger.database.connection import Connection
from labledger.ledger.read.commit_stream import Commit
from labledger.ledger.read.lookup import run_number
from labledger.records import JsonObject, canonical_json, json_schemas
from labledger.records.identity import RUN_ID

SCHEMAS = {
    "predictions": "benchmark_prediction_record_v1",
    "scores": "benchmark_score_record_v1",
    "evidence": "evidence_record_v1",
}
"""Schemas of the record kinds that are stored as text; the others are stored in columns."""

_MAX_DEPTH = canonical_json.MAX_DEPTH + 8
"""A record contains JSON of an agent, which may nest as deep as `MAX_DEPTH`."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_RUN_SQL = "SELECT resolved, images FROM run WHERE run_no = ?"
_PARTS_SQL = "SELECT resolved, images, selection FROM run_part WHERE run_no = ?"
_BINDINGS_SQL = "SELECT bindings FROM run_variant WHERE run_no = ?"
_PAYLOADS_SQL = (
    "SELECT task_payload.body FROM run_task JOIN task_payload "
    "ON task_payload.payload_digest = run_task.payload_digest WHERE run_task.run_no = ?"
)


def check_runs(connection: Connection, run_ids: Sequence[str]) -> None:
    """Raise `LedgerError` if a run id is not a safe folder name, or a text is not JSON."""
    for run_id in run_ids:
        if not RUN_ID.fullmatch(run_id):
            raise LedgerError(
                f"the source holds a run {run_id[:120]!r}, which is not a valid run id"
            )
        run_no = run_number(connection, run_id)
        texts = list(connection.exec_driver_sql(_RUN_SQL, (run_no,)).one())
        for sql in (_BINDINGS_SQL, _PAYLOADS_SQL):
            texts += connection.exec_driver_sql(sql, (run_no,)).scalars()
        for row in connection.exec_driver_sql(_PARTS_SQL, (run_no,)):
            texts += [text for text in row if text is not None]
        for text in texts:
            problem = _canonical_problem(text)
            if problem is not None:
                raise LedgerError(f"run {run_id} of the source has a text that {problem}")
        _check_regrades(run_id, json.loads(texts[0]).get("regrades"))


def _check_regrades(run_id: str, regrades: Any) -> None:
    """Raise `LedgerError` if `regrades` is not what labledger writes for a regrading."""
    if regrades is None:
        return
    match regrades:
        case {"run_id": str(root), "generation": int(generation), "grader_digest": str(digest),
              "head": str(head)} if len(regrades) == 4:  # fmt: skip
            matches_run_id = run_id == f"{root}.g{generation}" and generation > 1
            if matches_run_id and _DIGEST.fullmatch(digest) and _DIGEST.fullmatch(head):
                return
    raise LedgerError(
        f"run {run_id} of the source does not describe the run that it regrades as labledger does"
    )


def find_problems(run_id: str, commit: Commit) -> Iterator[str]:
    """Yield the problems of a commit's records, whose digests may be correct."""
    records = commit.records
    for kind, schema in SCHEMAS.items():
        for line in records.lines(kind):
            problem = _canonical_problem(line)
            if problem is None:
                problem = _record_problem(json.loads(line), schema, run_id, commit)
            if problem is not None:
                yield f"a record of {kind} {problem}"
    for line in records.events:
        problem = _canonical_problem(line)
        if problem is not None:
            yield f"an event {problem}"


def _canonical_problem(text: str) -> str | None:
    try:
        value = canonical_json.loads(text.encode(), max_depth=_MAX_DEPTH)
    except (MalformedJson, UnicodeEncodeError) as error:
        return str(error)
    if not isinstance(value, dict):
        return "is not a JSON object"
    return None if canonical_json.dumps(value) == text else "is not in its canonical form"


def _record_problem(record: JsonObject, schema: str, run_id: str, commit: Commit) -> str | None:
    try:
        json_schemas.require_valid(record, schema)
    except SchemaInvalid as error:
        return f"does not fit {schema}: {error}"
    record_slot: tuple[Any, ...] = (
        record["ids"]["run_id"],
        record["ids"]["variant_id"],
        record["schedule_idx"],
        record["slot_commit_id"],
    )
    records = commit.records
    if record_slot != (run_id, records.variant_id, records.schedule_idx, commit.slot_commit_id):
        return "is about another slot"
    return None
