"""Stream committed rows as flat tables with fixed columns and types, in schedule order.

The columns are the stable format `labledger_table_v1`; views, in contrast, may gain columns. As in
the views, slots that a committed slot supersedes are left out.
`export` writes these tables as CSV and Parquet, and data frames are built from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection

FORMAT = "labledger_table_v1"
"""The name of the columns and types below; a format with others gets another name."""


class ColumnType(StrEnum):
    """The type of a column."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    sql: str


@dataclass(frozen=True, slots=True)
class FlatTable:
    """One kind of row, whose `columns` are the same in every export."""

    columns: tuple[Column, ...]
    sql: str


def _columns(column_type: ColumnType, table: str, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, column_type, f"{table}.{name}") for name in names)


def _text(table: str, *names: str) -> tuple[Column, ...]:
    return _columns(ColumnType.TEXT, table, *names)


def _integer(table: str, *names: str) -> tuple[Column, ...]:
    return _columns(ColumnType.INTEGER, table, *names)


def _computed(column_type: ColumnType, name: str, sql: str) -> tuple[Column, ...]:
    return (Column(name, column_type, sql),)


def _table(name: str, order: str, *groups: tuple[Column, ...], joins: str = "") -> FlatTable:
    """Return the table `name`, whose rows are sorted by run, slot and the columns in `order`.

    CROSS JOIN makes SQLite read the rows in key order, so that nothing has to be sorted.
    """
    identity = (
        *_text("run", "run_id"),
        *_integer(name, "schedule_idx"),
        *_computed(
            ColumnType.TEXT, "trial_id", f"printf('%s-s%06d', run.run_id, {name}.schedule_idx)"
        ),
        *_text("run_variant", "variant_id"),
        *_text("run_task", "task_id"),
        *_integer("slot", "repl_idx"),
    )
    columns = (*identity, *(column for group in groups for column in group))
    select_list = ", ".join(column.sql for column in columns)
    order = ", ".join(f"{name}.{column}" for column in ("run_no", "schedule_idx", *order.split()))
    sql = statements.expand(f"""
SELECT {select_list} FROM {name}
CROSS JOIN run ON run.run_no = {name}.run_no
{{slot_of {name}}}
{joins}
WHERE {name}.run_no = ? AND {{not_superseded {name}}}
ORDER BY {order}""")  # noqa: S608
    return FlatTable(columns, sql)


def _phases() -> tuple[Column, ...]:
    columns: list[Column] = []
    for phase in ("setup", "agent", "grader"):
        columns += _integer("trial", f"{phase}_exit_status", f"{phase}_duration_ms")
        columns += _columns(ColumnType.BOOLEAN, "trial", f"{phase}_timed_out")
    return tuple(columns)


TABLES: dict[str, FlatTable] = {
    "predictions": _table(
        "prediction",
        "row_seq",
        _integer("prediction", "row_seq"),
        _text("prediction", "kind"),
        _computed(ColumnType.TEXT, "value", "prediction.record ->> '$.prediction.value'"),
        _computed(
            ColumnType.TEXT, "artifact_ref", "prediction.record ->> '$.prediction.artifact_ref'"
        ),
        _text("prediction", "record"),
    ),
    "scores": _table(
        "score",
        "row_seq",
        _integer("score", "row_seq"),
        _text("score", "verdict", "primary_metric_name"),
        _columns(ColumnType.REAL, "score", "primary_metric_value"),
        _text("trial", "status"),
        _computed(ColumnType.TEXT, "evaluator_name", "score.record ->> '$.evaluator.name'"),
        _computed(ColumnType.TEXT, "error_message", "score.record ->> '$.error.message'"),
        _text("score", "record"),
        joins="CROSS JOIN trial ON trial.run_no = score.run_no "
        "AND trial.schedule_idx = score.schedule_idx",
    ),
    "evidence": _table(
        "evidence_record",
        "attempt row_seq",
        _integer("evidence_record", "attempt", "row_seq"),
        _computed(ColumnType.TEXT, "executor", "evidence_record.record ->> '$.runtime.executor'"),
        _computed(ColumnType.TEXT, "evidence", "evidence_record.record -> '$.evidence'"),
        _text("evidence_record", "record"),
    ),
    "trials": _table(
        "slot_commit",
        "",
        _text("slot_commit", "status", "reason"),
        _text("trial", "message", "verdict"),
        _text("score", "primary_metric_name"),
        _columns(ColumnType.REAL, "score", "primary_metric_value"),
        _text("trial", "outcome"),
        _integer("trial", "attempt", "exit_status"),
        _text("trial", "started_at", "ended_at"),
        _integer("trial", "duration_ms"),
        _phases(),
        _text("trial", "image_ref", "image_id"),
        _integer("trial", "events_dropped"),
        _text("slot_commit", "slot_commit_id", "committed_at", "chain_digest"),
        joins="LEFT JOIN trial ON trial.run_no = slot_commit.run_no "
        "AND trial.schedule_idx = slot_commit.schedule_idx "
        "LEFT JOIN score ON score.run_no = slot_commit.run_no "
        "AND score.schedule_idx = slot_commit.schedule_idx AND score.row_seq = 0",
    ),
    "attempts": _table(
        "attempt",
        "attempt",
        _integer("attempt", "attempt"),
        _text("attempt", "status", "reason", "message"),
        _integer("attempt", "exit_status"),
        _text("attempt", "started_at", "ended_at"),
        _integer("attempt", "duration_ms"),
        _text("attempt", "container", "image_id"),
    ),
    "metrics": _table(
        "metric",
        "row_seq",
        _integer("metric", "row_seq"),
        _text("metric", "metric_id", "source"),
        _computed(
            ColumnType.REAL,
            "value",
            "CASE WHEN typeof(metric.value) <> 'text' THEN CAST(metric.value AS REAL) END",
        ),
        _computed(
            ColumnType.TEXT,
            "value_text",
            "CASE typeof(metric.value) WHEN 'text' THEN metric.value "
            "ELSE json_quote(metric.value) END",
        ),
    ),
    "events": _table(
        "event",
        "row_seq",
        _integer("event", "row_seq"),
        _text("event", "type", "body"),
    ),
}
"""The tables by kind; all begin with the columns of run, slot, trial, variant and task."""


def read_table(connection: Connection, run_no: int, kind: str) -> Iterator[tuple[Any, ...]]:
    """Yield the committed rows of a run in one of `TABLES`, with its columns, in schedule order."""
    result = connection.execute(TABLES[kind].sql, (run_no,))
    while batch := result.fetchmany(200):
        yield from map(tuple, batch)
