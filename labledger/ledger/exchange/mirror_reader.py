"""Rebuild the rows of a run from a folder of mirrors, so that mirrors can be imported.

The files are untrusted: this module checks only their form, and writes their content unchanged. The
caller verifies the digests afterwards, as for any other source of an import.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from labledger.errors import LedgerError, MalformedJson
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection, batched
from labledger.ledger.rows import digest_chain, run_rows, slot_rows
from labledger.ledger.rows.digest_chain import (
    COMMIT_COLUMNS,
    JSON_COLUMNS,
    OPTIONAL_COLUMNS,
    PART_ROW_COLUMNS,
    PRICE_COLUMNS,
    SCHEDULE_COLUMNS,
    SCHEMA,
    SLOT_COLUMNS,
    VARIANT_COLUMNS,
)
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import MAX_LINE_BYTES, MAX_RECORD_DEPTH, ONLY_IF_ANY

_RUN_NO = 1
_MAX_CHAIN_LINE_BYTES = 256 << 20
_ROWS_PER_BATCH = 500

_INSERT_PROGRESS = """
INSERT INTO schedule_progress (run_no, next_schedule_idx, epoch, status, updated_at)
SELECT ?1, count(*), coalesce(max(epoch), 0),
  CASE WHEN count(*) = ?3 THEN 'completed' ELSE 'interrupted' END, coalesce(max(committed_at), ?2)
