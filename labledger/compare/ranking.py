"""Rank sides that were all compared in pairs, with their tie groups.

Sides share the letter of a group where no difference between them is shown, at the confidence of
all comparisons together. `compare.compare` calls `rank`; `compare.wording.ranking_text` puts it in
words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from labledger.compare import decision, estimates
from labledger.compare.comparison_document import Compared, Comparison, Standing
from labledger.compare.estimates import Sample
from labledger.compare.side_trials import Side
from labledger.compare.statistics.tie_groups import letters, tie_groups


def rank(
    sides: Collection[Side],
    comparisons: Collection[Compared],
    document: Comparison,
    sample: Callable[[Side], Sample],
) -> tuple[Standing, ...]:
    """Return the sides, the best first, with the letters of their tie groups.

    Sides with higher values come first where it is not known which values are better, and sides
    without a value last. `sample` returns the sample of a side's own trials.
    """
    standings = [_standing(side, sample(side)) for side in sides]
    sign = 1 if document.lower_is_better else -1
    standings.sort(
        key=lambda standing: (
            standing.mean is None,
            sign * standing.mean.value if standing.mean else 0.0,
        )
    )
    shown = {
        frozenset({compared.a.side, compared.b.side})
        for compared in comparisons
        if decision.is_shown(compared, document)
    }
    ranked = [standing.side for standing in standings]
    groups = tie_groups(len(ranked), lambda i, j: frozenset({ranked[i], ranked[j]}) in shown)
    return tuple(
        replace(standing, groups=_letters_of(index, groups))
        for index, standing in enumerate(standings)
    )


def _standing(side: Side, sample: Sample) -> Standing:
    report = estimates.side_report(side, sample.a, sample)
    tasks, counted = len(sample.a), sum(map(len, sample.a))
    return Standing(side.run_id, side.variant_id, report.mean, tasks, counted)


def _letters_of(index: int, groups: Sequence[Collection[int]]) -> tuple[str, ...]:
    return tuple(letters(number) for number, group in enumerate(groups) if index in group)
