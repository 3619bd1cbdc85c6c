-- Triggers that keep derived tables up to date, which grading counts and each cell's outcome, and that
-- let a run grow by whole parts alone.
--
-- `views_and_triggers.py` reads this file and adds the triggers that make tables append-only.
-- `labledger verify` compares all triggers with those of a ledger: any change needs a migration.

-- A cell has one slot, and further ones that each supersede an earlier one of the same cell.
CREATE TRIGGER slot_refuses_insert BEFORE INSERT ON slot WHEN CASE WHEN NEW.supersedes IS NULL THEN EXISTS (
  SELECT 1 FROM slot WHERE slot.run_no = NEW.run_no AND slot.variant_idx = NEW.variant_idx
    AND slot.task_idx = NEW.task_idx AND slot.repl_idx = NEW.repl_idx)
ELSE NOT EXISTS (
  SELECT 1 FROM slot WHERE slot.run_no = NEW.run_no AND slot.schedule_idx = NEW.supersedes
    AND slot.variant_idx = NEW.variant_idx AND slot.task_idx = NEW.task_idx
    AND slot.repl_idx = NEW.repl_idx) END BEGIN SELECT RAISE(ABORT, 'slot: a second slot of a cell supersedes an earlier one of it'); END;

-- A part begins where the schedule ends,
CREATE TRIGGER run_part_refuses_insert BEFORE INSERT ON run_part WHEN NEW.first_idx IS NOT (
  SELECT total_slots FROM schedule WHERE schedule.run_no = NEW.run_no)
OR NEW.part <> 1 + coalesce((SELECT max(part) FROM run_part WHERE run_part.run_no = NEW.run_no), 1)
BEGIN SELECT RAISE(ABORT, 'run_part: a part begins where the schedule ends'); END;

-- and makes it longer. From then on the root's own rows count again: its regradings lack the new slots.
CREATE TRIGGER run_part_appended AFTER INSERT ON run_part BEGIN
UPDATE schedule SET total_slots = NEW.first_idx + NEW.slot_count WHERE run_no = NEW.run_no;
UPDATE counted SET run_no = root_no WHERE root_no = NEW.run_no AND run_no <> root_no; END;

CREATE TRIGGER schedule_refuses_update BEFORE UPDATE ON schedule WHEN NEW.run_no <> OLD.run_no
OR NEW.genesis_digest <> OLD.genesis_digest OR NEW.total_slots <= OLD.total_slots
OR NEW.total_slots IS NOT (
  SELECT max(first_idx + slot_count) FROM run_part WHERE run_part.run_no = NEW.run_no)
BEGIN SELECT RAISE(ABORT, 'schedule is append-only: it grows by whole parts alone'); END;

-- `counted` names the grading that counts for each root: first the root itself, which comes with
-- its run.
CREATE TRIGGER counted_refuses_insert BEFORE INSERT ON counted WHEN NEW.root_no <> NEW.run_no OR NOT EXISTS (
  SELECT 1 FROM grading JOIN run ON run.run_id = grading.root_id AND run.run_no = grading.run_no
  WHERE grading.run_no = NEW.root_no) BEGIN SELECT RAISE(ABORT, 'counted: a row comes with its run alone'); END;

-- Then it moves on to a newer, complete grading of the same run, and back when the run grows.
CREATE TRIGGER counted_refuses_update BEFORE UPDATE ON counted WHEN NEW.root_no <> OLD.root_no
OR ({generation NEW} <= {generation OLD}
  AND NOT (NEW.run_no = NEW.root_no
    AND {total_slots OLD.run_no} < {total_slots NEW.run_no}))
OR NEW.run_no <> NEW.root_no AND NOT EXISTS (
  SELECT 1 FROM grading
  JOIN run ON run.run_id = grading.root_id AND run.run_no = NEW.root_no
  JOIN schedule_progress ON schedule_progress.run_no = grading.run_no
  WHERE grading.run_no = NEW.run_no AND schedule_progress.next_schedule_idx =
  {total_slots NEW.root_no}) BEGIN SELECT RAISE(ABORT, 'counted: it moves on to a newer, complete grading of the same run alone'); END;

CREATE TRIGGER counted_refuses_delete BEFORE DELETE ON counted BEGIN SELECT RAISE(ABORT, 'counted: every run has a grading that counts'); END;

-- A commit, a trial or a score gives each cell its one row of `slot_outcome`, in the transaction of
-- the commit: the outcome of its newest committed slot.
CREATE TRIGGER slot_outcome_refuses_update BEFORE UPDATE ON slot_outcome WHEN NEW.schedule_idx <= OLD.schedule_idx
OR NEW.run_no <> OLD.run_no OR NEW.variant_idx <> OLD.variant_idx OR NEW.task_idx <> OLD.task_idx
OR NEW.repl_idx <> OLD.repl_idx BEGIN SELECT RAISE(ABORT, 'slot_outcome: a row changes only when its cell has run again'); END;

-- A slot that was not run:
CREATE TRIGGER slot_outcome_unexecuted AFTER INSERT ON slot_commit WHEN NEW.status IN ('cancelled', 'skipped_pruned') {outcome_of_slot} NEW.status, NULL, NULL, NULL, NULL, NULL
FROM slot
{if_newest};

-- A slot without a verdict, or whose score is stored but does not count:
CREATE TRIGGER slot_outcome_unscored AFTER INSERT ON trial WHEN NEW.verdict IS NULL OR NEW.status = 'grade_error' {outcome_of_slot} NEW.status, NEW.duration_ms, {passed NEW.status NULL NEW.agent_exit_status}, NULL, NULL, NULL
FROM slot
{if_newest};

-- A slot whose score counts:
CREATE TRIGGER slot_outcome_scored AFTER INSERT ON score WHEN NEW.row_seq = 0 {outcome_of_slot} trial.status, trial.duration_ms, {passed trial.status NEW.verdict trial.agent_exit_status},
  NEW.verdict, NEW.primary_metric_name, NEW.primary_metric_value
FROM slot
JOIN trial ON trial.run_no = slot.run_no AND trial.schedule_idx = slot.schedule_idx
  AND trial.status <> 'grade_error'
{if_newest};

-- A run that is created is a generation of scores: the first of itself or, if its resolved
-- experiment says `regrades`, a later one of its root.
CREATE TRIGGER grading_begins AFTER INSERT ON run BEGIN
INSERT INTO grading (run_no, root_id, generation) VALUES (
  NEW.run_no,
  coalesce(NEW.resolved ->> '$.regrades.run_id', NEW.run_id),
  coalesce(NEW.resolved ->> '$.regrades.generation', 1));
INSERT INTO counted (root_no, run_no)
SELECT NEW.run_no, NEW.run_no WHERE NEW.resolved -> '$.regrades' IS NULL; END;

-- A root's own rows count until a newer generation of all its slots is complete, from the transaction
-- on that completes it.
CREATE TRIGGER counted_moves AFTER UPDATE OF next_schedule_idx ON schedule_progress {count_if_complete};

-- An import inserts the progress of a run that is complete already.
CREATE TRIGGER counted_moves_at_once AFTER INSERT ON schedule_progress {count_if_complete};
