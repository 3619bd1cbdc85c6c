-- The ledger's analysis views: facts, pairs, counts and histories.
--
-- A slot's verdict counts if the slot is scored: committed, with a score, and not a `grade_error`.
-- A slot that a rerun superseded counts nowhere, but what it spent is in the sums of `run_history`.
-- The view `outcome` (`pass_rate.sql`) has such verdicts, and `passed`, from which rates are
-- computed. The order of joins and of grouped columns lets SQLite follow the keys and apply a
-- condition on `run_id`, `experiment_id` or `task_id` before it counts. Sums of tokens and costs
-- leave out metrics that are no number, or negative.
--
-- `run` is the run whose agents ran. `counted` leads to the rows of its current grading: its own,
-- or those of a regrading, which has the same variants, tasks and slots under the same numbers.
--
-- `record_views.sql` says how these files are used.

-- one row per committed slot: outcome, durations, tokens and cost in one wide row
CREATE VIEW trial_facts AS SELECT
    run.run_id, run.experiment_id, slot_commit.schedule_idx,
    printf('%s-s%06d', run.run_id, slot_commit.schedule_idx) AS trial_id,
    run_variant.variant_id, run_variant.role, run_task.task_id, slot.repl_idx,
    slot_commit.status, slot_commit.reason, score.verdict,
    ({passed_of_cell}) AS passed,
    score.primary_metric_name, score.primary_metric_value,
    (SELECT count(*) FROM attempt
     WHERE attempt.run_no = slot_commit.run_no
       AND attempt.schedule_idx = slot_commit.schedule_idx) AS attempts,
    trial.duration_ms, trial.setup_duration_ms, trial.agent_duration_ms,
    trial.grader_duration_ms,
    {slot_metric tokens_in} AS tokens_in,
    {slot_metric tokens_out} AS tokens_out,
    {slot_metric cost_usd} AS cost_usd,
    trial.started_at, trial.ended_at, slot_commit.committed_at
FROM slot_commit
JOIN slot
  ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
JOIN counted ON counted.run_no = slot.run_no
JOIN run ON run.run_no = counted.root_no
{slot_names}
{trial_and_score} AND slot_commit.status <> 'grade_error'
WHERE {not_superseded slot};

-- one row per committed slot with calls to models: what all attempts used, as the gateway counted it
CREATE VIEW trial_usage AS SELECT
    {identity model_call},
    count(DISTINCT model_call.attempt) AS attempts,
    {usage_sums},
    {claimed tokens_in} AS claimed_tokens_in,
    {claimed tokens_out} AS claimed_tokens_out,
    {claimed cost_usd} AS claimed_cost_usd
{runs_with_calls}
GROUP BY run.run_no, run.run_id, model_call.schedule_idx, run_variant.variant_id,
    run_task.task_id;

-- one row per variant and model of a run: what its trials used of it, as the gateway counted it
CREATE VIEW variant_usage AS SELECT
    run.run_id, run.experiment_id, run_variant.variant_id, model_call.provider,
    model_call.model, count(DISTINCT model_call.schedule_idx) AS trials,
    {usage_sums}
{runs_with_calls}
GROUP BY run.run_no, run.run_id, run.experiment_id, run_variant.variant_idx,
    run_variant.variant_id, model_call.provider, model_call.model;

-- one row per variant of a run: its denominators, verdicts, pass rate and mean metric; the score of
-- a grade_error does not count
CREATE VIEW leaderboard AS SELECT
    run.run_id, run.experiment_id, run_variant.variant_id, run_variant.role,
    {scheduled_cells} AS scheduled,
    count(outcome.status) AS committed,
    {verdict_counts},
    avg(outcome.passed) AS pass_rate,
    CASE WHEN min(outcome.metric_name) = max(outcome.metric_name)
        THEN min(outcome.metric_name) END AS primary_metric_name,
    CASE WHEN min(outcome.metric_name) = max(outcome.metric_name)
        THEN avg(outcome.metric_value) END AS primary_metric_mean,
    count(outcome.status) - count(outcome.verdict) AS unscored,
    count(*) FILTER (WHERE outcome.status = 'grade_error') AS grade_errors,
    count(*) FILTER (WHERE outcome.status = 'infra_error') AS infra_errors,
    count(*) FILTER (WHERE outcome.passed IS NULL
        AND outcome.status NOT IN ('cancelled', 'skipped_pruned')) AS left_out,
    1.0 * count(*) FILTER (WHERE outcome.passed = 1) / nullif(
        count(*) FILTER (WHERE outcome.status NOT IN ('cancelled', 'skipped_pruned')), 0)
        AS pass_rate_of_all
{variants_with_outcomes}
GROUP BY run.run_no, run.run_id, run.experiment_id,
    run_variant.variant_idx, run_variant.variant_id, run_variant.role;

