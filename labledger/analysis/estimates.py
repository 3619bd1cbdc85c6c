"""The figures of one comparison, from its pairs by task."""

from __future__ import annotations

from collections.abc import Sequence

from labledger.analysis import paired_tests, power, rates
from labledger.analysis.comparison import Counts, Detectable, Effect, SideReport, Significance
from labledger.analysis.pairs import Pair, Side
from labledger.analysis.question import CompareOptions
from labledger.analysis.rates import Estimate, Groups

MCNEMAR = "McNemar's exact test"
SIGN_FLIP = "sign-flip permutation test over tasks"

Tasks = Sequence[Sequence[Pair]]
"""The pairs of each task; no list is empty."""


def side_report(side: Side, groups: Groups, options: CompareOptions) -> SideReport:
    """One side's values, a list a task."""
    if not groups:
        return SideReport(side.run_id, side.variant_id, None)
    if not options.is_rate:
        means = rates.task_means(groups)
        found = paired_tests.mean_difference(means, options.confidence, options.seed)
        return SideReport(side.run_id, side.variant_id, found)
    most = max(map(len, groups))
    wanted = options.pass_at or ((most,) if most > 1 else ())
    return SideReport(
        side.run_id,
        side.variant_id,
        rates.rate(groups, options.confidence),
        tuple(rates.pass_at(groups, k, options.confidence) for k in wanted),
    )


def difference(tasks: Tasks, options: CompareOptions) -> Estimate | None:
    """The mean over tasks of B less A, with its interval; None where there are no tasks."""
    if not tasks:
        return None
    groups = _differences(tasks)
    if options.is_rate:
        return paired_tests.rate_difference(groups, options.confidence)
    means = rates.task_means(groups)
    return paired_tests.mean_difference(means, options.confidence, options.seed)


def significance(tasks: Tasks, options: CompareOptions) -> Significance:
    """McNemar's test where pairs are independent and yes or no; else one over the tasks."""
    if options.is_rate and all(len(pairs) == 1 for pairs in tasks):
        found = counts(tasks)
        return Significance(MCNEMAR, paired_tests.mcnemar(found.only_b, found.only_a), None)
    means = rates.task_means(_differences(tasks))
    return Significance(SIGN_FLIP, paired_tests.sign_flip_test(means, options.seed), None)


def counts(tasks: Tasks) -> Counts:
    """Pairs by who passed."""
    found = [(p.a > 0, p.b > 0) for pairs in tasks for p in pairs]
    return Counts(
        both=found.count((True, True)),
        only_a=found.count((True, False)),
        only_b=found.count((False, True)),
        neither=found.count((False, False)),
    )


def effect(tasks: Tasks, options: CompareOptions) -> Effect:
    """The odds ratio of the pairs that differ, or the standardized difference of a metric.

    The odds ratio is McNemar's conditional estimate (Agresti 2013, Categorical Data Analysis,
    chapter 11); None where no pair was passed by A alone.
    """
    if options.is_rate:
        found = counts(tasks)
        return Effect("odds_ratio", found.only_b / found.only_a if found.only_a else None)
    return Effect("d_z", paired_tests.standardized(rates.task_means(_differences(tasks))))


def detectable(tasks: Tasks, options: CompareOptions, family: int) -> Detectable:
    """The smallest difference that could have been shown, one of `family` comparisons.

    At the strictest level that Holm's correction may ask for. The share of pairs that differ is the
    observed one, or the difference itself where that is more.
    """
    confidence = 1 - (1 - options.confidence) / family
    groups = _differences(tasks)
    possible = power.can_be_shown(len(tasks), confidence)
    if not options.is_rate:
        means = rates.task_means(groups)
        least = power.detectable_mean(means, confidence) if possible else None
        return Detectable(least, power.POWER, None, assumed=False)
    size, gained, lost = paired_tests.effective_counts(groups, options.confidence)
    seen = (gained + lost) / size
    least = power.detectable_rate(size, seen, confidence) if possible else None
    supposed = None if least is None else max(seen, least)
    return Detectable(least, power.POWER, supposed, assumed=supposed != seen)


def _differences(tasks: Tasks) -> list[list[float]]:
    return [[p.b - p.a for p in pairs] for pairs in tasks]
