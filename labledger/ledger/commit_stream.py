"""Turn committed rows back into records, one slot at a time, and read and check a run's chain.

The lines are byte for byte those from which the commit's digest was computed. Memory grows neither
with the run nor with the events of a slot. The chain says how the run was created and grew, and its
commits' digests; with a run's mirrors it is the whole history, so that `exchange.mirror_reader` can
restore the run. Its bytes do not depend on the run's owner or progress.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from labledger.ledger import digest_chain, slot_rows
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import (
    COLUMNS,
    AttemptRow,
    EventRow,
    MetricRow,
    ModelCallRow,
    TrialRow,
)
from labledger.ledger.model_call_rows import model_call_records
from labledger.ledger.slot_rows import LazyValues
from labledger.records import JsonObject
from labledger.records.identity import Slot, Stamp, TrialIds, slot_commit_id
from labledger.records.outcomes import SlotStatus
from labledger.records.slot_records import RECORD_KINDS, SlotRecords

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

    Each link is compared with the one before it as stored, so that one change is one problem.
    Commits that were changed, removed, inserted or reordered are found in seconds; records that
    were changed while their commit was not are not looked at.
    """
    part_digests = dict(map(tuple, connection.execute(PARTS_SQL, (run_no,))))
    run_id, head, committed = connection.execute(_HEAD_SQL, (run_no,)).one()
    next_idx = 0
    for row in connection.execute(_CHECKED_SQL, (run_no,)):
        idx, *commit, digest = row
        head = digest_chain.with_part(head, part_digests.get(idx))
        if idx != next_idx:
            yield next_idx, f"the commits of slots {next_idx} to {idx - 1} are missing"
        elif commit[0] != slot_commit_id(run_id, idx):
            yield idx, "the commit's id was changed"
        elif digest_chain.chain_digest(head, *commit) != digest:
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
SLOT_COLUMNS = COLUMNS["slot"][1:]
SCHEDULE_COLUMNS = COLUMNS["schedule"][1:]
PART_COLUMNS = COLUMNS["run_part"][1:]
_WITHOUT_NULLS = frozenset({"part", "slot"})
"""Types of records that leave out what is null, such as `supersedes` of most slots."""
JSON_COLUMNS = frozenset({"resolved", "images", "bindings", "payload", "selection"})
"""Columns that hold canonical JSON; in a record it appears as a JSON value."""

_RUN_SQL = (
    f"SELECT {statements.columns('run', start=1, qualified=True)}, "  # noqa: S608
    f"{statements.columns('schedule', start=1, qualified=True)} "
    "FROM run JOIN schedule ON schedule.run_no = run.run_no WHERE run.run_no = ?"
)
_PLANNED_SQL = {
    "price": f"{statements.select('model_price', start=1)} ORDER BY price_idx",
    "variant": f"{statements.select('run_variant', start=1)} ORDER BY variant_idx",
    "task": statements.expand(
        f"SELECT {statements.columns('run_task', start=1, qualified=True)}, task_payload.body "  # noqa: S608
        "FROM run_task {task_payload} WHERE run_task.run_no = ? ORDER BY run_task.task_idx"
    ),
    "slot": f"{statements.select('slot', start=1)} ORDER BY schedule_idx",
}
"""The rows of what a part of the schedule adds, by the type of their records."""
_PLANNED_COLUMNS: dict[str, tuple[str | None, ...]] = {
    "price": (None, *PRICE_COLUMNS),
    "variant": (None, *COLUMNS["run_variant"][2:]),
    "task": (None, "task_id", "digest", None, "payload"),
    "slot": SLOT_COLUMNS,
}
"""The names that these rows' columns have in a record; None for those that it lacks."""
_COUNTS_SQL = (
    "SELECT (SELECT count(*) FROM model_price WHERE run_no = ?1), "
    "(SELECT count(*) FROM run_variant WHERE run_no = ?1), "
    "(SELECT count(*) FROM run_task WHERE run_no = ?1), "
    "(SELECT count(*) FROM slot WHERE run_no = ?1)"
)
_PARTS_SQL = f"{statements.select('run_part', start=1)} ORDER BY part"
_PRICES_BY_PART_SQL = "SELECT part, count(*) FROM model_price WHERE run_no = ? GROUP BY part"
_CHAIN_SQL = f"{statements.select('slot_commit', start=1)} ORDER BY schedule_idx"


