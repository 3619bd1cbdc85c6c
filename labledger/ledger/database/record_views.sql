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
    {generation counted} AS generation,
    (SELECT json_group_array(tag) FROM
      (SELECT tag FROM run_tag WHERE run_tag.run_no = run.run_no ORDER BY tag)) AS tags,
    run.resolved ->> '$.replays.run_id' AS replays,
    coalesce(json_array_length({newest resolved run resolved}, '$.dataset.skipped'), 0) AS skipped_tasks,
    {newest run_digest run digest} AS digest,
    {newest source_path run source_path} AS source_path,
    run.labledger_version,
    {newest images run images} AS images,
    {newest resolved run resolved} AS resolved,
    {newest authored run authored} AS authored
FROM run
JOIN counted ON counted.root_no = run.run_no
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
LEFT JOIN lease ON lease.run_no = run.run_no;

-- one row per committed slot: how its trial ended; times are null if nothing ran
CREATE VIEW trials AS SELECT
    {identity slot_commit},
    slot_commit.status, slot_commit.reason, trial.message, trial.verdict,
    ({passed_of_cell}) AS passed,
    {trial_details}
FROM slot_commit
{current_slot_of slot_commit}
{trial_and_score}
WHERE {not_superseded slot};

-- one row per committed slot, also of those that a rerun superseded; the view `trials` has those
-- that count
CREATE VIEW all_trials AS SELECT
    {identity slot_commit},
    slot_commit.status, slot_commit.reason, trial.message, trial.verdict,
    coalesce(({passed_of_cell}
       AND outcome.schedule_idx = slot.schedule_idx), {passed slot_commit.status trial.verdict trial.agent_exit_status}) AS passed,
    {trial_details}, slot.supersedes,
    (SELECT newer.schedule_idx FROM slot AS newer
     JOIN slot_commit AS replacement
       ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
     WHERE newer.run_no = slot.run_no AND newer.supersedes = slot.schedule_idx) AS superseded_by
FROM slot_commit
{current_slot_of slot_commit}
{trial_and_score};

-- one row per container that ran for a committed slot, including retried ones
CREATE VIEW attempts AS SELECT
    {identity attempt},
    attempt.attempt, attempt.status, attempt.reason, attempt.message, attempt.exit_status,
    attempt.started_at, attempt.ended_at, attempt.duration_ms, attempt.container,
    {host attempt} AS host,
    attempt.image_id, {resource_use attempt}
FROM attempt
{current_slot_of attempt}
WHERE {not_superseded attempt};

-- one row per score: the grader's verdict and primary metric, and the whole record as JSON
--
-- Without INDEXED BY, SQLite reads whole records even to count verdicts.
CREATE VIEW scores AS SELECT
    {identity score},
    {score_details},
    {generation counted} AS generation, score.record ->> '$.ext.grader.digest' AS grader_digest,
    score.record
FROM score INDEXED BY ix_score_outcome
{current_slot_of score}
WHERE {not_superseded score};

-- one row per score of every generation of a run, with the verdict of the first generation
--
-- Without INDEXED BY, SQLite reads whole records even to count verdicts.
CREATE VIEW all_scores AS SELECT
    {identity score},
    {score_details},
    grading.generation AS generation, score.record ->> '$.ext.grader.digest' AS grader_digest,
    {grading_id} AS grading_id, {is_counted} AS counts,
    (SELECT slot_outcome.verdict FROM slot_outcome
     WHERE slot_outcome.run_no = run.run_no AND slot_outcome.variant_idx = slot.variant_idx
       AND slot_outcome.task_idx = slot.task_idx AND slot_outcome.repl_idx = slot.repl_idx)
        AS first_verdict,
    score.record
FROM score INDEXED BY ix_score_outcome
JOIN slot ON slot.run_no = score.run_no AND slot.schedule_idx = score.schedule_idx
JOIN grading ON grading.run_no = slot.run_no
JOIN run ON run.run_id = grading.root_id
{slot_names}
WHERE {not_superseded score};

-- one row per prediction: what the agent answered, and the whole record as JSON
CREATE VIEW predictions AS SELECT
    {identity prediction},
    prediction.row_seq, prediction.kind, prediction.record ->> '$.prediction.value' AS value,
    prediction.record ->> '$.prediction.artifact_ref' AS artifact_ref, prediction.record
FROM prediction
{current_slot_of prediction}
WHERE {not_superseded prediction};

-- one row per metric of a trial; `value` is a number or text
CREATE VIEW metrics_long AS SELECT
    {identity metric},
    metric.row_seq, metric.metric_id, metric.source, metric.value,
    CASE WHEN typeof(metric.value) <> 'text' THEN CAST(metric.value AS REAL) END AS number
FROM metric
{current_slot_of metric}
WHERE {not_superseded metric};

-- one row per event that an agent reported; `body` is the event as JSON
CREATE VIEW events AS SELECT
    {identity event},
    event.row_seq, event.type, event.body
FROM event
{current_slot_of event}
WHERE {not_superseded event};

