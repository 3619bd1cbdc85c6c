"""The ledger's views and triggers, and views of an earlier time or of a single run.

Their SQL is in the `.sql` files; this module makes the triggers that refuse changes. A ledger
stores the texts, and `labledger verify` compares them: a change needs a migration. To show another
time or grading, a connection gets temporary views.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.statements import NO_ROWS, TALLIED
from labledger.ledger.database.table_rows import COLUMNS, SLOT_TABLES

APPEND_ONLY = (
    "ledger_meta",
    "run",
    "grading",
    "run_variant",
    "model_price",
    "task_payload",
    "run_task",
    "slot",
    "run_part",
    "dispatch",
    "slot_commit",
    "trial",
    "attempt",
    "metric",
    "event",
    "prediction",
    "score",
    "evidence_record",
    "model_call",
    "artifact",
    "run_note",
    "host_fence",
    "deleted_run",
)
"""Tables whose rows are never changed and never removed."""

_FOLDER = Path(__file__).parent
_VIEW = re.compile(r"^((?:--.*\n)+)CREATE VIEW (\w+) AS ([^;]+);$", re.MULTILINE)
_TRIGGER = re.compile(r"^CREATE TRIGGER (\w+) .*?; END(?=;$)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class View:
    comment: str
    """The meaning of a row, in one line that begins with ``one row per``."""
    sql: str
    """The SELECT of the view."""

    def statement(self, name: str) -> str:
        """Return the SQL that creates the view under `name`."""
        return f"CREATE VIEW {name} AS {self.sql}"


def _read(file: str) -> str:
    return statements.expand((_FOLDER / file).read_text("utf-8"))


def _read_views(file: str) -> Iterator[tuple[str, View]]:
    for comment, name, sql in _VIEW.findall(_read(file)):
        first_paragraph = comment.partition("\n--\n")[0]
        yield name, View(re.sub(r"\s*--\s*", " ", first_paragraph).strip(), sql)


def _refuse(table: str, action: str, message: str, when: str = "") -> tuple[str, str]:
    name = f"{table}_refuses_{action.lower()}"
    condition = f"WHEN {when} " if when else ""
    return name, (
        f"CREATE TRIGGER {name} BEFORE {action} ON {table} {condition}"
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


_ASKED_CHANGED = " OR ".join(
    f"NEW.{name} IS NOT OLD.{name}"
    for name in COLUMNS["control_request"]
    if not name.startswith("applied") and name != "outcome"
)
"""SQL: whether an update changes a request itself, not only its outcome."""


def _triggers() -> Iterator[tuple[str, str]]:
    for table in APPEND_ONLY:
        yield _refuse(table, "UPDATE", f"{table} is append-only: its rows are never changed")
        yield _refuse(table, "DELETE", f"{table} is append-only: its rows are never removed")
    yield _refuse(
        "staged_result",
        "DELETE",
        "staged_result: a result is removed only once its slot is committed",
        "NOT EXISTS (SELECT 1 FROM slot_commit WHERE slot_commit.run_no = OLD.run_no "
        "AND slot_commit.schedule_idx = OLD.schedule_idx)",
    )
    yield _refuse("staged_result", "UPDATE", "staged_result: a staged result is never changed")
    yield _refuse("notification", "DELETE", "notification: what is to be told is never removed")
    yield _refuse("schedule", "DELETE", "schedule is append-only: it is never removed")
    yield _refuse("slot_outcome", "DELETE", "slot_outcome: an outcome is never removed")
    yield _refuse("schedule_progress", "DELETE", "schedule_progress: progress is never removed")
    yield _refuse(
        "schedule_progress",
        "UPDATE",
        "schedule_progress: progress goes one slot at a time, and epochs never go back",
        "NEW.next_schedule_idx NOT IN (OLD.next_schedule_idx, OLD.next_schedule_idx + 1) "
        "OR NEW.epoch < OLD.epoch OR NEW.run_no <> OLD.run_no",
    )
    yield _refuse(
        "control_request",
        "UPDATE",
        "control_request: a request is applied once, and never changed",
        f"OLD.applied_at IS NOT NULL OR NEW.applied_at IS NULL OR {_ASKED_CHANGED}",
    )
    yield _refuse("control_request", "DELETE", "control_request: a request is never removed")
    yield from _tally_triggers()
    for match in _TRIGGER.finditer(_read("triggers.sql")):
        yield match[1], match[0]


def _tally_triggers() -> Iterator[tuple[str, str]]:
    """Yield the triggers that count a run's rows, from its first one on, in `run_tally`."""
    rows = ", ".join(
        f"(NEW.run_no, '{table}', 0, '{NO_ROWS}', "
        f"row_digest('run_tally', NEW.run_no, '{table}', 0, '{NO_ROWS}'))"
        for table in TALLIED
    )
    columns = "run_no, table_name, row_count, content, row_digest"
    name = "run_tally_begins"
    begin = f"INSERT INTO run_tally ({columns}) VALUES {rows}"  # noqa: S608
    yield name, f"CREATE TRIGGER {name} AFTER INSERT ON run BEGIN {begin}; END"
    for table in TALLIED:
        yield _tally(table, "INSERT", "NEW", "row_count + 1", "combine(content, NEW.row_digest)")
        if table in APPEND_ONLY:
            continue
        yield _tally(table, "DELETE", "OLD", "row_count - 1", "combine(content, OLD.row_digest)")
        both = "combine(combine(content, OLD.row_digest), NEW.row_digest)"
        yield _tally(table, "UPDATE", "NEW", "row_count", both)