def read_chain_records(connection: Connection, run_no: int) -> Iterator[JsonObject]:
    """Yield the run, its prices, variants, tasks, slots and commits, each a `chain_record_v1`.

    Before the commits, each part that was appended follows with what it added. The records do not
    depend on who owns the run or whether it has ended.
    """
    parts = [
        _record("part", PART_COLUMNS, row) for row in connection.execute(_PARTS_SQL, (run_no,))
    ]
    run = _record(
        "run",
        (*digest_chain.RUN_COLUMNS, *SCHEDULE_COLUMNS),
        connection.execute(_RUN_SQL, (run_no,)).one(),
    )
    # As the run was created: appending a part changes none of the records before it.
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
    """Yield what each part of a run's schedule has: first what the run was created with.

    `parts` are the rows of `run_part` by column. The rows of a part must be read before the next
    part is requested; each comes with its kind (`price`, `variant`, `task`, `slot`) and its number
    among those of the run, from 0.
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
        if name is not None and (value is not None or record_type not in _WITHOUT_NULLS)
    }
    return {"schema_version": SCHEMA, "type": record_type, **values}


_IN_RANGE = "{0}.run_no = ? AND {0}.schedule_idx >= ? AND {0}.schedule_idx < ?"


def _rows_sql(table: str, order: str) -> str:
    """Return SQL that reads the rows of `table` in record order, `schedule_idx` second."""
    return (
        f"SELECT {statements.columns(table)} FROM {table} WHERE {_IN_RANGE.format(table)} "  # noqa: S608
        f"ORDER BY run_no, schedule_idx, {order}"
    )


_SQL = {
    "predictions": _rows_sql("prediction", "row_seq"),
    "scores": _rows_sql("score", "row_seq"),
    "evidence": _rows_sql("evidence_record", "attempt, row_seq"),
    "trials": _rows_sql("attempt", "attempt"),
    "metrics": _rows_sql("metric", "row_seq"),
    "events": _rows_sql("event", "row_seq"),
    "model_calls": _rows_sql("model_call", "attempt, call"),
}
_TRIALS_SQL = statements.expand(f"""
SELECT run_variant.variant_id, run_task.task_id, slot.repl_idx,
  {statements.columns("trial", qualified=True)}
FROM trial
{{slot_of trial}}
WHERE {_IN_RANGE.format("trial")}
ORDER BY trial.run_no, trial.schedule_idx""")  # noqa: S608
_COMMITS_SQL = statements.expand(f"""
SELECT {statements.columns("slot_commit", start=1, qualified=True)}, run_variant.variant_id
FROM slot_commit
JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
{{slot_variant}}
WHERE {_IN_RANGE.format("slot_commit")}
ORDER BY slot_commit.run_no, slot_commit.schedule_idx""")  # noqa: S608

_AFTER_LAST_SLOT = 2**62
_MANY_EVENTS = 5_000
"""Events of a slot beyond this number are read when they are iterated, and not held."""
_SLOT = itemgetter(1)
"""Returns the `schedule_idx` of a row."""


class RowSource(Protocol):
    """The part of a connection that this module uses."""

    def execute(self, sql: str, params: tuple[Any, ...], /) -> Iterable[Any]:
        """Return the rows of a query."""


class Trial(NamedTuple):
    """A row of `trial`, and what the records of its slot share."""

    stamp: Stamp
    row: TrialRow


@dataclass(frozen=True, slots=True)
class Commit:
    """A row of `slot_commit`, and the records made from the slot's rows."""

    slot_commit_id: str
    epoch: int
    committed_at: str
    payload_digest: str
    chain_digest: str
    trial: TrialRow | None
    """The slot's row of `trial`; if there is one, `records` contain a trial record."""
    records: SlotRecords


def commits(
    connection: RowSource,
    run_id: str,
    run_no: int,
    start: int,
    stop: int | None,
    *,
    holds_events: bool = True,
) -> Iterator[Commit]:
    """Yield the commits of a run's slots `start` to `stop` (exclusive), in order.

    Without `holds_events`, the records of very many events are read whenever they are iterated, the
    first time before the next commit is requested.
    """
    key = (run_no, start, _AFTER_LAST_SLOT if stop is None else stop)
    trials = _InOrder(_trials(connection, run_id, key))
    rows_by_kind = {
        kind: _InOrder(_rows_by_slot(connection, kind, key, holds_events=holds_events))
        for kind in RECORD_KINDS
    }
    for row in connection.execute(_COMMITS_SQL, key):
        idx, commit_id, status, reason, epoch, committed_at, payload, chain, variant_id = row
        trial = trials.of_slot(idx)
        lines: dict[str, Any] = {
            kind: _lines(kind, trial, group)
            for kind, rows in rows_by_kind.items()
            if (group := rows.of_slot(idx)) is not None
        }
        records = SlotRecords(
            schedule_idx=idx,
            variant_id=variant_id,
            status=SlotStatus(status),
            reason=reason,
            verdict=None if trial is None else trial.row.verdict,
            agent_exit_status=None if trial is None else trial.row.agent_exit_status,
            **lines,
        )
        trial_row = None if trial is None else trial.row
        yield Commit(commit_id, epoch, committed_at, payload, chain, trial_row, records)