-- one row per scheduled slot of a treatment, with the baseline's slot of the same task and
-- replication
CREATE VIEW paired_outcomes AS SELECT
    run.run_id, run.experiment_id, run_task.task_id, slot.repl_idx,
    baseline.variant_id AS baseline_id, treatment.variant_id,
    a.verdict AS baseline_verdict, b.verdict, a.passed AS baseline_passed, b.passed,
    {pair} AS outcome,
    CASE WHEN a.passed IS NULL AND b.passed IS NULL THEN
            CASE WHEN {why_left_out a} = {why_left_out b} THEN 'both: ' || {why_left_out a}
                ELSE 'baseline: ' || {why_left_out a} || ', treatment: ' || {why_left_out b} END
        WHEN a.passed IS NULL THEN 'baseline: ' || {why_left_out a}
        WHEN b.passed IS NULL THEN 'treatment: ' || {why_left_out b} END AS why,
    a.schedule_idx AS baseline_schedule_idx,
    coalesce(b.schedule_idx, slot.schedule_idx) AS schedule_idx
FROM run
JOIN counted ON counted.root_no = run.run_no
JOIN run_variant AS baseline ON baseline.run_no = counted.run_no AND baseline.role = 'baseline'
JOIN run_variant AS treatment
  ON treatment.run_no = counted.run_no AND treatment.role = 'treatment'
JOIN slot ON slot.run_no = treatment.run_no AND slot.variant_idx = treatment.variant_idx
  AND slot.supersedes IS NULL
LEFT JOIN outcome AS a
  ON a.run_no = slot.run_no AND a.variant_idx = baseline.variant_idx
  AND a.task_idx = slot.task_idx AND a.repl_idx = slot.repl_idx
LEFT JOIN outcome AS b
  ON b.run_no = slot.run_no AND b.variant_idx = slot.variant_idx
  AND b.task_idx = slot.task_idx AND b.repl_idx = slot.repl_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx;

-- one row per treatment of a run: how many of its pairs with the baseline it wins, loses and ties
CREATE VIEW win_loss_tie AS SELECT
    run.run_id, run.experiment_id, min(baseline.variant_id) AS baseline_id,
    treatment.variant_id,
    count(*) FILTER (WHERE {pair} <> 'unpaired') AS pairs,
    count(*) FILTER (WHERE {pair} = 'improvement') AS wins,
    count(*) FILTER (WHERE {pair} = 'regression') AS losses,
    count(*) FILTER (WHERE {pair} = 'same') AS ties,
    (SELECT count(*) FROM slot
     WHERE slot.run_no = counted.run_no AND slot.variant_idx = treatment.variant_idx
       AND slot.supersedes IS NULL)
        - count(*) FILTER (WHERE {pair} <> 'unpaired') AS unpaired
FROM run
CROSS JOIN counted ON counted.root_no = run.run_no
CROSS JOIN run_variant AS treatment
  ON treatment.run_no = counted.run_no AND treatment.role = 'treatment'
LEFT JOIN outcome AS b
  ON b.run_no = treatment.run_no AND b.variant_idx = treatment.variant_idx
CROSS JOIN run_variant AS baseline
  ON baseline.run_no = counted.run_no AND baseline.role = 'baseline'
LEFT JOIN outcome AS a
  ON a.run_no = counted.run_no AND a.variant_idx = baseline.variant_idx
  AND a.task_idx = b.task_idx AND a.repl_idx = b.repl_idx
GROUP BY run.run_no, run.run_id, run.experiment_id,
    treatment.variant_idx, treatment.variant_id;

