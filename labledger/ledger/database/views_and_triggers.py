"""The ledger's views and triggers, which every upgrade drops and creates again.

Views are in `record_views.sql` and `analysis_views.sql`; they count by the view in `pass_rate.sql`,
which is not for users. Triggers that keep derived tables up to date are in `triggers.sql`; this
module makes those that refuse changes. What several of them share is in `fragments.sql`. A ledger
stores all these texts, and `labledger verify` compares them: a change of one needs a migration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.row_digests import NO_ROWS, TALLIED

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
    """What one row is, in one line that begins with ``one row per``."""
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
"""The documented views, and those that they count by."""

TRIGGERS = dict(_triggers())
"""The SQL of each trigger by name."""


@contextmanager
def lifted_triggers(connection: Connection) -> Iterator[None]:
    """Drop every trigger, and create them again when the block ends without error.

    Only what may delete rows uses this, inside its transaction: other connections never see the
    ledger without its triggers.
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