def lines_by_slot(
    connection: RowSource,
    kind: str,
    run_id: str,
    run_no: int,
    start: int,
    stop: int | None = None,
) -> Iterator[tuple[int, Collection[str]]]:
    """Yield (schedule_idx, lines) of one of `RECORD_KINDS` for each slot that has any.

    The lines of very many events are read when they are iterated, which must be before the next
    slot is requested.
    """
    key = (run_no, start, _AFTER_LAST_SLOT if stop is None else stop)
    trials = None if kind in _VERBATIM else _InOrder(_trials(connection, run_id, key))
    for idx, group in _rows_by_slot(connection, kind, key, holds_events=False):
        lines = _lines(kind, None if trials is None else trials.of_slot(idx), group)
        if lines != ():
            yield idx, lines


_Key = tuple[int, int, int]
"""A run's number, and the slots to be read: the first, and the one after the last."""
T = TypeVar("T")


class _InOrder(Generic[T]):
    """What an iterator yields for each slot, which must be requested in slot order."""

    def __init__(self, source: Iterator[tuple[int, T]]) -> None:
        self._source = source
        self._next = next(source, None)

    def of_slot(self, idx: int) -> T | None:
        while self._next is not None and self._next[0] < idx:
            self._next = next(self._source, None)
        if self._next is None or self._next[0] != idx:
            return None
        return self._next[1]


def _rows_by_slot(
    connection: RowSource, kind: str, key: _Key, *, holds_events: bool
) -> Iterator[tuple[int, Iterable[Any]]]:
    for idx, group in groupby(connection.execute(_SQL[kind], key), key=_SLOT):
        if kind != "events" or holds_events:
            yield idx, list(group)
            continue
        rest = iter(group)
        first = list(islice(rest, _MANY_EVENTS))
        if len(first) < _MANY_EVENTS:
            yield idx, first
            continue
        many = _ManyEvents(connection, (key[0], idx, idx + 1), chain(first, rest))
        yield idx, many
        many.is_past = True


@dataclass
class _ManyEvents(LazyValues[EventRow]):
    """The rows of a slot's events, read whenever they are iterated.

    The first iteration goes on with the query that found them.
    """

    connection: RowSource
    key: _Key
    rows: Iterator[Any] | None
    is_past: bool = False

    def __iter__(self) -> Iterator[EventRow]:
        rows, self.rows = self.rows, None
        if rows is None or self.is_past:
            yield from map(EventRow._make, self.connection.execute(_SQL["events"], self.key))
            return
        yield from map(EventRow._make, rows)
        if self.is_past:
            raise RuntimeError("the next slot was requested while events were being read")


def _trials(connection: RowSource, run_id: str, key: _Key) -> Iterator[tuple[int, Trial]]:
    for variant_id, task_id, repl_idx, *columns in connection.execute(_TRIALS_SQL, key):
        row = TrialRow._make(columns)
        idx = row.schedule_idx
        ids = TrialIds.of(run_id, Slot(idx, variant_id, task_id, repl_idx))
        yield (
            idx,
            Trial(Stamp(ids, idx, slot_commit_id(run_id, idx), row.attempt, row.ended_at), row),
        )


_VERBATIM = frozenset({"predictions", "scores", "evidence"})
"""The kinds whose records are stored as text, in the last column."""


def _lines(kind: str, trial: Trial | None, rows: Iterable[Any]) -> Collection[str]:
    """Return the records of a slot of one kind, made from its trial and its rows of that kind."""
    if kind in _VERBATIM:
        return tuple(row[-1] for row in rows)
    if trial is None:
        return ()
    if kind == "trials":
        attempts = list(map(AttemptRow._make, rows))
        return (slot_rows.trial_record(trial.stamp, trial.row, attempts),)
    if kind == "metrics":
        return slot_rows.metric_records(trial.stamp, map(MetricRow._make, rows))
    if kind == "model_calls":
        return model_call_records(trial.stamp, map(ModelCallRow._make, rows))
    events = rows if isinstance(rows, LazyValues) else list(map(EventRow._make, rows))
    return slot_rows.event_records(trial.stamp, events)
