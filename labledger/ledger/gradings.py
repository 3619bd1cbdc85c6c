"""The gradings of a run, read inside the caller's snapshot: every generation of its scores."""

from __future__ import annotations

from sqlalchemy import Connection

from labledger.ledger.model import Grading

_GRADINGS_SQL = """
SELECT
  grading.root_id, grading.generation, run.run_id,
  grading.root_id || '.g' || grading.generation AS grading_id,
  coalesce(
    run.resolved ->> '$.regrades.grader_digest',
    (SELECT score.record ->> '$.ext.grader.digest' FROM score
     WHERE score.run_no = run.run_no ORDER BY score.schedule_idx, score.row_seq LIMIT 1)),
  schedule_progress.next_schedule_idx = schedule.total_slots,
  EXISTS (SELECT 1 FROM counted WHERE counted.run_no = run.run_no),
  run.created_at
FROM grading AS asked
JOIN grading ON grading.root_id = asked.root_id
JOIN run ON run.run_no = grading.run_no
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
WHERE asked.run_no = ?
ORDER BY grading.generation"""


def of_run(connection: Connection, run_no: int) -> list[Grading]:
    """Every generation of the run, or of the root of a regrading, the oldest first."""
    found = connection.exec_driver_sql(_GRADINGS_SQL, (run_no,)).all()
    return [
        Grading(
            root_id, generation, run_id, grading_id, digest, bool(complete), bool(counts), created
        )
        for root_id, generation, run_id, grading_id, digest, complete, counts, created in found
    ]
