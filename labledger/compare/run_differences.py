"""What differs between two runs or two gradings besides the variants that are compared.

`warnings` names what else could explain a difference of two sides: incomplete runs, other
benchmarks, graders or images. `outcome_changes` counts the slots whose outcome a regrading
changed; the runner reports them at the end of a regrading.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from labledger.compare.side_trials import CombinedRuns
from labledger.experiment.plan_sections import StoredFacts
from labledger.ledger.database.model import Graded
from labledger.ledger.query import query
from labledger.records.outcomes import RunStatus
from labledger.text import counted_of

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
    """How many slots had one outcome before a regrading and another, or the same, after it."""

    before: str
    """The verdict, or the status of a slot without one."""
    after: str
    slots: int


def outcome_changes(path: Path, before: str, after: str) -> tuple[OutcomeChange, ...]:
    """Return the outcomes of all slots in two gradings of one run, changed ones first.

    `before` and `after` are the ids of the runs that hold the gradings.
    """
    _, rows = query(path, _OUTCOME_CHANGES_SQL, {"before": before, "after": after})
    return tuple(OutcomeChange(*row) for row in rows)


def warnings(a: CombinedRuns, b: CombinedRuns) -> tuple[str, ...]:
    """Return a clause for each thing besides the variants that could explain a difference.

    Also says how runs differ that are taken as one.
    """
    runs = {graded.run.run_no: graded for graded in (*a.runs, *b.runs)}
    found = [clause for graded in runs.values() for clause in unfinished(graded)]
    for combined in {a.run_ids: a, b.run_ids: b}.values():
        found += combined.differences
        for graded in combined.runs[1:]:
            found += _images(combined.runs[0], graded)
    if a.run_ids != b.run_ids:
        # How the others differ from the first of each side has just been said.
        found += _between(a.runs[0], b.runs[0])
    return tuple(dict.fromkeys(found))


def grader_name(digest: str | None) -> str:
    """Return what to call a grader: the beginning of its digest."""
    return "a grader that no score names" if digest is None else f"grader {digest[:12]}"


def unfinished(graded: Graded) -> Iterator[str]:
    """Yield that a run or grading is not complete, if so, in a clause."""
    run = graded.run
    if run.status is not RunStatus.COMPLETED:
        committed = f"{counted_of(run.next_schedule_idx, run.total_slots, 'slot')} are committed"
        yield f"run {graded.name} is not complete: {committed}"


def _between(a: Graded, b: Graded) -> Iterator[str]:
    facts_a, facts_b = (StoredFacts.of_document(graded.run.resolved) for graded in (a, b))
    if facts_a.benchmark != facts_b.benchmark:
        yield f"the benchmarks differ: {_benchmark(facts_a)} and {_benchmark(facts_b)}"
    digests = a.grading.grader_digest, b.grading.grader_digest
    # Where a digest is not known, the graders are compared as written.
    if facts_a.grader != facts_b.grader if None in digests else digests[0] != digests[1]:
        yield (
            f"the graders differ, in command or files: {_grader(a, facts_a)} and "
            f"{_grader(b, facts_b)}; verdicts may not mean the same"
        )
    elif a.root_id == b.root_id:
        yield "both gradings are by the same grader: where verdicts differ, the grader varies"
    yield from _images(a, b)


def _images(a: Graded, b: Graded) -> Iterator[str]:
    images_a, images_b = a.run.images, b.run.images
    images = [ref for ref in images_a if ref in images_b and images_a[ref] != images_b[ref]]
    if images:
        yield f"the image {', '.join(sorted(images))} was not the same one in both runs"


def _benchmark(facts: StoredFacts) -> str:
    return " ".join(map(str, facts.benchmark.values())) or "none"


def _grader(graded: Graded, facts: StoredFacts) -> str:
    """Return a grading's grader as its command, run and digest."""
    digest = graded.grading.grader_digest
    name = graded.name if digest is None else f"{graded.name}, {grader_name(digest)}"
    return f"{' '.join(map(str, facts.grader_command)) or 'none'} ({name})"
