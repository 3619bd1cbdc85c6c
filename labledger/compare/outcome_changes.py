"""The slots whose outcome differs between two gradings of a run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from labledger.ledger.query import query

_OUTCOME_CHANGES_SQL = """
SELECT
    coalesce(old.verdict, old.status) AS before, coalesce(new.verdict, new.status) AS after,
    count(*) AS slots
FROM run AS earlier
JOIN run AS later ON later.run_id = :after
JOIN slot_outcome AS old ON old.run_no = earlier.run_no
JOIN slot_outcome AS new
  ON new.run_no = later.run_no AND new.variant_idx = old.variant_idx
  AND new.task_idx = old.task_idx AND new.repl_idx = old.repl_idx
WHERE earlier.run_id = :before
GROUP BY 1, 2
ORDER BY before = after, slots DESC, before, after"""


class OutcomeChange(NamedTuple):
    """The number of slots with a certain outcome before a regrading and a certain one after it."""

    before: str
    """The verdict, or the status of a slot without one."""
    after: str
    slots: int


def outcome_changes(path: Path, before: str, after: str) -> tuple[OutcomeChange, ...]:
    """Count the slots of a run by their outcomes in two gradings; changed outcomes come first.

    `before` and `after` are the ids of the runs that hold the gradings.
    """
    _, rows = query(path, _OUTCOME_CHANGES_SQL, {"before": before, "after": after})
    return tuple(OutcomeChange(*row) for row in rows)
