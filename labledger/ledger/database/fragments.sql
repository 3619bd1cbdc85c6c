-- Pieces of SQL that several statements share. `{name}` stands for the text of one, `{name ARGUMENTS}`
-- for one with parameters, in which `{PARAMETER}` stands for the argument. `statements.py` puts them
-- in. Views and triggers are stored as they are then: a change of their text needs a migration.

-- slot_variant: joins the variant of each slot
JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx

-- slot_names: joins the variant and the task of each slot
{slot_variant}
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx

-- task_payload: joins the frozen row of each task
JOIN task_payload ON task_payload.payload_digest = run_task.payload_digest

-- chain_head: the digest of a run's last commit, or of its creation if there is none
coalesce(
    (SELECT chain_digest FROM slot_commit WHERE slot_commit.run_no = schedule.run_no
     ORDER BY schedule_idx DESC LIMIT 1),
    schedule.genesis_digest)

-- slot_of TABLE: joins the slot of each row, with its variant and task, in the order of the rows' keys
CROSS JOIN slot ON slot.run_no = {TABLE}.run_no AND slot.schedule_idx = {TABLE}.schedule_idx
CROSS JOIN run_variant
  ON run_variant.run_no = slot.run_no AND run_variant.variant_idx = slot.variant_idx
CROSS JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx

-- current_slot_of TABLE: joins the slot of each row of a current grading, and the run whose agents ran
JOIN slot ON slot.run_no = {TABLE}.run_no AND slot.schedule_idx = {TABLE}.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
{slot_names}

-- not_superseded TABLE: whether the slot of a row is one that no committed slot supersedes
NOT EXISTS (
    SELECT 1 FROM slot AS newer
    JOIN slot_commit AS replacement
      ON replacement.run_no = newer.run_no AND replacement.schedule_idx = newer.schedule_idx
    WHERE newer.run_no = {TABLE}.run_no AND newer.supersedes = {TABLE}.schedule_idx)

-- not_run_again TABLE: whether the slot of a row is one that no slot supersedes, committed or not
NOT EXISTS (
    SELECT 1 FROM slot AS newer
    WHERE newer.run_no = {TABLE}.run_no AND newer.supersedes = {TABLE}.schedule_idx)

-- trial_and_score: joins the trial and the first score of a commit, if it has them
LEFT JOIN trial
  ON trial.run_no = slot_commit.run_no AND trial.schedule_idx = slot_commit.schedule_idx
LEFT JOIN score
  ON score.run_no = slot_commit.run_no AND score.schedule_idx = slot_commit.schedule_idx
  AND score.row_seq = 0

-- identity TABLE: the columns that name the slot of a row
run.run_id,
    {TABLE}.schedule_idx,
    printf('%s-s%06d', run.run_id, {TABLE}.schedule_idx) AS trial_id,
    run_variant.variant_id,
    run_task.task_id,
    slot.repl_idx

-- trial_details: the columns of a trial after `passed`
score.primary_metric_name, score.primary_metric_value, trial.outcome, trial.attempt,
    trial.exit_status, trial.started_at, trial.ended_at, trial.duration_ms,
    trial.setup_duration_ms, trial.setup_exit_status,
    trial.agent_duration_ms, trial.agent_exit_status, trial.agent_timed_out,
    trial.grader_duration_ms, trial.grader_exit_status, trial.grader_timed_out,
    trial.image_ref, trial.image_id, trial.events_dropped,
    {resource_use trial},
    {host trial} AS host,
    slot_commit.slot_commit_id, slot_commit.committed_at

-- host TABLE: the host of an attempt
(SELECT dispatch.host FROM dispatch
     WHERE dispatch.run_no = {TABLE}.run_no AND dispatch.schedule_idx = {TABLE}.schedule_idx
       AND dispatch.attempt = {TABLE}.attempt ORDER BY dispatch.epoch DESC LIMIT 1)

-- score_details: the columns of a score before its generation
score.row_seq, score.verdict, score.primary_metric_name, score.primary_metric_value,
    (SELECT trial.status FROM trial
     WHERE trial.run_no = score.run_no AND trial.schedule_idx = score.schedule_idx) AS status,
    score.record ->> '$.evaluator.name' AS evaluator_name,
    score.record -> '$.metrics' AS metrics, score.record ->> '$.error.message' AS error_message

-- passed_of_cell: how a slot's cell counts for the pass rate
SELECT outcome.passed FROM outcome
     WHERE outcome.run_no = slot.run_no AND outcome.variant_idx = slot.variant_idx
       AND outcome.task_idx = slot.task_idx AND outcome.repl_idx = slot.repl_idx

-- newest COLUMN RUN OWN: a column of a run's newest revision, which `run_part` has if it was extended
coalesce((SELECT run_part.{COLUMN} FROM run_part WHERE run_part.run_no = {RUN}.run_no AND run_part.kind = 'extended'
      ORDER BY run_part.part DESC LIMIT 1), {RUN}.{OWN})

