"""Which generation of a run's scores counts: the SQL that keeps `grading` and `counted`.

A run that is created is a generation: the first of itself, or, where its resolved experiment says
`regrades`, a later one of its root. A root's own rows count until a newer generation is complete,
and from the very transaction on that completes it.
"""

from __future__ import annotations

_COMPLETE = """\
{0}.next_schedule_idx =
  (SELECT total_slots FROM schedule WHERE schedule.run_no = {0}.run_no)"""
_GENERATION = "(SELECT generation FROM grading WHERE grading.run_no = {0})"

_BEGIN = """
INSERT INTO grading (run_no, root_id, generation) VALUES (
  NEW.run_no,
  coalesce(NEW.resolved ->> '$.regrades.run_id', NEW.run_id),
  coalesce(NEW.resolved ->> '$.regrades.generation', 1));
INSERT INTO counted (root_no, run_no)
SELECT NEW.run_no, NEW.run_no WHERE NEW.resolved -> '$.regrades' IS NULL;"""

_MOVE = f"""
UPDATE counted SET run_no = NEW.run_no
WHERE root_no = (
    SELECT run.run_no FROM grading JOIN run ON run.run_id = grading.root_id
    WHERE grading.run_no = NEW.run_no)
  AND {_GENERATION.format("counted.run_no")} < {_GENERATION.format("NEW.run_no")};"""

KEEPERS = {
    "grading_begins": f"CREATE TRIGGER grading_begins AFTER INSERT ON run BEGIN{_BEGIN} END",
    **{
        name: f"CREATE TRIGGER {name} AFTER {action} ON schedule_progress "
        f"WHEN {_COMPLETE.format('NEW')} BEGIN{_MOVE} END"
        for name, action in (
            ("counted_moves", "UPDATE OF next_schedule_idx"),
            ("counted_moves_at_once", "INSERT"),
        )
    },
}
"""The triggers that write both tables. An import inserts the progress of a run as it is."""

_NO_ROOT = """\
NEW.root_no <> NEW.run_no OR NOT EXISTS (
  SELECT 1 FROM grading JOIN run ON run.run_id = grading.root_id AND run.run_no = grading.run_no
  WHERE grading.run_no = NEW.root_no)"""
_NO_MOVE = f"""\
NEW.root_no <> OLD.root_no
OR {_GENERATION.format("NEW.run_no")} <= {_GENERATION.format("OLD.run_no")}
OR NOT EXISTS (
  SELECT 1 FROM grading
  JOIN run ON run.run_id = grading.root_id AND run.run_no = NEW.root_no
  JOIN schedule_progress ON schedule_progress.run_no = grading.run_no
  WHERE grading.run_no = NEW.run_no AND {_COMPLETE.format("schedule_progress")})"""

REFUSED = (
    ("INSERT", "counted: a row comes with its run alone", _NO_ROOT),
    ("UPDATE", "counted: it moves on to a newer, complete grading of the same run alone", _NO_MOVE),
    ("DELETE", "counted: every run has a grading that counts"),
)
"""What may not be done to `counted`: the action, what is said then, and when, where not always."""
