"""The ledger's record views: one row for each stored row, joined with run, variant and task.

`run_id` is the run whose agents ran. For a run that was graded again, the rows are those of its
current grading, under the id of that run; the ids in `record` are those of the regrading.
`labledger verify` compares the stored SQL with this text: it changes only with a migration.
"""

from __future__ import annotations

from dataclasses import dataclass

from labledger.records.pass_rate import PASSED_SQL


@dataclass(frozen=True, slots=True)
class View:
    comment: str
    """What one row is, in one line that begins with ``one row per``."""
    sql: str

    def statement(self, name: str) -> str:
        """Return the SQL that creates the view under `name`."""
        return f"CREATE VIEW {name} AS {self.sql.strip()}"


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
{1}
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx"""

_COUNTED = """\
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no"""
_ALL = """\
JOIN grading ON grading.run_no = slot.run_no
JOIN run ON run.run_id = grading.root_id"""


_SOURCES = {"score": "score INDEXED BY ix_score_outcome"}
"""Without the hint, SQLite reads whole records even to count verdicts."""


def _per_slot(table: str, columns: str, joins: str = "", runs: str = _COUNTED) -> str:
    """Return a SELECT over `table` that adds run, slot, trial, variant and task to each row."""
    source = _WHO_FROM.format(table, runs).replace(table, _SOURCES.get(table, table), 1)
    return f"SELECT\n{_WHO.format(table)}\n{columns}\nFROM {source}\n{joins}"


GENERATIONS = """\
    (SELECT count(*) FROM grading WHERE grading.root_id = run.run_id) AS generations,
    (SELECT generation FROM grading WHERE grading.run_no = counted.run_no) AS generation"""
"""The number of gradings of a run, and the number of its current grading."""

GRADING_ID = "grading.root_id || '.g' || grading.generation AS grading_id"
COUNTS = "EXISTS (SELECT 1 FROM counted WHERE counted.run_no = grading.run_no) AS counts"

_PASSED = PASSED_SQL.format(
    status="slot_commit.status",
    verdict="trial.verdict",
    agent_exit_status="trial.agent_exit_status",
)
_SCORE = """\
    score.row_seq, score.verdict, score.primary_metric_name, score.primary_metric_value,
    (SELECT trial.status FROM trial
     WHERE trial.run_no = score.run_no AND trial.schedule_idx = score.schedule_idx) AS status,
    score.record ->> '$.evaluator.name' AS evaluator_name,
    score.record -> '$.metrics' AS metrics, score.record ->> '$.error.message' AS error_message,
    {0} AS generation, score.record ->> '$.ext.grader.digest' AS grader_digest,"""
_COUNTED_GENERATION = "(SELECT generation FROM grading WHERE grading.run_no = counted.run_no)"
_FIRST_VERDICT = """\
    (SELECT slot_outcome.verdict FROM slot_outcome
     WHERE slot_outcome.run_no = run.run_no AND slot_outcome.variant_idx = slot.variant_idx
       AND slot_outcome.task_idx = slot.task_idx AND slot_outcome.repl_idx = slot.repl_idx)
        AS first_verdict,"""


RAW: dict[str, View] = {
    "runs": View(
        "one row per run: its experiment, progress and owner",
        f"""
SELECT
    run.run_id, run.experiment_id, run.name, schedule_progress.status, run.created_at,
    schedule_progress.updated_at, schedule_progress.ended_at, schedule_progress.stop_cause,
    schedule_progress.stop_message, schedule.total_slots AS scheduled,
    schedule_progress.next_schedule_idx AS committed,
    lease.host AS owner_host, lease.pid AS owner_pid, lease.expires_at AS lease_expires_at,
{GENERATIONS},
    run.digest, run.source_path, run.labledger_version, run.images, run.resolved, run.authored
FROM run
JOIN counted ON counted.root_no = run.run_no
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
LEFT JOIN lease ON lease.run_no = run.run_no""",
    ),
    "trials": View(
        "one row per committed slot: how its trial ended; times are null if nothing ran",
        _per_slot(
            "slot_commit",
            f"""\
    slot_commit.status, slot_commit.reason, trial.message, trial.verdict, {_PASSED} AS passed,
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
        "one row per container that ran for a committed slot, including retried ones",
        _per_slot(
            "attempt",
            """\
    attempt.attempt, attempt.status, attempt.reason, attempt.message, attempt.exit_status,
    attempt.started_at, attempt.ended_at, attempt.duration_ms, attempt.container,
    attempt.image_id""",
        ),
    ),
    "scores": View(
        "one row per score: the grader's verdict and primary metric, and the whole record as JSON",
        _per_slot(
            "score",
            f"{_SCORE.format(_COUNTED_GENERATION)}\n    score.record",
        ),
    ),
    "all_scores": View(
        "one row per score of every generation of a run, with the verdict of the first generation",
        _per_slot(
            "score",
            f"{_SCORE.format('grading.generation')}\n    {GRADING_ID}, {COUNTS},\n"
            f"{_FIRST_VERDICT}\n    score.record",
            runs=_ALL,
        ),
    ),
    "predictions": View(
        "one row per prediction: what the agent answered, and the whole record as JSON",
        _per_slot(
            "prediction",
            """\
    prediction.row_seq, prediction.kind, prediction.record ->> '$.prediction.value' AS value,
    prediction.record ->> '$.prediction.artifact_ref' AS artifact_ref, prediction.record""",
        ),
    ),
    "metrics_long": View(
        "one row per metric of a trial; `value` is a number or text",
        _per_slot("metric", "    metric.row_seq, metric.metric_id, metric.source, metric.value"),
    ),
    "events": View(
        "one row per event that an agent reported; `body` is the event as JSON",
        _per_slot("event", "    event.row_seq, event.type, event.body"),
    ),
    "evidence": View(
        "one row per attempt: references to its inputs, outputs and logs as JSON",
        _per_slot(
            "evidence_record",
            """\
    evidence_record.attempt, evidence_record.row_seq,
    evidence_record.record ->> '$.runtime.executor' AS executor,
    evidence_record.record -> '$.evidence' AS evidence, evidence_record.record""",
        ),
    ),
}
"""The record views by name."""
