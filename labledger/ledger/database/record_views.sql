-- The ledger's record views: one row for each stored row, joined with run, variant and task.
--
-- `run_id` is the run whose agents ran. For a run that was graded again, the rows are those of its
-- current grading, under the id of that run; the ids in `record` are those of the regrading. Slots
-- that a committed slot supersedes are only in `all_trials`.
--
-- `labledger verify` compares these views with those of a ledger: any change needs a migration.
-- `column_meanings.py` describes the columns, and `views_and_triggers.py` reads this file. The
-- comment above each view says what one row is; it is shown to users up to the first empty line.

-- one row per run: its experiment, progress and owner
CREATE VIEW runs AS SELECT
    run.run_id, run.experiment_id, run.name, schedule_progress.status, run.created_at,
    schedule_progress.updated_at, schedule_progress.ended_at, schedule_progress.stop_cause,
    schedule_progress.stop_message, schedule.total_slots AS scheduled,
    schedule_progress.next_schedule_idx AS committed,
    lease.host AS owner_host, lease.pid AS owner_pid, lease.expires_at AS lease_expires_at,
    (SELECT count(*) FROM grading WHERE grading.root_id = run.run_id) AS generations,
    (SELECT generation FROM grading WHERE grading.run_no = counted.run_no) AS generation,
    (SELECT json_group_array(tag) FROM
      (SELECT tag FROM run_tag WHERE run_tag.run_no = run.run_no ORDER BY tag)) AS tags,
    coalesce((SELECT run_part.run_digest FROM run_part WHERE run_part.run_no = run.run_no AND run_part.kind = 'extended'
      ORDER BY run_part.part DESC LIMIT 1), run.digest) AS digest,
    coalesce((SELECT run_part.source_path FROM run_part WHERE run_part.run_no = run.run_no AND run_part.kind = 'extended'
      ORDER BY run_part.part DESC LIMIT 1), run.source_path) AS source_path,
    run.labledger_version,
    coalesce((SELECT run_part.images FROM run_part WHERE run_part.run_no = run.run_no AND run_part.kind = 'extended'
      ORDER BY run_part.part DESC LIMIT 1), run.images) AS images,
    coalesce((SELECT run_part.resolved FROM run_part WHERE run_part.run_no = run.run_no AND run_part.kind = 'extended'
      ORDER BY run_part.part DESC LIMIT 1), run.resolved) AS resolved,
    coalesce((SELECT run_part.authored FROM run_part WHERE run_part.run_no = run.run_no AND run_part.kind = 'extended'
      ORDER BY run_part.part DESC LIMIT 1), run.authored) AS authored
FROM run
JOIN counted ON counted.root_no = run.run_no
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
LEFT JOIN lease ON lease.run_no = run.run_no;

-- one row per committed slot: how its trial ended; times are null if nothing ran
CREATE VIEW trials AS SELECT
    run.run_id,
    slot_commit.schedule_idx,
    printf('%s-s%06d', run.run_id, slot_commit.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,
    slot_commit.status, slot_commit.reason, trial.message, trial.verdict,
    (SELECT outcome.passed FROM outcome
     WHERE outcome.run_no = slot.run_no AND outcome.variant_idx = slot.variant_idx
       AND outcome.task_idx = slot.task_idx AND outcome.repl_idx = slot.repl_idx) AS passed,
    score.primary_metric_name, score.primary_metric_value, trial.outcome, trial.attempt,
    trial.exit_status, trial.started_at, trial.ended_at, trial.duration_ms,
    trial.setup_duration_ms, trial.setup_exit_status,
    trial.agent_duration_ms, trial.agent_exit_status, trial.agent_timed_out,
    trial.grader_duration_ms, trial.grader_exit_status, trial.grader_timed_out,
    trial.image_ref, trial.image_id, trial.events_dropped,
    (SELECT dispatch.host FROM dispatch
     WHERE dispatch.run_no = trial.run_no AND dispatch.schedule_idx = trial.schedule_idx
       AND dispatch.attempt = trial.attempt ORDER BY dispatch.epoch DESC LIMIT 1) AS host,
    slot_commit.slot_commit_id, slot_commit.committed_at
FROM slot_commit
JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
LEFT JOIN trial
  ON trial.run_no = slot_commit.run_no AND trial.schedule_idx = slot_commit.schedule_idx
LEFT JOIN score
  ON score.run_no = slot_commit.run_no AND score.schedule_idx = slot_commit.schedule_idx
  AND score.row_seq = 0
WHERE NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = slot.run_no AND newer.supersedes = slot.schedule_idx);