def _tally(table: str, action: str, row: str, count: str, content: str) -> tuple[str, str]:
    name = f"run_tally_{table}_{action.lower()}"
    changes = (
        f"row_count = {count}, content = {content}, "
        f"row_digest = row_digest('run_tally', run_no, table_name, {count}, {content})"
    )
    where = f"run_no = {row}.run_no AND table_name = '{table}'"
    update = f"UPDATE run_tally SET {changes} WHERE {where}"  # noqa: S608
    return name, f"CREATE TRIGGER {name} AFTER {action} ON {table} BEGIN {update}; END"


VIEWS = dict(_read_views("record_views.sql")) | dict(_read_views("analysis_views.sql"))
"""The documented views by name, in the order a reader wants them."""

ALL_VIEWS = dict(_read_views("pass_rate.sql")) | dict(_read_views("model_costs.sql")) | VIEWS
"""The documented views, and the views that they use to count."""

TRIGGERS = dict(_triggers())
"""The SQL of each trigger by name."""


@contextmanager
def lifted_triggers(connection: Connection) -> Iterator[None]:
    """Drop every trigger, and create them again when the block ends without error.

    Only code that may delete rows uses this, inside its transaction. Other connections never see
    the ledger without its triggers.
    """
    for name in TRIGGERS:
        connection.execute(f'DROP TRIGGER "{name}"')
    yield
    for sql in TRIGGERS.values():
        connection.execute(sql)


def drop_all(connection: Connection) -> None:
    """Drop every view and trigger, so that tables can be rebuilt."""
    objects = connection.execute(
        "SELECT type, name FROM sqlite_schema WHERE type IN ('view', 'trigger')"
    ).all()
    for kind, name in objects:
        connection.execute(f'DROP {kind} "{name}"')


def create_all(connection: Connection) -> None:
    """Create every view and trigger."""
    for name, view in ALL_VIEWS.items():
        connection.execute(view.statement(name))
    for sql in TRIGGERS.values():
        connection.execute(sql)


# -- another time, generation or run

_CREATE_COUNTED_SQL = """
CREATE TEMP TABLE counted (root_no INTEGER PRIMARY KEY, run_no INTEGER NOT NULL UNIQUE) STRICT"""
_INSERT_NEWEST_SQL = """
INSERT INTO temp.counted
SELECT root_no, run_no FROM (
  SELECT root.root_no, grading.run_no, max(grading.generation)
  FROM main.counted AS root
  JOIN run ON run.run_no = root.root_no
  JOIN grading ON grading.root_id = run.run_id
  JOIN schedule ON schedule.run_no = grading.run_no
  JOIN schedule_progress ON schedule_progress.run_no = grading.run_no
  WHERE grading.generation <= ? AND (
    grading.generation = 1 OR schedule_progress.next_schedule_idx = schedule.total_slots)
  GROUP BY root.root_no)"""
