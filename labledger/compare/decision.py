"""Decide what a comparison shows, and whether its gates are passed.

Decisions and gates use the same intervals, which hold for the whole family together. A test that is
repeated while results arrive shows differences that do not exist. So runs that can grow, have
grown, or have cancelled slots are compared by a confidence sequence, or not decided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from labledger.compare import comparison_sentences, estimates
from labledger.compare.compare_options import CompareOptions, Estimand, Gate, Validity
from labledger.compare.comparison_document import (
    Compared,
    Comparison,
    Conclusion,
    Decision,
    Equivalence,
    GateResult,
    LookKind,
    Looks,
    Nearness,
    PlannedLooks,
    Sensitivity,
)
from labledger.compare.estimates import Sample
from labledger.compare.pairs import LeftOut, Paired, Trials
from labledger.compare.run_caveats import cancelled_sentences, skipped_sentences
from labledger.compare.sides import CombinedRuns, Side
from labledger.compare.statistics.samples import Estimate
from labledger.ledger.query import query
from labledger.ledger.reader import LedgerReader
from labledger.records.outcomes import RunStatus, SlotStatus

_EXTENDED_SQL = """
SELECT EXISTS (
    SELECT 1 FROM run
    JOIN run_variant ON run_variant.run_no = run.run_no AND run_variant.variant_id = :variant
    JOIN slot ON slot.run_no = run.run_no AND slot.variant_idx = run_variant.variant_idx
    WHERE run.run_id = :run AND slot.schedule_idx BETWEEN :first AND :last
)"""

_NOT_COMMITTED = "not_committed"
_OPEN = (_NOT_COMMITTED, SlotStatus.CANCELLED.value)
"""Why slots are left out whose results a user may have chosen not to get."""
_TASK_NOT_FINISHED = "task_not_finished"

EXTENDED = (
    "a run was extended, but the p value and interval are computed as if it had not been; if it "
    "was extended because of its results, differences are shown too often"
)


@dataclass(frozen=True, slots=True)
class LooksTaken:
    """The looks at the runs of two sides, as far as the ledger knows them."""

    at_experiment: Looks
    planned: PlannedLooks | None
    """None if the runs declare no looks."""
    chosen_by_verdict: tuple[str, ...]
    """The runs in which results were chosen by their verdicts; see `Compared`."""


def validity(
    reader: LedgerReader,
    sides: Collection[Side],
    runs: Mapping[str, CombinedRuns],
    options: CompareOptions,
    looks: LooksTaken,
) -> tuple[Validity, tuple[str, ...]]:
    """Return the looks at which the interval of two sides holds, and warnings.

    If the run did not keep to its planned looks, only a method for arbitrary looks is valid.
    """
    all_runs = {runs[side.run_id].name: runs[side.run_id] for side in sides}.values()
    is_unfinished = any(
        graded.run.status is not RunStatus.COMPLETED
        for combined in all_runs
        for graded in combined.runs
    )
    planned = looks.planned
    is_planned = planned is not None and planned.number is not None
    is_unplanned = planned is not None and planned.number is None
    is_extended = planned is None and any(
        _was_extended(reader, side, runs[side.run_id]) for side in sides
    )
    cancelled = tuple(
        sentence for side in sides for sentence in _cancelled(reader, side, runs[side.run_id])
    )
    skipped = tuple(
        sentence
        for combined in all_runs
        for graded in combined.runs
        for sentence in skipped_sentences(graded.root_id, graded.run.coverage)
    )
    warnings = (*skipped, *cancelled)
    if looks.chosen_by_verdict:
        return Validity.NONE, warnings
    is_added = looks.at_experiment.kind is LookKind.ADDED
    if is_unfinished or is_extended or is_unplanned or cancelled or is_added:
        if options.is_rate and options.estimand is Estimand.TASKS:
            return Validity.ANYTIME, warnings
        if is_unfinished or is_unplanned:
            return Validity.NONE, warnings
    if is_planned:
        return Validity.GROUP_SEQUENTIAL, warnings
    return Validity.FIXED_SAMPLE, (*([EXTENDED] if is_extended else []), *warnings)


def _cancelled(reader: LedgerReader, side: Side, runs: CombinedRuns) -> Iterator[str]:
    """Yield sentences about the cancelled slots of a side.

    A user who had seen results may have chosen the slots by them.
    """
    for root_id in runs.roots:
        all_cancelled = reader.cancelled(root_id)
        of_side = [group for group in all_cancelled if group.variant_id == side.variant_id]
        yield from cancelled_sentences(root_id, of_side)


def _was_extended(reader: LedgerReader, side: Side, runs: CombinedRuns) -> bool:
    """Return whether slots of a side were added to its run after it was created."""
    for root_id in runs.roots:
        for part in reader.run(root_id).parts:
            params = {
                "variant": side.variant_id,
                "run": root_id,
                "first": part.first_idx,
                "last": part.first_idx + part.slot_count - 1,
            }
            if part.kind == "extended" and next(query(reader.path, _EXTENDED_SQL, params)[1])[0]:
                return True
    return False


def only_whole(paired: Paired, clusters: Mapping[str, str | None] | None) -> Paired:
    """Leave out each task (or each cluster) that has an open or a cancelled slot.

    A confidence sequence assumes independent observations. The missing results of a task may depend
    on the results that are there, so a part of a task is not such an observation.
    """
    units = clusters or {}
    open_units = {
        units.get(left.task_id, left.task_id)
        for left in paired.left_out
        if any(reason in left.reason for reason in _OPEN)
    }
    is_whole = [units.get(task_id, task_id) not in open_units for task_id in paired.task_ids]
    if all(is_whole):
        return paired
    waiting = (
        LeftOut(task_id, number, "both", _TASK_NOT_FINISHED)
        for task_id, size, whole in zip(paired.task_ids, paired.sizes, is_whole, strict=True)
        for number in range(0 if whole else size)
    )
    return replace(
        paired,
        task_ids=tuple(compress(paired.task_ids, is_whole)),
        a=tuple(compress(paired.a, is_whole)),
        b=tuple(compress(paired.b, is_whole)),
        left_out=(*paired.left_out, *waiting),
    )


def largest_cluster(trials: Sequence[Trials], clusters: Mapping[str, str | None] | None) -> int:
    """Return the number of scheduled tasks in the largest cluster; 1 without clusters."""
    task_ids = {task_id for of_side in trials for task_id in of_side.by_task}
    if clusters is None or not task_ids:
        return 1
    return max(Counter(clusters[task_id] for task_id in task_ids).values())


def decide(compared: Compared, document: Comparison) -> Decision:
    """Return what a comparison shows.

    A difference is shown if its (corrected) p value is below 1 minus the confidence. In that case
    its interval, if there is one, does not contain 0.
    """
    verdict = conclusion(compared, document)
    return Decision(verdict, comparison_sentences.decision(compared, document, verdict))


def is_shown(compared: Compared, document: Comparison) -> bool:
    """Return whether any difference is shown."""
    test = compared.test
    return test is not None and test.p_decisive < document.level


def conclusion(compared: Compared, document: Comparison) -> Conclusion:
    """Return the conclusion for a comparison.

    If the metric has no better direction, or both sides hold the same trials, a shown difference is
    reported as `higher` or `lower`.
    """
    if compared.difference is None:
        return Conclusion.NOTHING_PAIRED
    if not is_shown(compared, document):
        return Conclusion.NOT_SHOWN
    is_higher = compared.difference.value > 0
    if compared.same_trials or document.lower_is_better is None:
        return Conclusion.HIGHER if is_higher else Conclusion.LOWER
    is_better = is_higher is not document.lower_is_better
    return Conclusion.BETTER if is_better else Conclusion.WORSE


def decide_equivalence(compared: Compared, document: Comparison, limit: float) -> Equivalence:
    """Return whether both sides are shown to differ by less than `limit`.

    An interval inside ±`limit` is the same as two one-sided tests, each at half of 1 minus the
    confidence (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15:657–680).
    """
    difference, verdict = compared.difference, Nearness.NOT_SHOWN
    if difference is None or compared.test is None:
        text = comparison_sentences.no_gate_test(compared)
        return Equivalence(limit, verdict, f"{text}.")
    if difference.bounds is not None:
        low, high = difference.bounds
        if -limit < low and high < limit:
            verdict = Nearness.EQUIVALENT
        elif low >= limit or high <= -limit:
            verdict = Nearness.DIFFERENT
    text = comparison_sentences.equivalence(compared, difference, document, limit, verdict)
    return Equivalence(limit, verdict, f"{text}.")


def decide_gates(
    comparisons: Sequence[Compared],
    samples: Sequence[Sample],
    document: Comparison,
    limits: Mapping[Gate, float],
) -> Iterator[GateResult]:
    """Yield the result of each gate for each comparison; without pairs, a gate is missed.

    `samples` has the sample of each comparison, and `limits` comes from `CompareOptions.gates`. The
    intervals are corrected for the whole family, so twenty treatments miss a gate by chance as
    rarely as one does.
    """
    for gate, limit in limits.items():
        for compared, sample in zip(comparisons, samples, strict=True):
            passed, text = _gate(gate, limit, compared, sample, document)
            text += comparison_sentences.gate_by_errors(
                passed, [(s.errors, _passes_rates(gate, limit, s)) for s in compared.sensitivity]
            )
            yield GateResult(gate.stored_name, limit, str(compared.b.side), passed, text)


def _gate(
    gate: Gate, limit: float, compared: Compared, sample: Sample, document: Comparison
) -> tuple[bool, str]:
    if gate is Gate.REQUIRE_EQUIVALENT:
        decided = decide_equivalence(compared, document, limit)
        return decided.verdict is Nearness.EQUIVALENT, decided.text.removesuffix(".")
    difference = compared.difference
    if difference is None or compared.test is None:
        return False, comparison_sentences.no_gate_test(compared)
    if gate is Gate.FAIL_IF_WORSE:
        is_shown = _is_shown_worse(limit, difference, sample, document)
        passed = not is_shown
    else:
        gain = difference.bounds
        if gain is not None and document.lower_is_better:
            gain = -gain[1], -gain[0]
        is_shown = passed = gain is not None and gain[0] > -limit
    return passed, comparison_sentences.gate(gate, limit, compared, difference, document, is_shown)


def _passes_rates(gate: Gate, limit: float, other: Sensitivity) -> bool | None:
    """Return whether a gate would be passed with errors counted in another way.

    Returns None if it cannot be decided. A pass rate without an interval shows nothing.
    """
    if other.verdict is None or other.difference is None:
        return None
    low, high = other.difference.bounds or (-math.inf, math.inf)
    if gate is Gate.FAIL_IF_WORSE:
        return high >= -limit
    is_not_worse = low > -limit
    return is_not_worse and (gate is Gate.REQUIRE_NOT_WORSE or high < limit)


def _is_shown_worse(
    limit: float, difference: Estimate, sample: Sample, document: Comparison
) -> bool:
    """Return whether B is shown to be worse than A by more than a limit.

    This is a test of the difference against the limit: the interval must lie beyond it. If nothing
    varies and there is no interval, the same test must reject a difference of the limit's size.
    """
    sign = 1 if document.lower_is_better else -1
    if difference.bounds is not None:
        nearest = min(sign * bound for bound in difference.bounds)
        return nearest > limit
    return sign * difference.value > limit and estimates.shows_beyond(sample, sign * limit)
