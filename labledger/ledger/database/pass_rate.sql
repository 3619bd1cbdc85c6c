-- The rule of the pass rate over the slots of a run, on which every view that counts is built.
--
-- `slot_outcome.passed` is what a slot's own trial says (`labledger.records.pass_rate`). A slot
-- without a verdict whose agent succeeded is left out there. It counts as not passed all the same if
-- its grader worked for another trial of the same task, in the same image, part and grading, or if
-- its evidence lists programs or libraries that the agent removed or replaced, or says that it
-- counts as not passed (`records.grader_failures`): otherwise an agent that answers wrongly could
-- leave the rate by breaking its grader. That a grader works in a later part, such as a rerun, says
-- nothing: something may have been mended in between. Nor does a workspace that a regrading could
-- not restore, nor a `fail` whose log says that the grader could not work.
-- `views_and_triggers.py` reads this file; the view is not for users, who see `passed` in the
-- documented ones.

-- one row per cell with a committed slot: its outcome, how it counts among all slots of its run,
-- and how it would count alone
CREATE VIEW outcome AS SELECT
    slot_outcome.run_no, slot_outcome.variant_idx, slot_outcome.task_idx, slot_outcome.repl_idx,
    slot_outcome.schedule_idx, slot_outcome.status, slot_outcome.verdict,
    CASE WHEN slot_outcome.passed IS NULL AND slot_outcome.status = 'grade_error' AND (
        EXISTS (
            SELECT 1 FROM trial AS broken
            CROSS JOIN run_variant AS variant ON variant.run_no = broken.run_no
            CROSS JOIN slot_outcome AS other
              ON other.run_no = variant.run_no AND other.variant_idx = variant.variant_idx
              AND other.task_idx = slot_outcome.task_idx
            CROSS JOIN trial AS graded
              ON graded.run_no = other.run_no AND graded.schedule_idx = other.schedule_idx
            WHERE broken.run_no = slot_outcome.run_no
              AND broken.schedule_idx = slot_outcome.schedule_idx
              AND broken.reason IS NOT 'evidence_incomplete'
              AND other.verdict IN ('pass', 'fail', 'missing')
              AND graded.image_ref = broken.image_ref
              AND (other.verdict = 'pass' OR NOT EXISTS (
                  SELECT 1 FROM evidence_record AS doubted
                  WHERE doubted.run_no = graded.run_no
                    AND doubted.schedule_idx = graded.schedule_idx
                    AND doubted.attempt = graded.attempt
                    AND doubted.record ->> '$.ext.grader_failure.tool' IS NOT NULL))
              AND NOT EXISTS (
                  SELECT 1 FROM run_part WHERE run_part.run_no = broken.run_no
                    AND run_part.first_idx > min(broken.schedule_idx, graded.schedule_idx)
                    AND run_part.first_idx <= max(broken.schedule_idx, graded.schedule_idx)))
        OR EXISTS (
            SELECT 1 FROM evidence_record
            WHERE evidence_record.run_no = slot_outcome.run_no
              AND evidence_record.schedule_idx = slot_outcome.schedule_idx
              AND (json_array_length(evidence_record.record, '$.ext.isolation.programs_changed') > 0
                OR evidence_record.record ->> '$.ext.grader_failure.counts' = 'not_passed')))
        THEN 0 ELSE slot_outcome.passed END AS passed,
    slot_outcome.passed AS passed_alone,
    slot_outcome.metric_name, slot_outcome.metric_value, slot_outcome.duration_ms
FROM slot_outcome;
