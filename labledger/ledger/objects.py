"""The ledger's views and triggers: SQL, recreated by every upgrade beside the tables it reads."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class View:
    comment: str
    """What one row is, in a line."""
    sql: str


_WHO = """\
    run.run_id,
    {0}.schedule_idx,
    printf('%s-s%06d', run.run_id, {0}.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,"""

_WHO_FROM = """\
{0}
JOIN slot ON slot.run_no = {0}.run_no AND slot.schedule_idx = {0}.schedule_idx
JOIN run ON run.run_no = slot.run_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx"""


def _per_slot(table: str, columns: str, joins: str = "") -> str:
    """A SELECT over the rows of `table` that says of each whose it is."""
    return f"SELECT\n{_WHO.format(table)}\n{columns}\nFROM {_WHO_FROM.format(table)}\n{joins}"


VIEWS: dict[str, View] = {
    "runs": View(
        "one row a run: what it is, how far it is, who owns it",
        """
SELECT
    run.run_id, run.experiment_id, run.name, schedule_progress.status, run.created_at,
    schedule_progress.updated_at, schedule_progress.ended_at, schedule.total_slots AS scheduled,
    schedule_progress.next_schedule_idx AS committed,
    lease.host AS owner_host, lease.pid AS owner_pid, lease.expires_at AS lease_expires_at,
    run.digest, run.source_path, run.labledger_version, run.images, run.resolved, run.authored
FROM run
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
LEFT JOIN lease ON lease.run_no = run.run_no""",
    ),
    "trials": View(
        "one row a committed slot: how its trial went; times are null where nothing was run",
        _per_slot(
            "slot_commit",
            """\
    slot_commit.status, slot_commit.reason, trial.message, trial.verdict,
    score.primary_metric_name, score.primary_metric_value, trial.outcome, trial.attempt,
    trial.exit_status, trial.started_at, trial.ended_at, trial.duration_ms,
    trial.setup_duration_ms, trial.setup_exit_status,
    trial.agent_duration_ms, trial.agent_exit_status, trial.agent_timed_out,
    trial.grader_duration_ms, trial.grader_exit_status, trial.grader_timed_out,
    trial.image_ref, trial.image_id, trial.events_dropped,
    slot_commit.slot_commit_id, slot_commit.committed_at""",
            """\
LEFT JOIN trial
  ON trial.run_no = slot_commit.run_no AND trial.schedule_idx = slot_commit.schedule_idx
LEFT JOIN score
  ON score.run_no = slot_commit.run_no AND score.schedule_idx = slot_commit.schedule_idx
  AND score.row_seq = 0""",
        ),
    ),
    "attempts": View(
        "one row a container that ran for a committed slot, retried ones too",
        _per_slot(
            "attempt",
            """\
    attempt.attempt, attempt.status, attempt.reason, attempt.message, attempt.exit_status,
    attempt.started_at, attempt.ended_at, attempt.duration_ms, attempt.container,
    attempt.image_id""",
        ),
    ),
    "scores": View(
        "one row a score: the grader's verdict and primary metric, and the whole record as JSON",
        _per_slot(
            "score",
            """\
    score.row_seq, score.verdict, score.primary_metric_name, score.primary_metric_value,
    trial.status, score.record ->> '$.evaluator.name' AS evaluator_name,
    score.record -> '$.metrics' AS metrics, score.record ->> '$.error.message' AS error_message,
    score.record""",
            "JOIN trial ON trial.run_no = score.run_no AND trial.schedule_idx = score.schedule_idx",
        ),
    ),
    "predictions": View(
        "one row a prediction: what the agent answered, and the whole record as JSON",
        _per_slot(
            "prediction",
            """\
    prediction.row_seq, prediction.kind, prediction.record ->> '$.prediction.value' AS value,
    prediction.record ->> '$.prediction.artifact_ref' AS artifact_ref, prediction.record""",
        ),
    ),
    "metrics_long": View(
        "one row a metric of a trial; `value` is a number or text",
        _per_slot("metric", "    metric.row_seq, metric.metric_id, metric.source, metric.value"),
    ),
    "events": View(
        "one row an event that an agent reported; `body` is the event as JSON",
        _per_slot("event", "    event.row_seq, event.type, event.body"),
    ),
    "evidence": View(
        "one row an attempt: references to its inputs, outputs and logs as JSON",
        _per_slot(
            "evidence_record",
            """\
    evidence_record.attempt, evidence_record.row_seq,
    evidence_record.record ->> '$.runtime.executor' AS executor,
    evidence_record.record -> '$.evidence' AS evidence, evidence_record.record""",
        ),
    ),
    "leaderboard": View(
        "one row a variant of a run: its denominators, verdicts, pass rate and mean metric; a "
        "grade_error's score is kept but not counted",
        """
SELECT
    run.run_id, run_variant.variant_id, run_variant.role, cell.scheduled, cell.committed,
    cell.scored, cell.pass, cell.fail, cell.missing, cell.error,
    CASE WHEN cell.scored > 0 THEN 1.0 * cell.pass / cell.scored END AS pass_rate,
    CASE WHEN cell.first_name = cell.last_name THEN cell.first_name END AS primary_metric_name,
    CASE WHEN cell.first_name = cell.last_name THEN cell.mean END AS primary_metric_mean,
    cell.committed - cell.scored AS unscored, cell.grade_errors, cell.infra_errors
FROM (
    SELECT
        slot.run_no, slot.variant_idx,
        count(*) AS scheduled, count(slot_commit.status) AS committed,
        count(score.verdict) AS scored,
        count(*) FILTER (WHERE score.verdict = 'pass') AS pass,
        count(*) FILTER (WHERE score.verdict = 'fail') AS fail,
        count(*) FILTER (WHERE score.verdict = 'missing') AS missing,
        count(*) FILTER (WHERE score.verdict = 'error') AS error,
        min(score.primary_metric_name) AS first_name,
        max(score.primary_metric_name) AS last_name,
        avg(score.primary_metric_value) AS mean,
        count(*) FILTER (WHERE slot_commit.status = 'grade_error') AS grade_errors,
        count(*) FILTER (WHERE slot_commit.status = 'infra_error') AS infra_errors
    FROM slot
    LEFT JOIN slot_commit
      ON slot_commit.run_no = slot.run_no AND slot_commit.schedule_idx = slot.schedule_idx
    LEFT JOIN score
      ON score.run_no = slot_commit.run_no AND score.schedule_idx = slot_commit.schedule_idx
      AND score.row_seq = 0 AND slot_commit.status <> 'grade_error'
    GROUP BY slot.run_no, slot.variant_idx
) AS cell
JOIN run ON run.run_no = cell.run_no
JOIN run_variant
  ON run_variant.run_no = cell.run_no AND run_variant.variant_idx = cell.variant_idx""",
    ),
}
"""The documented views by name, in the order a reader wants them."""

APPEND_ONLY = (
    "ledger_meta",
    "run",
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
)
"""Tables whose rows are never changed and never removed."""


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
    return dict(found)


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
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {view.sql.strip()}")
    for sql in TRIGGERS.values():
        connection.exec_driver_sql(sql)
