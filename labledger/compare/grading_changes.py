"""What another grader made of the same trials: each slot's outcome before and after."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from labledger.ledger.query import query

_SQL = """
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


class Flip(NamedTuple):
    """How many slots went from one outcome to another, or stayed."""

    before: str
    """The verdict, or the status of a slot without one."""
    after: str
    slots: int


def flips(path: Path, before: str, after: str) -> tuple[Flip, ...]:
    """The slots of two gradings of one run (the ids of their runs), changed ones first."""
    _, rows = query(path, _SQL, {"before": before, "after": after})
    return tuple(Flip(*row) for row in rows)