-- one row per task of a suite over all runs and variants: how often it passed
CREATE VIEW task_difficulty AS WITH suite AS MATERIALIZED (
    SELECT run.run_no, run.created_at, json_extract(run.resolved, '$.dataset.suite_id') AS suite_id FROM run
),
cell AS (
    SELECT
        counted.root_no AS run_no, outcome.variant_idx, outcome.task_idx,
        count(*) AS committed,
    {verdict_counts}
    FROM counted
    CROSS JOIN outcome ON outcome.run_no = counted.run_no
    GROUP BY counted.root_no, outcome.variant_idx, outcome.task_idx
)
SELECT
    suite.suite_id, run_task.task_id, count(DISTINCT cell.run_no) AS runs,
    count(DISTINCT run_variant.variant_id) AS variants, sum(cell.committed) AS committed,
    {cell_sums},
    max(suite.created_at) AS last_seen
FROM cell
JOIN suite ON suite.run_no = cell.run_no
JOIN run_variant
  ON run_variant.run_no = cell.run_no AND run_variant.variant_idx = cell.variant_idx
JOIN run_task ON run_task.run_no = cell.run_no AND run_task.task_idx = cell.task_idx
GROUP BY suite.suite_id, run_task.task_id;

-- one row per committed slot in its task's history, over all runs and variants, the oldest run
-- first
CREATE VIEW task_history AS SELECT
    run_task.task_id, run_task.digest AS task_digest, json_extract(run.resolved, '$.dataset.suite_id') AS suite_id, run.experiment_id,
    run.run_id, run.created_at, run_variant.variant_id, run_variant.role, outcome.repl_idx,
    outcome.schedule_idx,
    printf('%s-s%06d', run.run_id, outcome.schedule_idx) AS trial_id,
    outcome.status, outcome.verdict, outcome.passed,
    outcome.metric_name AS primary_metric_name,
    outcome.metric_value AS primary_metric_value, outcome.duration_ms
FROM run_task
CROSS JOIN counted ON counted.root_no = run_task.run_no
CROSS JOIN run ON run.run_no = counted.root_no
CROSS JOIN run_variant ON run_variant.run_no = run_task.run_no
CROSS JOIN outcome
  ON outcome.run_no = counted.run_no AND outcome.task_idx = run_task.task_idx
  AND outcome.variant_idx = run_variant.variant_idx
ORDER BY
    run_task.task_id, run_task.run_no, run_variant.variant_idx, outcome.repl_idx;

-- one row per task and variant with different verdicts, or with and without one because the agent
-- failed, although nothing that affects results had changed: over the replications and the runs of
-- one digest
--
-- `cell.passed + cell.not_passed - cell.scored` is the number of slots without a verdict because
-- their agent failed or broke its grader.
CREATE VIEW flaky_tasks AS WITH cell AS (
    SELECT
        counted.root_no, min(counted.run_no) AS run_no,
        outcome.variant_idx, outcome.task_idx,
    {verdict_counts}
    FROM counted
    CROSS JOIN outcome ON outcome.run_no = counted.run_no
    WHERE outcome.passed IS NOT NULL
    GROUP BY counted.root_no, outcome.variant_idx, outcome.task_idx
)
SELECT
    run.experiment_id, {newest run_digest graded digest} AS digest,
    run_variant.variant_id, run_task.task_id, count(*) AS runs,
    {cell_sums},
    count(*) FILTER (WHERE cell.passed + cell.not_passed >
        max(cell.pass, cell.fail, cell.missing, cell.error, {without_verdict}))
        AS runs_that_differ,
    min(run.created_at) AS first_seen, max(run.created_at) AS last_seen
FROM cell
JOIN run ON run.run_no = cell.root_no
JOIN run AS graded ON graded.run_no = cell.run_no
JOIN run_variant
  ON run_variant.run_no = cell.run_no AND run_variant.variant_idx = cell.variant_idx
JOIN run_task ON run_task.run_no = cell.run_no AND run_task.task_idx = cell.task_idx
GROUP BY run.experiment_id, {newest run_digest graded digest},
    run_variant.variant_id, run_task.task_id
HAVING sum(cell.passed + cell.not_passed) >
    max(sum(cell.pass), sum(cell.fail), sum(cell.missing), sum(cell.error),
        sum({without_verdict}));

