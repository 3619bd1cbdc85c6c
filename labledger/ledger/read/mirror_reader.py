"""Rebuild the rows of a run from a folder of mirrors.

The files are untrusted: only their form is checked here, and their content is written unchanged.
The caller verifies the digests afterwards, as for any other source of an import.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from labledger.errors import LedgerError, MalformedJson
from labledger.ledger.commit import rows, statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import AttemptRow, EventRow, MetricRow, TrialRow
from labledger.ledger.read.chain_records import (
    COMMIT_COLUMNS,
    JSON_COLUMNS,
    SCHEDULE_COLUMNS,
    SCHEMA,
    SLOT_COLUMNS,
)
from labledger.records import JsonObject, canonical_json
from labledger.storage.batches import batched

_RUN_NO = 1
_LONGEST_LINE = 256 << 20
_DEPTH = canonical_json.MAX_DEPTH + 8
_BATCH = 500

_INSERT_PROGRESS = """
INSERT INTO schedule_progress (run_no, next_schedule_idx, epoch, status, updated_at)
SELECT ?1, count(*), coalesce(max(epoch), 0),
  CASE WHEN count(*) = ?3 THEN 'completed' ELSE 'interrupted' END, coalesce(max(committed_at), ?2)
FROM slot_commit WHERE run_no = ?1"""
"""Progress follows from the commits alone."""


class InvalidMirrorLine(ValueError):
    """A line that does not belong into its file."""


def rebuild(connection: Connection, chain: Path, mirrors: dict[str, Path]) -> str:
    """Write the run of these files into an empty ledger; return its id.

    `mirrors` maps each of `RECORD_KINDS` to its file. Raises `LedgerError` with file and line.
    """
    with _lines(chain) as chain_lines:
        run_id = _chain(connection, chain_lines)
    for kind in ("trials", "metrics", "events", "predictions", "scores", "evidence"):
        with _lines(mirrors[kind]) as mirror_lines:
            _records(connection, mirror_lines, _ROWS[kind])
    return run_id


def _chain(connection: Connection, lines: Iterator[tuple[bytes, JsonObject]]) -> str:
    records = (record for _, record in lines)
    run = next(records, None)
    if run is None or (run["schema_version"], run["type"]) != (SCHEMA, "run"):
        raise InvalidMirrorLine(f"it does not begin with the run of a {SCHEMA}")
    columns = [_text(run[name]) if name in JSON_COLUMNS else run[name] for name in _RUN]
    connection.exec_driver_sql(statements.INSERT_RUN, (_RUN_NO, *columns))
    schedule = [run[name] for name in SCHEDULE_COLUMNS]
    connection.exec_driver_sql(statements.INSERT_SCHEDULE, (_RUN_NO, *schedule))
    counts = dict.fromkeys(_WRITERS, 0)
    for kind, group in groupby(records, key=lambda record: str(record["type"])):
        if kind not in _WRITERS:
            raise InvalidMirrorLine(f"{kind[:40]!r} is no type of a {SCHEMA}")
        for batch in batched(group, _BATCH):
            _WRITERS[kind](connection, batch, counts[kind])
            counts[kind] += len(batch)
    connection.exec_driver_sql(_INSERT_PROGRESS, (_RUN_NO, run["created_at"], schedule[0]))
    return str(run["run_id"])


_RUN = statements.RUN_COLUMNS


def _variants(connection: Connection, batch: list[JsonObject], first: int) -> None:
    connection.exec_driver_sql(
        statements.INSERT_VARIANT,
        [
            (_RUN_NO, idx, row["variant_id"], row["role"], _text(row["bindings"]))
            for idx, row in enumerate(batch, first)
        ],
    )


def _tasks(connection: Connection, batch: list[JsonObject], first: int) -> None:
    bodies = [_text(row["payload"]) for row in batch]
    digests = [canonical_json.sha256_hex(body.encode()) for body in bodies]
    connection.exec_driver_sql(statements.INSERT_PAYLOAD, list(zip(digests, bodies, strict=True)))
    connection.exec_driver_sql(
        statements.INSERT_TASK,
        [
            (_RUN_NO, idx, row["task_id"], row["digest"], digest)
            for (idx, row), digest in zip(enumerate(batch, first), digests, strict=True)
        ],
    )


def _slots(connection: Connection, batch: list[JsonObject], _first: int) -> None:
    connection.exec_driver_sql(
        statements.INSERT_SLOT, [(_RUN_NO, *(row[name] for name in SLOT_COLUMNS)) for row in batch]
    )


def _commits(connection: Connection, batch: list[JsonObject], _first: int) -> None:
    connection.exec_driver_sql(
        statements.INSERT_SLOT_COMMIT,
        [(_RUN_NO, *(row[name] for name in COMMIT_COLUMNS)) for row in batch],
    )


_WRITERS: dict[str, Callable[[Connection, list[JsonObject], int], None]] = {
    "variant": _variants,
    "task": _tasks,
    "slot": _slots,
    "commit": _commits,
}

Rows = list[tuple[str, tuple[Any, ...]]]
"""Statements, each with a row that it writes."""


def _records(
    connection: Connection,
    lines: Iterator[tuple[bytes, JsonObject]],
    make: Callable[[int, int, str, JsonObject], Rows],
) -> None:
    """Write a mirror's records; those of an attempt are numbered from 0, in file order."""
    last, seq = None, 0
    waiting: dict[str, list[tuple[Any, ...]]] = {}
    for number, (line, record) in enumerate(lines, 1):
        key = (record["schedule_idx"], record["attempt"])
        last, seq = key, seq + 1 if key == last else 0
        for statement, row in make(key[0], seq, line.decode(), record):
            waiting.setdefault(statement, []).append(row)
        if number % _BATCH == 0:
            _write(connection, waiting)
    _write(connection, waiting)