-- one row per attempt: references to its inputs, outputs and logs as JSON
CREATE VIEW evidence AS SELECT
    {identity evidence_record},
    evidence_record.attempt, evidence_record.row_seq,
    evidence_record.record ->> '$.runtime.executor' AS executor,
    evidence_record.record -> '$.evidence' AS evidence, evidence_record.record
FROM evidence_record
{current_slot_of evidence_record}
WHERE {not_superseded evidence_record};

-- one row per step of what an agent did, with the beginning of what it said and called
--
-- The index of a trajectory, an artifact that the ledger keeps itself, has the columns by position.
CREATE VIEW steps AS SELECT
    {identity evidence_record},
    evidence_record.attempt, evidence_record.record ->> '$.ext.trajectory.origin' AS origin,
    step.value ->> 0 AS step, step.value ->> 2 AS said_by, step.value ->> 1 AS said_at,
    step.value ->> 3 AS model, step.value ->> 4 AS message, step.value ->> 5 AS tool_calls,
    step.value ->> 6 AS results, step.value ->> 7 AS tokens_in,
    step.value ->> 8 AS cache_read_tokens, step.value ->> 9 AS tokens_out,
    step.value ->> 10 AS cost_usd, coalesce(step.value ->> 11, 0) AS is_copied
FROM evidence_record
{current_slot_of evidence_record}
JOIN artifact ON artifact.sha256 =
    unhex(substr(evidence_record.record ->> '$.evidence.trajectory_steps', 19))
JOIN json_each(CAST(artifact.content AS TEXT), '$.rows') AS step
WHERE {not_superseded evidence_record};

-- one row per call of an agent to a model, as the gateway counted it, in every attempt
CREATE VIEW model_calls AS SELECT
    {identity model_call},
    model_call.attempt, model_call.call, model_call.started_at, model_call.provider,
    model_call.api, model_call.model, model_call.model_served, model_call.state,
    model_call.status, model_call.reason, model_call.input_tokens,
    model_call.cache_read_tokens, model_call.cache_write_tokens,
    model_call.cache_write_1h_tokens, model_call.output_tokens, model_call.reasoning_tokens,
    model_call.is_unknown AS unknown, model_call.cost / 1e12 AS cost_usd,
    model_call.first_byte_ms, model_call.duration_ms, model_call.waited_ms,
    model_call.request_id, model_call.raw_usage, model_call.replayed, model_call.detail,
    model_call.fault, model_call.effort, model_call.temperature, model_call.service_tier,
    model_call.price_condition, model_call.fees / 1e12 AS fees_usd,
    model_call.stated_cost / 1e12 AS stated_cost_usd, {why_unknown} AS cost_unknown
FROM charged_call AS model_call
{root_slot_of model_call}
WHERE {not_superseded model_call};

-- one row per price of a model that a run reckons with, in US dollars for a million tokens
CREATE VIEW model_prices AS SELECT
    run.run_id, model_price.part, model_price.provider, model_price.model,
    model_price.condition, model_price.from_tokens, model_price.input / 1e6 AS input_usd,
    model_price.cache_read / 1e6 AS cache_read_usd,
    model_price.cache_write / 1e6 AS cache_write_usd,
    model_price.cache_write_1h / 1e6 AS cache_write_1h_usd,
    model_price.output / 1e6 AS output_usd, model_price.web_search / 1e9 AS web_search_usd,
    model_price.source, model_price.digest
FROM model_price
JOIN run ON run.run_no = model_price.run_no;

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

-- one row per task of a run's benchmark that the run leaves out, and why; a pass rate over the
-- others is not the benchmark's
CREATE VIEW skipped_tasks AS SELECT
    runs.run_id, runs.experiment_id, skipped.value ->> '$.id' AS task_id,
    skipped.value ->> '$.reason' AS reason
FROM runs, json_each(runs.resolved, '$.dataset.skipped') AS skipped;

-- one row per note that somebody wrote about a run
CREATE VIEW notes AS SELECT run.run_id, run_note.note_no, run_note.noted_at, run_note.note
FROM run_note
JOIN run ON run.run_no = run_note.run_no;

-- one row per request that somebody made about a run: to pause it, to cancel slots, and so on
CREATE VIEW control_requests AS SELECT
    run.run_id, request.request_no, request.requested_at, request.requested_by, request.kind,
    request.what, request.because, request.applied_at, request.outcome ->> '$.text' AS outcome
FROM control_request AS request
JOIN run ON run.run_no = request.run_no;

-- one row per run that was deleted, with what is left of it
CREATE VIEW deleted_runs AS SELECT
  run_id, experiment_id, created_at, deleted_at, because, committed, chain_head
FROM deleted_run;

-- one row per rerun of a run: how many slots were run again, and why
CREATE VIEW reruns AS SELECT
    run.run_id, run_part.part, run_part.created_at, run_part.slot_count AS slots,
    {rerun_commits} AS committed,
    {rerun_statuses} AS superseded,
    coalesce(run_part.selection ->> '$.despite_verdict', 0) AS despite_verdict,
    run_part.because, run_part.selection
FROM run_part
JOIN run ON run.run_no = run_part.run_no
WHERE run_part.kind = 'rerun';
