"""The chain of digests of a run, which reveals changed, removed and inserted rows.

The genesis digest covers the run's creation. Each commit adds its own row, all records that it
publishes, and the digest before it. The first commit of an appended part also adds the part's
digest. Its records and a run's mirrors are together the whole history.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import COLUMNS, KEYS
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import ONLY_IF_ANY, RECORD_KINDS, SlotRecords
from labledger.records.identity import slot_commit_id

_PAYLOAD_KEYS = sorted([*RECORD_KINDS, "reason", "schedule_idx", "status"])
"""The keys of everything that a commit publishes."""
RUN_COLUMNS = COLUMNS["run"][1:]
"""The columns of a run's own row without its number. The genesis digest covers them first."""
PART_COLUMNS = COLUMNS["run_part"][1:-1]
"""The columns of a part's row without the run's number and `digest`, which covers them."""


class PlannedRows:
    """A digest of prices, variants, tasks and slots, computed while their rows are streamed.

    The genesis digest of a run covers the columns of its row, then these rows, each kind in order.
    The digest of a part of its schedule covers the rows that the part added, then the columns of
    the part's row.
    """

    def __init__(self, run: Mapping[str, str] | None = None) -> None:
        """`run` has the columns of the run's row; None begins the digest of a part."""
        heading = b"labledger part 1\n" if run is None else b"labledger genesis 1\n"
        self._hasher = hashlib.sha256(heading)
        if run is not None:
            self._add(dict(run))

    def add(self, kind: str, *columns: Any) -> None:
        """Add a row of one of the kinds of `planned_parts`.

        `columns` leave out the run's number and the row's own number. For a task they are its id
        and digests; for a slot, the numbers of its cell and the slot that it supersedes.
        """
        if kind == "slot":
            *cell, supersedes = columns
            line = b"%d,%d,%d" % tuple(cell)
            self._hasher.update(line + (b"\n" if supersedes is None else b",%d\n" % supersedes))
        else:
            self._add(["model_price", *_set_prices(columns)] if kind == "price" else columns)

    def hexdigest(self, part: Mapping[str, object] | None = None) -> str:
        """Return the digest; `part` has the columns of a part without `run_no` and `digest`."""
        if part is not None:
            self._add(dict(part))
        return self._hasher.hexdigest()

    def _add(self, value: object) -> None:
        self._hasher.update(canonical_json.dump_bytes(value) + b"\n")


