"""What to know of runs besides their results: in sentences, and where two of them differ.

Choosing which results to repeat can bias them: a rerun of slots that had a verdict is said with the
reason that was given for it, in the head of every report and every comparison of the run.
`warnings` names what else could explain a difference of two sides: incomplete runs, other
benchmarks, graders or images. `outcome_changes` counts the slots whose outcome a regrading changed;
the runner reports them at the end of a regrading. `labledger status` shows these sentences and must
start fast: what compares experiments is imported where it is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from labledger.ledger.database.model import (
    CancelledSlots,
    FailedGradings,
    Graded,
    Grading,
    Rerun,
    ToldSince,
    UnreadResults,
)
from labledger.ledger.query import query
from labledger.records import JsonObject
from labledger.records.outcomes import RunStatus, SlotStatus
from labledger.text import count, counted, counted_of

if TYPE_CHECKING:
    from labledger.compare.sides import CombinedRuns
    from labledger.experiment.plan_sections import StoredFacts
    from labledger.records.task_coverage import TaskCoverage

_MAX_SKIPPED = 10
"""How many tasks that were left out a sentence names."""
_MAX_REASON = 160

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


# -- reruns and cancelled slots


def rerun_sentences(run_id: str, reruns: Sequence[Rerun]) -> tuple[str, ...]:
    """Return what to know of the reruns of a run, for the head of what is said about its results.

    Args:
        run_id: What to call the run.
        reruns: Those of `Ledger.reruns`.

    Returns:
        A sentence about all slots without a verdict that were run again, if there are any, and one
        for each rerun of slots despite their verdicts, with the reason that was given.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     for sentence in labledger.rerun_sentences("demo", ledger.reruns("demo")):
        ...         print(sentence)
    """
    plain = [rerun for rerun in reruns if not rerun.despite_verdict]
    given = [*dict.fromkeys(rerun.because for rerun in plain if rerun.because)]
    why = f" The reason given: {'; '.join(given)}" if given else ""
    return (
        *([f"{_what(run_id, plain)}; they had no verdict.{why}"] if plain else []),
        *(
            f"{_what(run_id, [rerun])}, chosen despite their verdicts, which can bias the results"
            f"{_NO_VERDICT if rerun.is_of_results else ''}. The reason given: "
            f"{rerun.because or 'none'}"
            for rerun in reruns
            if rerun.despite_verdict
        ),
    )


_NO_VERDICT = ": a comparison with them has no verdict and passes no gate"


def cancelled_sentences(run_id: str, cancelled: Iterable[CancelledSlots]) -> tuple[str, ...]:
    """Return which slots of a run people cancelled, and how they count, a sentence for each way.

    Args:
        run_id: What to call the run.
        cancelled: Those of `Ledger.cancelled`.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     for sentence in labledger.cancelled_sentences("demo", ledger.cancelled("demo")):
        ...         print(sentence)
    """
    return tuple(
        f"{counted(each.slots, 'slot')} of {each.variant_id} in {run_id} "
        f"{'was' if each.slots == 1 else 'were'} {each.reason} {_HOW_CANCELLED[each.status]}"
        for each in cancelled
    )


_HOW_CANCELLED = {
    SlotStatus.CANCELLED: "before anything of it ran, and left out of the pass rate",
    SlotStatus.AGENT_ERROR: "while running, and did not pass",
    SlotStatus.INFRA_ERROR: "before another attempt, and left out of the pass rate",
}


def skipped_sentences(run_id: str, coverage: TaskCoverage) -> tuple[str, ...]:
    """Return how many of a benchmark's tasks a run has, which were left out, and why.

    Args:
        run_id: What to call the run.
        coverage: That of `RunInfo.coverage`.

    Returns:
        One sentence, or none if no task was left out.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     for sentence in labledger.skipped_sentences("demo", ledger.run("demo").coverage):
        ...         print(sentence)
    """
    skipped = coverage.skipped
    if not skipped:
        return ()
    named = "; ".join(f"{task.id} ({_short(task.reason)})" for task in skipped[:_MAX_SKIPPED])
    more = len(skipped) - _MAX_SKIPPED
    rest = f"; and {count(more)} more, which the view skipped_tasks lists" if more > 0 else ""
    verb = "is" if coverage.run == 1 else "are"
    sentence = (
        f"{coverage.share} tasks of the benchmark {verb} in {run_id}, and a pass rate is not the "
        f"benchmark's; skipped: {named}{rest}"
    )
    return (sentence,)


def _short(reason: str) -> str:
    return reason if len(reason) <= _MAX_REASON else f"{reason[: _MAX_REASON - 1]}…"


def unread_sentences(run_id: str, unread: Iterable[UnreadResults]) -> tuple[str, ...]:
    """Return sentences that count a run's trials with an output that could not be stored whole.

    Args:
        run_id: What to call the run.
        unread: The counts in `RunState.unread_results`.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     unread = ledger.state("demo").unread_results
        ...     print(*labledger.unread_sentences("demo", unread))
    """
    return tuple(
        f"{counted(each.trials, 'trial')} of {run_id} {'has' if each.trials == 1 else 'have'} "
        f"{_OUTPUTS[each.output]} that could not be stored whole, the last of them slot "
        f"{each.last_slot}: `labledger show {run_id} {each.last_slot}` says why"
        for each in unread
    )


def untested_sentences(resolved: JsonObject) -> tuple[str, ...]:
    """Return a sentence for each agent whose profile was tested with another version.

    Args:
        resolved: The resolved experiment of a run or of a plan.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     print(*labledger.untested_sentences(ledger.run("demo").resolved))
    """
    profiles = [each.get("profile") or {} for each in resolved.get("variants") or ()]
    untested = {
        (each["profile"], each["version"]): each["tested_version"]
        for each in profiles
        if each.get("tested_version")
    }
    return tuple(
        f"{name} {version} is not the version that its profile was tested with, which is {tested}"
        for (name, version), tested in untested.items()
    )


def grading_name(grading: Grading, gradings: Sequence[Grading]) -> str | None:
    """Name the grading of scores by its number, time and grader; None if it is the only one.

    Args:
        grading: The grading.
        gradings: All gradings of its run.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     graded = ledger.graded("demo")
        ...     print(labledger.grading_name(graded.grading, ledger.gradings("demo")))
    """
    if len(gradings) < 2:
        return None
    rank = "the current one" if grading.counts else "not the current one"
    digest = grading.grader_digest
    grader = "" if digest is None else f", grader {digest[:12]}…"
    name = f"grading {grading.generation} of {grading.root_id}"
    return f"{name}, {rank}, of {grading.created_at}{grader}"


def grading_sentences(
    run_id: str, failed: Iterable[FailedGradings], told_since: Sequence[ToldSince] = ()
) -> tuple[str, ...]:
    """Return sentences that count a run's trials whose tests did not work, by what decided.

    Args:
        run_id: What to call the run.
        failed: The counts in `RunState.failed_gradings`.
        told_since: The trials in `RunState.told_since`.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     state = ledger.state("demo")
        ...     for text in labledger.grading_sentences("demo", state.failed_gradings):
        ...         print(text)
    """
    sentences = [
        f"{counted(each.trials, 'trial')} of {run_id} whose tests did not work "
        f"{_HOW_COUNTED[each.counts][each.trials > 1]}, because {_GROUNDS[each.ground]}, the last "
        f"of them slot {each.last_slot}: `labledger show {run_id} {each.last_slot}` says more"
        for each in failed
        if each.counts in _HOW_COUNTED and each.ground in _GROUNDS
    ]
    if told_since:
        last = told_since[0]
        shown = f"slot {last.shown_by['schedule_idx']} of {last.shown_by['run_id']}"
        what = "works" if last.works else "cannot work"
        sentences.append(
            f"{counted(len(told_since), 'trial')} of {run_id} "
            f"{'was' if len(told_since) == 1 else 'were'} counted when nothing was known about "
            f"the grader; {shown} now shows that the grader of slot {last.schedule_idx} {what}: "
            f"`labledger rerun {run_id} --despite-verdict --because TEXT` decides again, and "
            "comparisons have no verdict then"
        )
    return tuple(sentences)


_HOW_COUNTED = {
    "not_passed": ("counts as not passed", "count as not passed"),
    "left_out": ("is left out of the pass rate", "are left out of the pass rate"),
}
_GROUNDS = {
    "reference_agent": "the reference solution failed, and no other agent ran",
    "programs_changed": "the agent had changed programs of the image",
    "grader_worked": "the same grader works in the same image",
    "reference_failed": "the reference solution failed in the same way",
    "processes_left": "processes were left running when the agent had ended",
    "system_changed": "the system was changed before the grader began",
    "nothing_known": "nothing shows whose failure it was (`labledger check` runs the oracle)",
}

_OUTPUTS = {"trial_output": "a result.json", "events": "an events.jsonl"}


def _what(run_id: str, reruns: Sequence[Rerun]) -> str:
    """Return such as ``3 slots of demo were run again (2 infra_error, 1 setup_error)``."""
    slots = sum(rerun.slots for rerun in reruns)
    statuses: Counter[str] = Counter()
    for rerun in reruns:
        statuses.update(rerun.superseded)
    listed = ", ".join(f"{count(n)} {status}" for status, n in sorted(statuses.items()))
    verb = "was" if slots == 1 else "were"
    text = f"{counted(slots, 'slot')} of {run_id} {verb} run again ({listed})"
    pending = slots - sum(rerun.committed for rerun in reruns)
    return f"{text}, of which {count(pending)} not committed yet" if pending else text


# -- what could explain a difference


def warnings(a: CombinedRuns, b: CombinedRuns) -> tuple[str, ...]:
    """Return a clause for each thing besides the variants that could explain a difference.

    Also says how runs differ that are taken as one.
    """
    runs = {graded.run.run_no: graded for graded in (*a.runs, *b.runs)}
    found = list(unfinished(runs.values()))
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


def unfinished(runs: Iterable[Graded]) -> Iterator[str]:
    """Yield a clause for each run or grading that is not complete."""
    for graded in runs:
        run = graded.run
        if run.status is not RunStatus.COMPLETED:
            committed = counted_of(run.next_schedule_idx, run.total_slots, "slot")
            yield f"run {graded.name} is not complete: {committed} are committed"


def _between(a: Graded, b: Graded) -> Iterator[str]:
    from labledger.experiment.plan_sections import StoredFacts

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


# -- regradings


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