_INSERT_RUN_SQL = """
INSERT INTO temp.counted
SELECT run.run_no, grading.run_no FROM grading JOIN run ON run.run_id = grading.root_id
WHERE grading.run_no = (SELECT run_no FROM run WHERE run_id = ?)"""

_CREATE_HORIZON_SQL = """
CREATE TEMP TABLE horizon (
  run_no INTEGER PRIMARY KEY, committed INTEGER NOT NULL, scheduled INTEGER NOT NULL,
  moment TEXT) STRICT"""
_INSERT_HORIZON_SQL = """
INSERT INTO temp.horizon
SELECT run.run_no,
  (SELECT count(*) FROM slot_commit
   WHERE slot_commit.run_no = run.run_no AND slot_commit.committed_at <= ?1),
  (SELECT total_slots FROM schedule WHERE schedule.run_no = run.run_no) - (
   SELECT coalesce(sum(slot_count), 0) FROM run_part
   WHERE run_part.run_no = run.run_no AND run_part.created_at > ?1),
  ?1
FROM run WHERE run.created_at <= ?1"""
_INSERT_AS_OF_SQL = """
INSERT INTO temp.counted
SELECT root_no, run_no FROM (
  SELECT root.root_no, grading.run_no, max(grading.generation)
  FROM main.counted AS root
  JOIN run ON run.run_no = root.root_no
  JOIN temp.horizon AS of_root ON of_root.run_no = root.root_no
  JOIN grading ON grading.root_id = run.run_id
  JOIN temp.horizon AS own ON own.run_no = grading.run_no
  WHERE grading.generation = 1 OR (
    own.committed = own.scheduled AND own.scheduled = of_root.scheduled)
  GROUP BY root.root_no)"""

_INSERT_RUN_HORIZON_SQL = """
INSERT INTO temp.horizon
SELECT run.run_no, ?2, schedule.total_slots, NULL
FROM run JOIN schedule ON schedule.run_no = run.run_no WHERE run.run_id = ?1"""

_CONDITIONS = {
    **dict.fromkeys(SLOT_TABLES, "{0}.schedule_idx < horizon.committed"),
    "slot": "slot.schedule_idx < horizon.scheduled",
    "run_variant": """run_variant.variant_idx < coalesce(
  (SELECT count(*) FROM main.run_variant AS each WHERE each.run_no = horizon.run_no)
  - (SELECT sum(part.variant_count) FROM main.run_part AS part
     WHERE part.run_no = horizon.run_no AND part.first_idx >= horizon.scheduled),
  run_variant.variant_idx + 1)""",
    "grading": "TRUE",
    "dispatch": "horizon.moment IS NULL OR dispatch.dispatched_at <= horizon.moment",
    "run_part": "run_part.first_idx < horizon.scheduled",
}
"""SQL conditions for the rows that existed then. Rows of `SLOT_TABLES` exist once their slot is
committed.
"""
_EARLIER_ROWS_SQL = """
SELECT {0}.* FROM main.{0} JOIN temp.horizon ON horizon.run_no = {0}.run_no WHERE """
_HIDING_VIEWS = {
    **{
        name: (_EARLIER_ROWS_SQL + condition).format(name)
        for name, condition in _CONDITIONS.items()
    },
    "schedule": """
SELECT schedule.run_no, horizon.scheduled AS total_slots, schedule.genesis_digest
FROM main.schedule JOIN temp.horizon ON horizon.run_no = schedule.run_no""",
    "schedule_progress": """
SELECT progress.run_no, horizon.committed AS next_schedule_idx, progress.epoch, progress.status,
  progress.updated_at, progress.ended_at, progress.stop_cause, progress.stop_message
FROM main.schedule_progress AS progress JOIN temp.horizon ON horizon.run_no = progress.run_no""",
    "slot_outcome": statements.expand("""
SELECT slot_outcome.* FROM main.slot_outcome
JOIN temp.horizon ON horizon.run_no = slot_outcome.run_no
WHERE slot_outcome.schedule_idx < horizon.committed
UNION ALL SELECT
  slot.run_no, slot.variant_idx, slot.task_idx, slot.repl_idx, slot.schedule_idx,
  slot_commit.status, score.verdict,
  {passed slot_commit.status score.verdict trial.agent_exit_status},
  score.primary_metric_name, score.primary_metric_value, trial.duration_ms
FROM main.slot AS newer
JOIN temp.horizon ON horizon.run_no = newer.run_no
JOIN main.slot ON slot.run_no = newer.run_no AND slot.schedule_idx = newer.supersedes
JOIN main.slot_commit
  ON slot_commit.run_no = slot.run_no AND slot_commit.schedule_idx = slot.schedule_idx
LEFT JOIN main.trial
  ON trial.run_no = slot.run_no AND trial.schedule_idx = slot.schedule_idx
LEFT JOIN main.score
  ON score.run_no = slot.run_no AND score.schedule_idx = slot.schedule_idx
  AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'
WHERE newer.supersedes IS NOT NULL AND newer.schedule_idx >= horizon.committed
  AND slot.schedule_idx < horizon.committed AND EXISTS (
    SELECT 1 FROM main.slot_commit AS replacement
    WHERE replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx)"""),
}
"""Temporary views that hide later rows. A cell whose slot was superseded later has the outcome of
the earlier slot.
"""