def _write(connection: Connection, waiting: dict[str, list[tuple[Any, ...]]]) -> None:
    for statement, batch in waiting.items():
        connection.exec_driver_sql(statement, batch)
    waiting.clear()


def trial_row(run_no: int, idx: int, record: JsonObject) -> TrialRow:
    """Return the row of `trial` that a `trial_record_v1` was made from."""
    names = ("attempt", "status", "reason", "message", "verdict", "outcome", "exit_status")
    return TrialRow._make(
        (
            *(run_no, idx),
            *(record[name] for name in (*names, "started_at", "ended_at", "duration_ms")),
            *_phase(record["phases"]["setup"]),
            *_phase(record["phases"]["agent"]),
            *_phase(record["phases"]["grader"]),
            *(record["image"]["ref"], record["image"]["id"], record["events_dropped"]),
        )
    )


def _trial(idx: int, _seq: int, _text: str, record: JsonObject) -> Rows:
    trial = trial_row(_RUN_NO, idx, record)
    attempts = (AttemptRow(_RUN_NO, idx, **fields) for fields in record["attempts"])
    return [
        (statements.INSERT_TRIAL, trial),
        *((statements.INSERT_ATTEMPT, attempt) for attempt in attempts),
    ]


def _phase(phase: JsonObject | None) -> tuple[Any, Any, Any]:
    if phase is None:
        return None, None, None
    return phase["exit_status"], phase["duration_ms"], int(phase["timed_out"])


def _metric(idx: int, _seq: int, _text: str, record: JsonObject) -> Rows:
    fields = (record[name] for name in ("row_seq", "metric_id", "source", "value"))
    return [(statements.INSERT_METRIC, MetricRow(_RUN_NO, idx, *fields))]


def _event(idx: int, _seq: int, _line: str, record: JsonObject) -> Rows:
    row = EventRow(_RUN_NO, idx, record["row_seq"], _text(record["event"]))
    return [(statements.INSERT_EVENT, row)]


def _prediction(idx: int, seq: int, text: str, record: JsonObject) -> Rows:
    return [(statements.INSERT_PREDICTION, rows.prediction_row(_RUN_NO, idx, seq, text, record))]


def _score(idx: int, seq: int, text: str, record: JsonObject) -> Rows:
    return [(statements.INSERT_SCORE, rows.score_row(_RUN_NO, idx, seq, text, record))]


def _evidence(idx: int, seq: int, text: str, record: JsonObject) -> Rows:
    return [(statements.INSERT_EVIDENCE, rows.evidence_row(_RUN_NO, idx, seq, text, record))]


_ROWS = {
    "trials": _trial,
    "metrics": _metric,
    "events": _event,
    "predictions": _prediction,
    "scores": _score,
    "evidence": _evidence,
}


def _text(value: Any) -> str:
    return canonical_json.dumps(value)


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[tuple[bytes, JsonObject]]]:
    """Iterate over a regular file: each line with its JSON object. Errors name file and line."""
    number = 0

    def read(handle: BinaryIO) -> Iterator[tuple[bytes, JsonObject]]:
        nonlocal number
        while line := handle.readline(_LONGEST_LINE):
            number += 1
            if not line.endswith(b"\n"):
                raise InvalidMirrorLine("the line has no end, or is too long")
            value = canonical_json.loads(line[:-1], max_depth=_DEPTH)
            if not isinstance(value, dict):
                raise InvalidMirrorLine("it is no JSON object")
            yield line[:-1], value

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as handle:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise LedgerError(f"{path} is not a regular file; nothing was imported")
            yield read(handle)
    except OSError as error:
        raise LedgerError(
            f"could not read {path}: {error.strerror}; nothing was imported",
            hint="`labledger export RUN_ID --out DIR` writes all that an import needs",
        ) from error
    except KeyError as error:
        raise LedgerError(f"{path}:{number}: {error} is missing; nothing was imported") from error
    except (MalformedJson, LookupError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError(f"{path}:{number}: {error}; nothing was imported") from error