def _set_prices(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the columns of a price, without the last two if an earlier version wrote it."""
    return columns[:-2] if columns[-2:] == (None, "") else columns


def payload_digest(records: SlotRecords) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of everything that a commit publishes.

    The records are canonical text already. The whole text is put together from them piece by piece,
    because a slot may have more events than fit in memory.
    """
    other_values = {
        "reason": canonical_json.dumps(records.reason),
        "schedule_idx": str(records.schedule_idx),
        "status": canonical_json.dumps(records.status.value),
    }
    hasher = hashlib.sha256()
    opening = "{"
    for key in _PAYLOAD_KEYS:
        if key in ONLY_IF_ANY and not records.lines(key):
            continue
        opening += f'"{key}":'
        for piece in [other_values[key]] if key in other_values else _as_array(records.lines(key)):
            hasher.update(f"{opening}{piece}".encode())
            opening = ""
        opening = ","
    hasher.update(b"}")
    return hasher.hexdigest()


def _as_array(lines: Collection[str]) -> Iterator[str]:
    """Yield the text of an array of the lines, in pieces."""
    if isinstance(lines, tuple):
        yield f"[{','.join(lines)}]"
        return
    opening = "["
    for line in lines:
        yield f"{opening}{line}"
        opening = ","
    yield "]" if opening == "," else "[]"


def with_part(previous: str, part_digest: str | None) -> str:
    """Return the digest before a commit: `previous`, combined with the part that it begins."""
    if part_digest is None:
        return previous
    return canonical_json.sha256_hex(f"labledger part\n{previous}\n{part_digest}".encode())


def chain_digest(
    previous: str, slot_commit_id: str, epoch: int, committed_at: str, payload: str
) -> str:
    """Return the SHA-256 (hex) of a commit's own row and of the chain's digest before it."""
    parts = (previous, slot_commit_id, str(epoch), committed_at, payload)
    return canonical_json.sha256_hex("\n".join(parts).encode())


# -- the stored chain

_HEAD_SQL = """
SELECT run.run_id, schedule.genesis_digest, schedule_progress.next_schedule_idx
FROM run
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
WHERE run.run_no = ?"""
_CHECKED_SQL = """
SELECT schedule_idx, slot_commit_id, epoch, committed_at, payload_digest, chain_digest
FROM slot_commit WHERE run_no = ? ORDER BY schedule_idx"""

PARTS_SQL = "SELECT first_idx, digest FROM run_part WHERE run_no = ?"
"""The digest of each part that was appended to a run, by the number of its first slot."""


def find_chain_problems(connection: Connection, run_no: int) -> Iterator[tuple[int | None, str]]:
    """Yield the problems of a run's chain, each with its slot, or None for the run as a whole.

    Each link is compared with the stored link before it, so that one change is one problem. This
    finds commits that were changed, removed, inserted or reordered, in seconds. It does not check
    the records of a commit.
    """
    part_digests = dict(map(tuple, connection.execute(PARTS_SQL, (run_no,))))
    run_id, head, committed = connection.execute(_HEAD_SQL, (run_no,)).one()
    next_idx = 0
    for row in connection.execute(_CHECKED_SQL, (run_no,)):
        idx, *commit, digest = row
        head = with_part(head, part_digests.get(idx))
        if idx != next_idx:
            yield next_idx, f"the commits of slots {next_idx} to {idx - 1} are missing"
        elif commit[0] != slot_commit_id(run_id, idx):
            yield idx, "the commit's id was changed"
        elif chain_digest(head, *commit) != digest:
            yield idx, "the commit does not follow from the one before it"
        head, next_idx = digest, idx + 1
    if next_idx != committed:
        yield None, f"the progress says {committed} slots are committed; {next_idx} are"


_CHAIN_HEAD_SQL = statements.expand("SELECT {chain_head} FROM schedule WHERE schedule.run_no = ?")


def read_chain_head(connection: Connection, run_no: int) -> str:
    """Return the chain digest of the last commit, or the genesis digest if there is none."""
    return str(connection.execute(_CHAIN_HEAD_SQL, (run_no,)).scalar_one())


SCHEMA = "chain_record_v1"

COMMIT_COLUMNS = COLUMNS["slot_commit"][1:]
PRICE_COLUMNS = COLUMNS["model_price"][2:]
VARIANT_COLUMNS = COLUMNS["run_variant"][2:]
SLOT_COLUMNS = COLUMNS["slot"][1:]
SCHEDULE_COLUMNS = COLUMNS["schedule"][1:]
PART_ROW_COLUMNS = COLUMNS["run_part"][1:]
_WITHOUT_NULLS = frozenset({"part", "slot"})
"""Types of records that leave out what is null, such as `supersedes` of most slots."""
OPTIONAL_COLUMNS = {"supersedes": None, "web_search": None, "condition": ""}
"""Columns that records leave out where they have this value."""
JSON_COLUMNS = frozenset({"resolved", "images", "bindings", "payload", "selection"})
"""Columns that hold canonical JSON; in a record it appears as a JSON value."""

_RUN_SQL = (
    f"SELECT {statements.columns('run', start=1, qualified=True)}, "  # noqa: S608
    f"{statements.columns('schedule', start=1, qualified=True)} "
    "FROM run JOIN schedule ON schedule.run_no = run.run_no WHERE run.run_no = ?"
)
PLANNED_TABLES = {
    "price": "model_price",
    "variant": "run_variant",
    "task": "run_task",
    "slot": "slot",
}
"""The tables that grow when a part is appended, in the order in which they are written, by the type
of their records."""
_PLANNED_SQL = {
    **{
        kind: f"{statements.select(table, start=1)} ORDER BY {KEYS[table][1]}"
        for kind, table in PLANNED_TABLES.items()
    },
    "task": statements.expand(
        f"SELECT {statements.columns('run_task', start=1, qualified=True)}, task_payload.body "  # noqa: S608
        "FROM run_task {task_payload} WHERE run_task.run_no = ? ORDER BY run_task.task_idx"
    ),
}
"""SQL for the rows that a part of the schedule adds, by the type of their records."""
_PLANNED_COLUMNS: dict[str, tuple[str | None, ...]] = {
    "price": (None, *PRICE_COLUMNS),
    "variant": (None, *VARIANT_COLUMNS),
    "task": (None, "task_id", "digest", None, "payload"),
    "slot": SLOT_COLUMNS,
}
"""The names that these rows' columns have in a record; None for those that it lacks."""
_COUNTS = [f"(SELECT count(*) FROM {table} WHERE run_no = ?1)" for table in PLANNED_TABLES.values()]  # noqa: S608
_COUNTS_SQL = f"SELECT {', '.join(_COUNTS)}"
_PRICES_BY_PART_SQL = "SELECT part, count(*) FROM model_price WHERE run_no = ? GROUP BY part"
_PARTS_SQL = f"{statements.select('run_part', start=1)} ORDER BY part"
_CHAIN_SQL = f"{statements.select('slot_commit', start=1)} ORDER BY schedule_idx"


def read_chain_records(connection: Connection, run_no: int) -> Iterator[JsonObject]:
    """Yield the run, its prices, variants, tasks, slots and commits, each a `chain_record_v1`.

    Parts that were appended come before the commits, each with the rows that it added. The records
    do not depend on the run's owner or on whether the run has ended.
    """
    parts = [
        _record("part", PART_ROW_COLUMNS, row) for row in connection.execute(_PARTS_SQL, (run_no,))
    ]
    run = _record(
        "run",
        (*RUN_COLUMNS, *SCHEDULE_COLUMNS),
        connection.execute(_RUN_SQL, (run_no,)).one(),
    )
    # As the run was created: appending a part changes no record before it.
    run["total_slots"] -= sum(part["slot_count"] for part in parts)
    yield run
    added = planned_parts(connection, run_no, parts)
    for part, rows in zip([None, *parts], added, strict=True):
        if part is not None:
            yield part
        for kind, _, row in rows:
            yield _record(kind, _PLANNED_COLUMNS[kind], row)
    for row in connection.execute(_CHAIN_SQL, (run_no,)):
        yield _record("commit", COMMIT_COLUMNS, row)


def planned_parts(
    connection: Connection, run_no: int, parts: Sequence[Mapping[str, Any]]
) -> Iterator[Iterator[tuple[str, int, Any]]]:
    """Yield the rows of each part of a run's schedule, beginning with the part that created the
    run.

    `parts` are the rows of `run_part` by column. Read the rows of a part before you request the
    next part. Each row comes with its kind (`price`, `variant`, `task`, `slot`) and its number
    among the run's rows of this kind, from 0.
    """
    counts = connection.execute(_COUNTS_SQL, (run_no,)).one()
    prices = dict(map(tuple, connection.execute(_PRICES_BY_PART_SQL, (run_no,))))
    later = [
        {"price": prices.get(part["part"], 0)}
        | {kind: part[f"{kind}_count"] for kind in _PLANNED_SQL if kind != "price"}
        for part in parts
    ]
    first = {
        kind: count - sum(part[kind] for part in later)
        for kind, count in zip(_PLANNED_SQL, counts, strict=True)
    }
    rows = {
        kind: enumerate(connection.execute(sql, (run_no,))) for kind, sql in _PLANNED_SQL.items()
    }
    for sizes in (first, *later):
        yield (
            (kind, number, row)
            for kind, size in sizes.items()
            for number, row in islice(rows[kind], max(0, size))
        )


def _record(record_type: str, columns: Sequence[str | None], row: Any) -> JsonObject:
    values = {
        name: json.loads(value) if name in JSON_COLUMNS and value is not None else value
        for name, value in zip(columns, row, strict=True)
        if name is not None
        and (value is not None or record_type not in _WITHOUT_NULLS)
        and (name not in OPTIONAL_COLUMNS or value != OPTIONAL_COLUMNS[name])
    }
    return {"schema_version": SCHEMA, "type": record_type, **values}
