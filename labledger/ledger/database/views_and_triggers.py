"""The ledger's views and triggers: SQL, recreated by every upgrade beside the tables it reads."""

from __future__ import annotations

from labledger.ledger.database import grading_triggers
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.question_views import ANSWERS
from labledger.ledger.database.record_views import RAW, View
from labledger.records.pass_rate import PASSED_SQL

VIEWS: dict[str, View] = {**RAW, **ANSWERS}
"""The documented views by name, in the order a reader wants them."""

APPEND_ONLY = (
    "ledger_meta",
    "run",
    "grading",
    "run_variant",
    "task_payload",
    "run_task",
    "slot",
    "schedule",
    "dispatch",
    "slot_commit",
    "trial",
    "attempt",
    "metric",
    "event",
    "prediction",
    "score",
    "evidence_record",
    "artifact",
    "slot_outcome",
)
"""Tables whose rows are never changed and never removed."""


_OF_SLOT = """\
INSERT INTO slot_outcome
  (run_no, variant_idx, task_idx, repl_idx, schedule_idx, status, duration_ms, passed, verdict,
   metric_name, metric_value)
SELECT slot.run_no, slot.variant_idx, slot.task_idx, slot.repl_idx, slot.schedule_idx, {0}
WHERE slot.run_no = NEW.run_no AND slot.schedule_idx = NEW.schedule_idx"""

_PASSED_UNSCORED = PASSED_SQL.format(
    status="NEW.status", verdict="NULL", agent_exit_status="NEW.agent_exit_status"
)
_PASSED_SCORED = PASSED_SQL.format(
    status="trial.status", verdict="NEW.verdict", agent_exit_status="trial.agent_exit_status"
)
_OUTCOMES = {
    "unexecuted": (
        "slot_commit WHEN NEW.status IN ('cancelled', 'skipped_pruned')",
        "NEW.status, NULL, NULL, NULL, NULL, NULL\nFROM slot",
    ),
    "unscored": (
        "trial WHEN NEW.verdict IS NULL OR NEW.status = 'grade_error'",
        f"NEW.status, NEW.duration_ms, {_PASSED_UNSCORED}, NULL, NULL, NULL\nFROM slot",
    ),
    "scored": (
        "score WHEN NEW.row_seq = 0",
        f"""trial.status, trial.duration_ms, {_PASSED_SCORED},
  NEW.verdict, NEW.primary_metric_name, NEW.primary_metric_value
FROM slot
JOIN trial ON trial.run_no = slot.run_no AND trial.schedule_idx = slot.schedule_idx
  AND trial.status <> 'grade_error'""",
    ),
}
"""The rows whose insertion gives a slot its outcome, one for each slot, and that outcome."""


def _keepers() -> dict[str, str]:
    """The triggers that write `slot_outcome`, in the transaction of the commit itself."""
    return {
        f"slot_outcome_{name}": f"CREATE TRIGGER slot_outcome_{name} AFTER INSERT ON {when} "
        f"BEGIN {_OF_SLOT.format(outcome)}; END"
        for name, (when, outcome) in _OUTCOMES.items()
    }


def _refuse(table: str, action: str, message: str, when: str = "") -> tuple[str, str]:
    name = f"{table}_refuses_{action.lower()}"
    condition = f"WHEN {when} " if when else ""
    return name, (
        f"CREATE TRIGGER {name} BEFORE {action} ON {table} {condition}"
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def _triggers() -> dict[str, str]:
    found = [
        _refuse(table, action, f"{table} is append-only: its rows are never {done}")
        for table in APPEND_ONLY
        for action, done in (("UPDATE", "changed"), ("DELETE", "removed"))
    ]
    found.append(
        _refuse(
            "staged_result",
            "DELETE",
            "staged_result: a result is removed only once its slot is committed",
            "NOT EXISTS (SELECT 1 FROM slot_commit WHERE slot_commit.run_no = OLD.run_no "
            "AND slot_commit.schedule_idx = OLD.schedule_idx)",
        )
    )
    found.append(
        _refuse("staged_result", "UPDATE", "staged_result: a staged result is never changed")
    )
    found.append(
        _refuse("schedule_progress", "DELETE", "schedule_progress: progress is never removed")
    )
    found.append(
        _refuse(
            "schedule_progress",
            "UPDATE",
            "schedule_progress: progress goes one slot at a time, and epochs never go back",
            "NEW.next_schedule_idx NOT IN (OLD.next_schedule_idx, OLD.next_schedule_idx + 1) "
            "OR NEW.epoch < OLD.epoch OR NEW.run_no <> OLD.run_no",
        )
    )
    found += [_refuse("counted", *refused) for refused in grading_triggers.REFUSED]
    return {**dict(found), **_keepers(), **grading_triggers.KEEPERS}


TRIGGERS = _triggers()


def drop_all(connection: Connection) -> None:
    """Drop every view and trigger, so that tables can be rebuilt."""
    found = connection.exec_driver_sql(
        "SELECT type, name FROM sqlite_schema WHERE type IN ('view', 'trigger')"
    ).all()
    for kind, name in found:
        connection.exec_driver_sql(f'DROP {kind} "{name}"')


def create_all(connection: Connection) -> None:
    """Create every view and trigger."""
    for name, view in VIEWS.items():
        connection.exec_driver_sql(view.statement(name))
    for sql in TRIGGERS.values():
        connection.exec_driver_sql(sql)