_INDEX_HINT = re.compile(r" INDEXED BY \w+")
"""Matches a hint that SQLite refuses if a view replaces the table."""

TEMPORARY_VIEWS = frozenset(_HIDING_VIEWS)
"""The names of temporary views that read the ledger's own tables of the same name."""


_Statement = tuple[str, tuple[str | int, ...]]
"""A statement and its values."""

_HIDING_STATEMENTS: list[_Statement] = [
    (f"CREATE TEMP VIEW {name} AS {sql.strip()}", ()) for name, sql in _HIDING_VIEWS.items()
]


def select_generation(connection: Connection, generation: int) -> None:
    """Make the views use, for every run, its newest complete grading up to `generation`."""
    _create_views(connection, [(_CREATE_COUNTED_SQL, ()), (_INSERT_NEWEST_SQL, (generation,))])


def select_run(connection: Connection, run_id: str, committed: int | None = None) -> None:
    """Make the views show the rows of this run or regrading only, even if it is not current.

    With `committed`, they show this number of its first slots, as they counted at that time.
    """
    statements: list[_Statement] = [(_CREATE_COUNTED_SQL, ()), (_INSERT_RUN_SQL, (run_id,))]
    if committed is not None:
        statements += [(_CREATE_HORIZON_SQL, ()), (_INSERT_RUN_HORIZON_SQL, (run_id, committed))]
        statements += _HIDING_STATEMENTS
    _create_views(connection, statements)


def select_time(connection: Connection, moment: str) -> None:
    """Make the views show the rows committed by a time, which is text of `labledger.clock`.

    Status, end and owner of a run, notes and tags are always the current ones.
    """
    counted = [(_CREATE_COUNTED_SQL, ()), (_INSERT_AS_OF_SQL, ())]
    horizon = [(_CREATE_HORIZON_SQL, ()), (_INSERT_HORIZON_SQL, (moment,))]
    _create_views(connection, [*horizon, *counted, *_HIDING_STATEMENTS])


def _create_views(connection: Connection, statements: Iterable[_Statement]) -> None:
    """Execute the statements, and create the views again over what they created."""
    driver: Any = connection.driver
    for sql, values in statements:
        driver.execute(sql, values)
    for name, view in ALL_VIEWS.items():
        driver.execute(f"CREATE TEMP VIEW {name} AS {_INDEX_HINT.sub('', view.sql.strip())}")