FROM slot_commit WHERE run_no = ?1"""
"""The progress of a rebuilt run, computed from its commits alone."""


class InvalidMirrorLine(ValueError):
    """A line that does not belong in its file."""


def rebuild(connection: Connection, chain: Path, mirrors: dict[str, Path]) -> str:
    """Write the run of these files into an empty ledger; return its id.

    `mirrors` maps each of `RECORD_KINDS` to its file; files of `ONLY_IF_ANY` may be missing. Raises
    `LedgerError` with file and line.
    """
    with _lines(chain, _MAX_CHAIN_LINE_BYTES) as chain_lines:
        run_id = _write_chain(connection, chain_lines)
    kinds = ("trials", "metrics", "events", "predictions", "scores", "evidence", "model_calls")
    for kind in kinds:
        if kind in ONLY_IF_ANY and not os.path.lexists(mirrors[kind]):
            continue
        with _lines(mirrors[kind], MAX_LINE_BYTES) as mirror_lines:
            _write_records(connection, mirror_lines, kind)
    return run_id


def _write_chain(connection: Connection, lines: Iterator[tuple[bytes, JsonObject]]) -> str:
    records = (record for _, record in lines)
    run = next(records, None)
    if run is None or (run["schema_version"], run["type"]) != (SCHEMA, "run"):
        raise InvalidMirrorLine(f"the file does not begin with the run of a {SCHEMA}")
    columns = [_column("run", run, name) for name in digest_chain.RUN_COLUMNS]
    connection.execute(statements.insert("run"), (_RUN_NO, *columns))
    schedule = [run[name] for name in SCHEDULE_COLUMNS]
    connection.execute(statements.insert("schedule"), (_RUN_NO, *schedule))
    total = schedule[0]
    counts = dict.fromkeys(_RECORDS, 0)
    for kind, group in groupby(records, key=lambda record: str(record["type"])):
        if kind not in _RECORDS:
            raise InvalidMirrorLine(f"{kind[:40]!r} is not a type of {SCHEMA}")
        for batch in batched(group, _ROWS_PER_BATCH):
            _write_batch(connection, kind, batch, counts[kind])
            counts[kind] += len(batch)
            total += sum(record["slot_count"] for record in batch if kind == "part")
    connection.execute(_INSERT_PROGRESS, (_RUN_NO, run["created_at"], total))
    _write_tags(connection, run["resolved"], run["created_at"])
    return str(run["run_id"])


def _write_tags(connection: Connection, resolved: JsonObject, created_at: str) -> None:
    """Give the run the tags of its experiment. Later tags are in no mirror."""
    tags = resolved["experiment"].get("tags", []) if "experiment" in resolved else []
    run_rows.add_tags(connection, _RUN_NO, map(str, tags), created_at)


_RECORDS = {
    "price": ("model_price", PRICE_COLUMNS),
    "variant": ("run_variant", VARIANT_COLUMNS),
    "task": ("run_task", ("task_id", "digest")),
    "slot": ("slot", SLOT_COLUMNS),
    "part": ("run_part", PART_ROW_COLUMNS),
    "commit": ("slot_commit", COMMIT_COLUMNS),
}
"""The table of each type of record, and the columns of it that the record has."""
_NUMBERED = frozenset({"price", "variant", "task"})
"""Types of records whose number is their place in the file."""


def _write_batch(
    connection: Connection, kind: str, batch: list[JsonObject], first_idx: int
) -> None:
    """Write records of one type; the first of them has the number `first_idx` in the file."""
    table, names = _RECORDS[kind]
    rows: list[list[Any]] = [[_column(kind, record, name) for name in names] for record in batch]
    if kind in _NUMBERED:
        rows = [[number, *row] for number, row in enumerate(rows, first_idx)]
    if kind == "task":
        bodies = [canonical_json.dumps(record["payload"]) for record in batch]
        payloads = [(canonical_json.sha256_hex(body.encode()), body) for body in bodies]
        insert = statements.insert("task_payload", unless_exists="payload_digest")
        connection.execute(insert, payloads)
        rows = [[*row, digest] for row, (digest, _) in zip(rows, payloads, strict=True)]
    connection.execute(statements.insert(table), [(_RUN_NO, *row) for row in rows])


def _column(kind: str, record: JsonObject, name: str) -> Any:
    """Return a column of a record. Parts and slots leave out nulls."""
    is_optional = kind == "part" or name in OPTIONAL_COLUMNS
    value = record.get(name, OPTIONAL_COLUMNS.get(name)) if is_optional else record[name]
    return canonical_json.dumps(value) if name in JSON_COLUMNS and name in record else value


def _write_records(
    connection: Connection, lines: Iterator[tuple[bytes, JsonObject]], kind: str
) -> None:
    """Write a mirror's records. `row_seq` counts an attempt's records from 0, in order."""
    last_key, seq = None, 0
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for number, (line, record) in enumerate(lines, 1):
        key = (record["schedule_idx"], record["attempt"])
        last_key, seq = key, seq + 1 if key == last_key else 0
        for table, row in _rows_of_record(kind, seq, line.decode(), record):
            rows.setdefault(table, []).append(row)
        if number % _ROWS_PER_BATCH == 0:
            _insert(connection, rows)
    _insert(connection, rows)


def _rows_of_record(
    kind: str, seq: int, text: str, record: JsonObject
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the rows that a record was made of, each with its table."""
    idx = record["schedule_idx"]
    if kind == "trials":
        yield "trial", slot_rows.trial_row_of_record(_RUN_NO, idx, record)
        for row in slot_rows.attempt_rows_of_record(_RUN_NO, idx, record):
            yield "attempt", row
    else:
        table, row_of_record = slot_rows.ROW_TABLES[kind]
        yield table, row_of_record(_RUN_NO, idx, seq, text, record)


def _insert(connection: Connection, rows: dict[str, list[tuple[Any, ...]]]) -> None:
    for table, batch in rows.items():
        connection.execute(statements.insert(table), batch)
    rows.clear()


@contextmanager
def _lines(path: Path, max_bytes: int) -> Iterator[Iterator[tuple[bytes, JsonObject]]]:
    """Yield an iterator of a regular file's lines, each with its JSON object.

    At most `max_bytes` of a line are read. Raises `LedgerError` with file and line, also if the
    block that uses the lines fails.
    """
    number = 0

    def read(handle: BinaryIO) -> Iterator[tuple[bytes, JsonObject]]:
        nonlocal number
        while line := handle.readline(max_bytes):
            number += 1
            if not line.endswith(b"\n"):
                raise InvalidMirrorLine("the line is incomplete or too long")
            value = canonical_json.loads(line[:-1], max_depth=MAX_RECORD_DEPTH)
            if not isinstance(value, dict):
                raise InvalidMirrorLine("the line is not a JSON object")
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
            hint="`labledger export RUN_ID --out DIR` writes everything that an import needs",
        ) from error
    except KeyError as error:
        raise LedgerError(f"{path}:{number}: {error} is missing; nothing was imported") from error
    except (MalformedJson, LookupError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError(f"{path}:{number}: {error}; nothing was imported") from error