-- slot_metric NAME: an amount that the last attempt of a committed slot reported
(SELECT min(metric.value) FROM metric
     WHERE metric.run_no = slot_commit.run_no AND metric.schedule_idx = slot_commit.schedule_idx AND metric.metric_id = '{NAME}'
       AND typeof(metric.value) IN ('integer', 'real') AND metric.value >= 0)

-- run_metric FUNCTION NAME: a function of the amounts that the trials of a run reported
(SELECT {FUNCTION} FROM metric
     WHERE metric.run_no = counted.run_no AND metric.metric_id = '{NAME}'
       AND typeof(metric.value) IN ('integer', 'real') AND metric.value >= 0)

-- cost_of KIND: what a call's tokens of a kind cost; null if there were some, and they have no price
model_call.{KIND}_tokens * coalesce(model_price.{KIND}, CASE model_call.{KIND}_tokens WHEN 0 THEN 0 END)

-- cost_by_price NAME: the beginning of what a call costs by the prices of the model in a column
(SELECT {cost_of input} + {cost_of output}
            + {cost_of cache_read} + {cost_of cache_write}
            + {cost_of cache_write_1h} + coalesce(model_call.fees, 0)
        FROM model_price
        WHERE model_price.run_no = model_call.run_no
          AND model_price.provider = model_call.provider AND model_price.model = model_call.{NAME}
          AND model_price.from_tokens <= model_call.input_tokens + model_call.cache_read_tokens
            + model_call.cache_write_tokens + model_call.cache_write_1h_tokens

-- condition_in_spaces: the condition of a call's price, with a space before and after it
' ' || model_call.price_condition || ' '

-- why_unknown: why the cost of a call is not known; null if it is
CASE WHEN model_call.cost IS NULL THEN coalesce(model_call.cost_unknown,
      CASE WHEN model_call.is_unknown THEN 'its tokens are not known'
      WHEN model_call.price_condition IS NOT NULL
        THEN 'no price for its tokens with ' || model_call.price_condition
      ELSE 'no price for its tokens' END) END

-- root_slot_of TABLE: joins the slot of each row that only the run whose agents ran has, and that run
JOIN slot ON slot.run_no = {TABLE}.run_no AND slot.schedule_idx = {TABLE}.schedule_idx
JOIN counted ON counted.root_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
{slot_names}

-- runs_with_calls: every run with its calls to models, and the slot of each
FROM run
CROSS JOIN counted ON counted.root_no = run.run_no
CROSS JOIN charged_call AS model_call ON model_call.run_no = run.run_no
CROSS JOIN slot ON slot.run_no = model_call.run_no AND slot.schedule_idx = model_call.schedule_idx
{slot_names}
WHERE {not_superseded model_call}

-- usage_sums: what calls used together
count(*) FILTER (WHERE model_call.state <> 'refused') AS calls,
    count(*) FILTER (WHERE model_call.state = 'refused') AS refused,
    count(*) FILTER (WHERE model_call.state IN ('failed', 'cut')
        OR (model_call.state = 'answered' AND model_call.status >= 400)) AS failed,
    sum(model_call.is_unknown) AS unknown,
    sum(model_call.request_tokens) AS tokens_in,
    sum(model_call.cache_read_tokens) AS cache_read_tokens,
    sum(model_call.cache_write_tokens + model_call.cache_write_1h_tokens) AS cache_write_tokens,
    sum(model_call.output_tokens) AS tokens_out,
    sum(model_call.reasoning_tokens) AS reasoning_tokens,
    sum(1.0 * model_call.cost) / 1e12 AS cost_usd,
    count(*) - count(model_call.cost) AS cost_unknown,
    sum(model_call.waited_ms) / 1000.0 AS waited_s

-- claimed NAME: what the last attempt's agent said of its own use
(SELECT min(metric.value) FROM metric
     WHERE metric.run_no = slot.run_no AND metric.schedule_idx = slot.schedule_idx
       AND metric.metric_id = 'claimed_{NAME}'
       AND typeof(metric.value) IN ('integer', 'real') AND metric.value >= 0)

-- verdict_counts: how many cells passed, did not, and have each verdict
count(*) FILTER (WHERE outcome.passed = 1) AS passed,
    count(*) FILTER (WHERE outcome.passed = 0) AS not_passed,
    count(outcome.verdict) AS scored,
    count(*) FILTER (WHERE outcome.verdict = 'pass') AS pass,
    count(*) FILTER (WHERE outcome.verdict = 'fail') AS fail,
    count(*) FILTER (WHERE outcome.verdict = 'missing') AS missing,
    count(*) FILTER (WHERE outcome.verdict = 'error') AS error

-- variants_with_outcomes: every run with the variants and outcomes of its current grading
FROM run
CROSS JOIN counted ON counted.root_no = run.run_no
CROSS JOIN run_variant ON run_variant.run_no = counted.run_no
LEFT JOIN outcome
  ON outcome.run_no = counted.run_no AND outcome.variant_idx = run_variant.variant_idx

-- scheduled_cells: how many cells a variant has
(SELECT count(*) FROM slot
     WHERE slot.run_no = counted.run_no
       AND slot.variant_idx = run_variant.variant_idx AND slot.supersedes IS NULL)

-- grading_id: the name of a grading
grading.root_id || '.g' || grading.generation

-- is_counted: whether a grading is the current one
EXISTS (SELECT 1 FROM counted WHERE counted.run_no = grading.run_no)

-- grader_digest: the digest of the grader of a run or regrading `own`
coalesce(
        own.resolved ->> '$.regrades.grader_digest',
        (SELECT score.record ->> '$.ext.grader.digest' FROM score
         WHERE score.run_no = own.run_no ORDER BY score.schedule_idx, score.row_seq LIMIT 1))

-- rerun_commits: how many slots of a part are committed
(SELECT count(*) FROM slot_commit
     WHERE slot_commit.run_no = run_part.run_no AND slot_commit.schedule_idx >= run_part.first_idx
       AND slot_commit.schedule_idx < run_part.first_idx + run_part.slot_count)

-- rerun_statuses: how many of the slots that a part ran again had each status
(SELECT json_group_object(status, slots) FROM (
       SELECT superseded.status, count(*) AS slots FROM slot
       JOIN slot_commit AS superseded
         ON superseded.run_no = slot.run_no AND superseded.schedule_idx = slot.supersedes
       WHERE slot.run_no = run_part.run_no AND slot.schedule_idx >= run_part.first_idx
         AND slot.schedule_idx < run_part.first_idx + run_part.slot_count
       GROUP BY superseded.status ORDER BY superseded.status))

-- total_slots RUN: how many slots a run has
(SELECT total_slots FROM schedule WHERE schedule.run_no = {RUN})

-- generation RUN: the number of a grading
(SELECT generation FROM grading WHERE grading.run_no = {RUN}.run_no)

-- pair: how a treatment's cell `b` compares with the baseline's cell `a`
CASE WHEN a.passed IS NULL OR b.passed IS NULL THEN 'unpaired'
        WHEN a.passed = b.passed THEN 'same'
        WHEN a.passed THEN 'regression' ELSE 'improvement' END

-- why_left_out SIDE: the status of a cell that is not in a pair
CASE WHEN {SIDE}.passed IS NULL THEN coalesce({SIDE}.status, 'not_committed') END

-- without_verdict: how many slots did not pass without a verdict
(cell.passed + cell.not_passed - cell.scored)

-- cell_sums: sums of `verdict_counts` over cells, and the pass rate
sum(cell.passed) AS passed, sum(cell.not_passed) AS not_passed, sum(cell.scored) AS scored,
    sum(cell.pass) AS pass, sum(cell.fail) AS fail,
    sum(cell.missing) AS missing, sum(cell.error) AS error,
    1.0 * sum(cell.passed) / nullif(sum(cell.passed) + sum(cell.not_passed), 0) AS pass_rate

-- outcome_of_slot: the beginning of what gives a cell its row of `slot_outcome`
BEGIN INSERT INTO slot_outcome
  (run_no, variant_idx, task_idx, repl_idx, schedule_idx, status, duration_ms, passed, verdict,
   metric_name, metric_value)
SELECT slot.run_no, slot.variant_idx, slot.task_idx, slot.repl_idx, slot.schedule_idx,

-- if_newest: its end: the row of a cell is that of its newest committed slot
WHERE slot.run_no = NEW.run_no AND slot.schedule_idx = NEW.schedule_idx
ON CONFLICT (run_no, variant_idx, task_idx, repl_idx) DO UPDATE SET
  schedule_idx = excluded.schedule_idx, status = excluded.status, duration_ms = excluded.duration_ms,
  passed = excluded.passed, verdict = excluded.verdict, metric_name = excluded.metric_name,
  metric_value = excluded.metric_value
WHERE excluded.schedule_idx > slot_outcome.schedule_idx; END

-- count_if_complete: lets a grading count from the progress on that completes it
WHEN NEW.next_schedule_idx =
  {total_slots NEW.run_no} BEGIN
UPDATE counted SET run_no = NEW.run_no
WHERE root_no = (
    SELECT run.run_no FROM grading JOIN run ON run.run_id = grading.root_id
    WHERE grading.run_no = NEW.run_no)
  AND {total_slots counted.root_no} = NEW.next_schedule_idx
  AND {generation counted} < {generation NEW}; END
