"""Rank sides that were all compared in pairs, with groups of which no two are shown to differ.

Not being shown to differ, at the confidence of all comparisons together, is not transitive: A and
B, and B and C, may be tied where A and C differ. So groups overlap, and two sides share the letter
of a group exactly where they are tied: a compact letter display (Piepho 2004, Journal of
Computational and Graphical Statistics 13:456–466).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import combinations

from labledger.compare import decision, estimates
from labledger.compare.comparison_document import Compared, Comparison, Standing
from labledger.compare.estimates import Sample
from labledger.compare.side_trials import Side


def tie_groups(count: int, differ: Callable[[int, int], bool]) -> list[tuple[int, ...]]:
    """Return groups of the sides 0 to `count` - 1 so that two share one exactly if they are tied.

    `differ` tells of two sides, the smaller number first, whether they are shown to differ. Each
    group is as large as it can be, none can be left out, and a side that differs from all others
    is a group of its own. There are at most as many groups as tied pairs and sides; listing all
    maximal groups, as Piepho's method may, can give exponentially many. Groups are ordered by their
    first sides.
    """
    tied = {pair for pair in combinations(range(count), 2) if not differ(*pair)}
    groups: list[tuple[int, ...]] = []
    uncovered = set(tied)
    for pair in combinations(range(count), 2):
        if pair in uncovered:
            group = _extended(pair, range(count), tied)
            groups.append(group)
            uncovered.difference_update(combinations(group, 2))
    groups = _without_redundant(groups)
    covered = {side for group in groups for side in group}
    groups += [(side,) for side in range(count) if side not in covered]
    return sorted(groups)


def _extended(
    pair: tuple[int, int], sides: Collection[int], tied: Collection[tuple[int, int]]
) -> tuple[int, ...]:
    """Return the group of two tied sides and, in their order, all others tied with the whole."""
    group = set(pair)
    for side in sides:
        if side not in group and all((min(side, o), max(side, o)) in tied for o in group):
            group.add(side)
    return tuple(sorted(group))


def _without_redundant(groups: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Leave out, from the last, each group whose pairs all share another one."""
    holders: dict[tuple[int, int], int] = {}
    for group in groups:
        for pair in combinations(group, 2):
            holders[pair] = holders.get(pair, 0) + 1
    kept = []
    for group in reversed(groups):
        pairs = list(combinations(group, 2))
        if all(holders[pair] > 1 for pair in pairs):
            for pair in pairs:
                holders[pair] -= 1
        else:
            kept.append(group)
    return kept[::-1]


def letters(index: int) -> str:
    """Return the name of a group by its number: a to z, then aa, ab, …"""
    name = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        name = chr(ord("a") + rest) + name
    return name


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