-- one row per committed slot, also of those that a rerun superseded; the view `trials` has those
-- that count
CREATE VIEW all_trials AS SELECT
    run.run_id,
    slot_commit.schedule_idx,
    printf('%s-s%06d', run.run_id, slot_commit.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,
    slot_commit.status, slot_commit.reason, trial.message, trial.verdict,
    coalesce((SELECT outcome.passed FROM outcome
     WHERE outcome.run_no = slot.run_no AND outcome.variant_idx = slot.variant_idx
       AND outcome.task_idx = slot.task_idx AND outcome.repl_idx = slot.repl_idx
       AND outcome.schedule_idx = slot.schedule_idx), CASE
    WHEN slot_commit.status = 'completed' THEN trial.verdict = 'pass'
    WHEN slot_commit.status IN ('agent_error', 'agent_timeout') THEN coalesce(trial.verdict = 'pass', 0)
    WHEN slot_commit.status = 'grade_error' AND trial.agent_exit_status <> 0 THEN 0
  END) AS passed,
    score.primary_metric_name, score.primary_metric_value, trial.outcome, trial.attempt,
    trial.exit_status, trial.started_at, trial.ended_at, trial.duration_ms,
    trial.setup_duration_ms, trial.setup_exit_status,
    trial.agent_duration_ms, trial.agent_exit_status, trial.agent_timed_out,
    trial.grader_duration_ms, trial.grader_exit_status, trial.grader_timed_out,
    trial.image_ref, trial.image_id, trial.events_dropped,
    (SELECT dispatch.host FROM dispatch
     WHERE dispatch.run_no = trial.run_no AND dispatch.schedule_idx = trial.schedule_idx
       AND dispatch.attempt = trial.attempt ORDER BY dispatch.epoch DESC LIMIT 1) AS host,
    slot_commit.slot_commit_id, slot_commit.committed_at, slot.supersedes,
    (SELECT newer.schedule_idx FROM slot AS newer
     JOIN slot_commit AS replacement
       ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
     WHERE newer.run_no = slot.run_no AND newer.supersedes = slot.schedule_idx) AS superseded_by
FROM slot_commit
JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
LEFT JOIN trial
  ON trial.run_no = slot_commit.run_no AND trial.schedule_idx = slot_commit.schedule_idx
LEFT JOIN score
  ON score.run_no = slot_commit.run_no AND score.schedule_idx = slot_commit.schedule_idx
  AND score.row_seq = 0;

-- one row per container that ran for a committed slot, including retried ones
CREATE VIEW attempts AS SELECT
    run.run_id,
    attempt.schedule_idx,
    printf('%s-s%06d', run.run_id, attempt.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,
    attempt.attempt, attempt.status, attempt.reason, attempt.message, attempt.exit_status,
    attempt.started_at, attempt.ended_at, attempt.duration_ms, attempt.container,
    (SELECT dispatch.host FROM dispatch
     WHERE dispatch.run_no = attempt.run_no AND dispatch.schedule_idx = attempt.schedule_idx
       AND dispatch.attempt = attempt.attempt ORDER BY dispatch.epoch DESC LIMIT 1) AS host,
    attempt.image_id
FROM attempt
JOIN slot ON slot.run_no = attempt.run_no AND slot.schedule_idx = attempt.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = attempt.run_no AND newer.supersedes = attempt.schedule_idx);

-- one row per score: the grader's verdict and primary metric, and the whole record as JSON
--
-- Without INDEXED BY, SQLite reads whole records even to count verdicts.
CREATE VIEW scores AS SELECT
    run.run_id,
    score.schedule_idx,
    printf('%s-s%06d', run.run_id, score.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,
    score.row_seq, score.verdict, score.primary_metric_name, score.primary_metric_value,
    (SELECT trial.status FROM trial
     WHERE trial.run_no = score.run_no AND trial.schedule_idx = score.schedule_idx) AS status,
    score.record ->> '$.evaluator.name' AS evaluator_name,
    score.record -> '$.metrics' AS metrics, score.record ->> '$.error.message' AS error_message,
    (SELECT generation FROM grading WHERE grading.run_no = counted.run_no) AS generation, score.record ->> '$.ext.grader.digest' AS grader_digest,
    score.record
FROM score INDEXED BY ix_score_outcome
JOIN slot ON slot.run_no = score.run_no AND slot.schedule_idx = score.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = score.run_no AND newer.supersedes = score.schedule_idx);

-- one row per score of every generation of a run, with the verdict of the first generation
--
-- Without INDEXED BY, SQLite reads whole records even to count verdicts.
CREATE VIEW all_scores AS SELECT
    run.run_id,
    score.schedule_idx,
    printf('%s-s%06d', run.run_id, score.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,
    score.row_seq, score.verdict, score.primary_metric_name, score.primary_metric_value,
    (SELECT trial.status FROM trial
     WHERE trial.run_no = score.run_no AND trial.schedule_idx = score.schedule_idx) AS status,
    score.record ->> '$.evaluator.name' AS evaluator_name,
    score.record -> '$.metrics' AS metrics, score.record ->> '$.error.message' AS error_message,
    grading.generation AS generation, score.record ->> '$.ext.grader.digest' AS grader_digest,
    grading.root_id || '.g' || grading.generation AS grading_id, EXISTS (SELECT 1 FROM counted WHERE counted.run_no = grading.run_no) AS counts,
    (SELECT slot_outcome.verdict FROM slot_outcome
     WHERE slot_outcome.run_no = run.run_no AND slot_outcome.variant_idx = slot.variant_idx
       AND slot_outcome.task_idx = slot.task_idx AND slot_outcome.repl_idx = slot.repl_idx)
        AS first_verdict,
    score.record
FROM score INDEXED BY ix_score_outcome
JOIN slot ON slot.run_no = score.run_no AND slot.schedule_idx = score.schedule_idx
JOIN grading ON grading.run_no = slot.run_no
JOIN run ON run.run_id = grading.root_id
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = score.run_no AND newer.supersedes = score.schedule_idx);

-- one row per prediction: what the agent answered, and the whole record as JSON
CREATE VIEW predictions AS SELECT
    run.run_id,
    prediction.schedule_idx,
    printf('%s-s%06d', run.run_id, prediction.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,
    prediction.row_seq, prediction.kind, prediction.record ->> '$.prediction.value' AS value,
    prediction.record ->> '$.prediction.artifact_ref' AS artifact_ref, prediction.record
FROM prediction
JOIN slot ON slot.run_no = prediction.run_no AND slot.schedule_idx = prediction.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = prediction.run_no AND newer.supersedes = prediction.schedule_idx);

-- one row per metric of a trial; `value` is a number or text
CREATE VIEW metrics_long AS SELECT
    run.run_id,
    metric.schedule_idx,
    printf('%s-s%06d', run.run_id, metric.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,
    metric.row_seq, metric.metric_id, metric.source, metric.value
FROM metric
JOIN slot ON slot.run_no = metric.run_no AND slot.schedule_idx = metric.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = metric.run_no AND newer.supersedes = metric.schedule_idx);

-- one row per event that an agent reported; `body` is the event as JSON
CREATE VIEW events AS SELECT
    run.run_id,
    event.schedule_idx,
    printf('%s-s%06d', run.run_id, event.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,
    event.row_seq, event.type, event.body
FROM event
JOIN slot ON slot.run_no = event.run_no AND slot.schedule_idx = event.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = event.run_no AND newer.supersedes = event.schedule_idx);

-- one row per attempt: references to its inputs, outputs and logs as JSON
CREATE VIEW evidence AS SELECT
    run.run_id,
    evidence_record.schedule_idx,
    printf('%s-s%06d', run.run_id, evidence_record.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx,
    evidence_record.attempt, evidence_record.row_seq,
    evidence_record.record ->> '$.runtime.executor' AS executor,
    evidence_record.record -> '$.evidence' AS evidence, evidence_record.record
FROM evidence_record
JOIN slot ON slot.run_no = evidence_record.run_no AND slot.schedule_idx = evidence_record.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
WHERE NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = evidence_record.run_no AND newer.supersedes = evidence_record.schedule_idx);

-- one row per part of a run's schedule: what it was started with, and what extended or reran it
CREATE VIEW run_parts AS SELECT
    run.run_id, 1 AS part, 'started' AS kind, 0 AS first_schedule_idx,
    coalesce((SELECT min(run_part.first_idx) FROM run_part WHERE run_part.run_no = run.run_no),
      schedule.total_slots) AS scheduled,
    min(schedule_progress.next_schedule_idx,
      coalesce((SELECT min(run_part.first_idx) FROM run_part WHERE run_part.run_no = run.run_no),
        schedule.total_slots)) AS committed,
    NULL AS because, NULL AS selection, run.created_at, run.digest, run.source_path,
    run.labledger_version, run.images, run.resolved, run.authored
FROM run
JOIN counted ON counted.root_no = run.run_no
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
UNION ALL SELECT
    run.run_id, run_part.part, run_part.kind, run_part.first_idx, run_part.slot_count,
    max(0, min(run_part.slot_count, schedule_progress.next_schedule_idx - run_part.first_idx)),
    run_part.because, run_part.selection, run_part.created_at, run_part.run_digest,
    run_part.source_path, run_part.labledger_version, run_part.images, run_part.resolved,
    run_part.authored
FROM run_part
JOIN run ON run.run_no = run_part.run_no
JOIN counted ON counted.root_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no;

-- one row per note that somebody wrote about a run
CREATE VIEW notes AS SELECT run.run_id, run_note.note_no, run_note.noted_at, run_note.note
FROM run_note
JOIN run ON run.run_no = run_note.run_no;

-- one row per run that was deleted, with what is left of it
CREATE VIEW deleted_runs AS SELECT
  run_id, experiment_id, created_at, deleted_at, because, committed, chain_head
FROM deleted_run;

-- one row per rerun of a run: how many slots were run again, and why
CREATE VIEW reruns AS SELECT
    run.run_id, run_part.part, run_part.created_at, run_part.slot_count AS slots,
    (SELECT count(*) FROM slot_commit
     WHERE slot_commit.run_no = run_part.run_no AND slot_commit.schedule_idx >= run_part.first_idx
       AND slot_commit.schedule_idx < run_part.first_idx + run_part.slot_count) AS committed,
    (SELECT json_group_object(status, slots) FROM (
       SELECT superseded.status, count(*) AS slots FROM slot
       JOIN slot_commit AS superseded
         ON superseded.run_no = slot.run_no AND superseded.schedule_idx = slot.supersedes
       WHERE slot.run_no = run_part.run_no AND slot.schedule_idx >= run_part.first_idx
         AND slot.schedule_idx < run_part.first_idx + run_part.slot_count
       GROUP BY superseded.status ORDER BY superseded.status)) AS superseded,
    coalesce(run_part.selection ->> '$.despite_verdict', 0) AS despite_verdict,
    run_part.because, run_part.selection
FROM run_part
JOIN run ON run.run_no = run_part.run_no
WHERE run_part.kind = 'rerun';