-- one row per run in its experiment's history: its pass rate, cost and duration
CREATE VIEW run_history AS SELECT
    run.experiment_id, run.run_id, run.name, run.created_at, schedule_progress.ended_at,
    schedule_progress.status, schedule.total_slots - (
        SELECT count(*) FROM slot
        WHERE slot.run_no = run.run_no AND slot.supersedes IS NOT NULL) AS scheduled,
    count(outcome.status) AS committed,
    {verdict_counts},
    avg(outcome.passed) AS pass_rate,
    avg(outcome.passed) FILTER (WHERE run_variant.role = 'baseline') AS baseline_pass_rate,
    {run_metric sum(metric.value) tokens_in} AS tokens_in,
    {run_metric sum(metric.value) tokens_out} AS tokens_out,
    {run_metric sum(metric.value) cost_usd} AS cost_usd,
    {run_metric count(*) cost_usd} AS cost_known,
    CAST(round((julianday(schedule_progress.ended_at) - julianday(run.created_at)) * 86400000)
        AS INTEGER) AS duration_ms,
    sum(outcome.duration_ms) AS trials_ms,
    (SELECT count(*) FROM grading WHERE grading.root_id = run.run_id) AS generations,
    {generation counted} AS generation,
    {newest run_digest run digest} AS digest
{variants_with_outcomes}
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
GROUP BY run.run_no, run.run_id, run.experiment_id;

-- one row per run: the experiment's digest, which runs share it, and the name that takes them as one
CREATE VIEW same_experiment AS SELECT
    runs.experiment_id, runs.digest, runs.run_id,
    (runs.resolved ->> '$.dataset.filters.shard.number') || '/'
        || (runs.resolved ->> '$.dataset.filters.shard.of') AS shard,
    runs.status, runs.scheduled, runs.committed, runs.created_at,
    count(*) OVER alike AS runs,
    group_concat(runs.run_id, '+') OVER alike AS together
FROM runs
WINDOW alike AS (PARTITION BY runs.digest ORDER BY runs.created_at, runs.run_id
    ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING);

-- one row per generation of a run's scores: its grader, progress and verdicts, and whether it is
-- the current one
CREATE VIEW gradings AS SELECT
    run.run_id, run.experiment_id, grading.generation, {grading_id} AS grading_id,
    {grader_digest}
        AS grader_digest,
    schedule_progress.status, own.created_at, schedule_progress.ended_at,
    schedule.total_slots AS scheduled, schedule_progress.next_schedule_idx AS committed,
    {verdict_counts},
    avg(outcome.passed) AS pass_rate,
    {is_counted} AS counts
FROM run
CROSS JOIN grading ON grading.root_id = run.run_id
CROSS JOIN run AS own ON own.run_no = grading.run_no
CROSS JOIN schedule ON schedule.run_no = own.run_no
CROSS JOIN schedule_progress ON schedule_progress.run_no = own.run_no
LEFT JOIN outcome ON outcome.run_no = own.run_no
GROUP BY run.run_no, run.run_id, run.experiment_id, grading.generation;

-- one row per variant of a run: slots scheduled, committed and scored, and committed ones by
-- status; each slot counts once, however many attempts it had
CREATE VIEW coverage AS SELECT
    run.run_id, run.experiment_id, run_variant.variant_id, run_variant.role,
    {scheduled_cells} AS scheduled,
    (SELECT count(DISTINCT dispatch.schedule_idx)
     FROM dispatch
     JOIN slot ON slot.run_no = dispatch.run_no AND slot.schedule_idx = dispatch.schedule_idx
     WHERE dispatch.run_no = counted.run_no
       AND dispatch.schedule_idx >= (
         SELECT next_schedule_idx FROM schedule_progress
         WHERE schedule_progress.run_no = counted.run_no)
       AND slot.variant_idx = run_variant.variant_idx) AS begun,
    count(outcome.status) AS committed, count(outcome.verdict) AS scored,
    count(*) FILTER (WHERE outcome.status = 'completed') AS completed,
    count(*) FILTER (WHERE outcome.status = 'agent_error') AS agent_error,
    count(*) FILTER (WHERE outcome.status = 'agent_timeout') AS agent_timeout,
    count(*) FILTER (WHERE outcome.status = 'setup_error') AS setup_error,
    count(*) FILTER (WHERE outcome.status = 'grade_error') AS grade_error,
    count(*) FILTER (WHERE outcome.status = 'infra_error') AS infra_error,
    count(*) FILTER (WHERE outcome.status = 'cancelled') AS cancelled,
    count(*) FILTER (WHERE outcome.status = 'skipped_pruned') AS skipped_pruned
{variants_with_outcomes}
GROUP BY run.run_no, run.run_id, run.experiment_id,
    run_variant.variant_idx, run_variant.variant_id, run_variant.role;
