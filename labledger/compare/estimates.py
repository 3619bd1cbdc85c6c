"""The figures of one comparison, from its tasks' trials, for the estimand that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labledger.compare import paired_means, paired_rates, power, rates
from labledger.compare.comparison_document import Counts, Detectable, Effect, SideReport
from labledger.compare.options import CompareOptions, Estimand
from labledger.compare.pairs import Paired, Side
from labledger.compare.rates import Estimate, Groups, Inference


@dataclass(frozen=True, slots=True)
class Figures:
    """What a comparison is computed from."""

    a: Groups
    """The values of A's trials, a list a task; so `b`."""
    b: Groups
    clusters: Sequence[str] | None
    """The cluster of each task, where tasks are a sample and the dataset names one."""
    options: CompareOptions
    confidence: float
    """Of this comparison's interval: of all of the family's together, it is that asked for."""

    @classmethod
    def of(
        cls, paired: Paired, clusters: Sequence[str] | None, options: CompareOptions, family: int
    ) -> Figures:
        """The figures' data, one of `family` comparisons (Bonferroni's correction)."""
        confidence = 1 - (1 - options.confidence) / max(1, family)
        return cls(paired.a, paired.b, clusters, options, confidence)

    @property
    def is_suite(self) -> bool:
        return self.options.estimand is Estimand.SUITE

    @property
    def is_replicated(self) -> bool:
        """Whether some task was tried more than once on a side."""
        return any(len(group) > 1 for groups in (self.a, self.b) for group in groups)

    @property
    def differences(self) -> list[float]:
        """Of each task's means, B less A."""
        pairs = zip(rates.task_means(self.a), rates.task_means(self.b), strict=True)
        return [other - one for one, other in pairs]


def inference(figures: Figures) -> Inference | None:
    """The difference with its interval and test.

    None where there is nothing to compare, or nothing to judge it by: of this very suite without
    replications.
    """
    if not figures.a or (figures.is_suite and not figures.is_replicated):
        return None
    a, b, confidence = figures.a, figures.b, figures.confidence
    if figures.is_suite:
        of_suite = paired_rates.of_suite if figures.options.is_rate else paired_means.of_suite
        return of_suite(a, b, confidence)
    of_tasks = paired_rates.of_tasks if figures.options.is_rate else paired_means.of_tasks
    return of_tasks(a, b, confidence, figures.clusters)


def difference(figures: Figures) -> Estimate | None:
    """The difference alone: without bounds where there is nothing to judge it by."""
    found = inference(figures)
    if found is not None:
        return found.estimate
    return Estimate(rates.mean(figures.differences), None, None) if figures.a else None


def side_report(side: Side, groups: Groups, figures: Figures) -> SideReport:
    """One side's mean over the tasks compared, each weighing alike; its interval is its own."""
    options = figures.options
    if not groups:
        return SideReport(side.run_id, side.variant_id, None)
    trials = sum(map(len, groups))
    if not options.is_rate:
        found = _mean(groups, figures)
        return SideReport(side.run_id, side.variant_id, found, trials=trials)
    most = max(map(len, groups))
    wanted = options.pass_at or ((most,) if most > 1 else ())
    pass_at = tuple(rates.pass_at(groups, k, options.confidence) for k in wanted)
    if figures.is_suite:
        pass_at = tuple(one.without_bounds() for one in pass_at)
    return SideReport(side.run_id, side.variant_id, _rate(groups, figures), pass_at, trials=trials)


def _mean(groups: Groups, figures: Figures) -> Estimate:
    if figures.is_suite:
        return paired_means.mean_of_suite(groups, figures.options.confidence)
    return paired_means.mean_of_tasks(groups, figures.options.confidence, figures.clusters)


def _rate(groups: Groups, figures: Figures) -> Estimate:
    confidence = figures.options.confidence
    if not figures.is_suite:
        return rates.rate(groups, confidence, figures.clusters)
    if figures.is_replicated:
        return rates.suite_rate(groups, confidence)
    return Estimate(rates.mean(rates.task_means(groups)), None, None)


def counts(figures: Figures) -> Counts | None:
    """Tasks by who passed, where each was tried once on each side; else None."""
    if not figures.options.is_rate or figures.is_replicated:
        return None
    found = [(a[0] > 0, b[0] > 0) for a, b in zip(figures.a, figures.b, strict=True)]
    return Counts(
        both=found.count((True, True)),
        only_a=found.count((True, False)),
        only_b=found.count((False, True)),
        neither=found.count((False, False)),
    )


def effect(figures: Figures) -> Effect:
    """The odds ratio of the pairs that differ, or the standardized difference of a metric.

    The odds ratio is McNemar's conditional estimate (Agresti 2013, Categorical Data Analysis,
    chapter 11), with replications over all pairs of a trial of A and one of B of the same task,
    each task weighing alike. None where all that differ go one way, whichever way that is.
    """
    if not figures.options.is_rate:
        return Effect("d_z", paired_means.standardized(figures.differences))
    pairs = list(zip(rates.task_means(figures.a), rates.task_means(figures.b), strict=True))
    gained = math.fsum(b * (1 - a) for a, b in pairs)
    lost = math.fsum(a * (1 - b) for a, b in pairs)
    return Effect("odds_ratio", gained / lost if gained and lost else None)


def detectable(figures: Figures) -> Detectable | None:
    """The smallest difference that could have been shown, at the level of this comparison.

    For tasks as a sample the share of pairs that differ is the observed one, or the difference
    itself where that is more; for tasks as given, replications scatter as they were seen to.
    """
    if figures.is_suite:
        return Detectable(_suite_detectable(figures), power.POWER, None, assumed=False)
    confidence = figures.confidence
    units = len(set(figures.clusters) if figures.clusters is not None else figures.a)
    if not figures.options.is_rate:
        differences = figures.differences
        possible = power.mean_can_be_shown(units, confidence)
        error, _, degrees = rates.units_deviation(_array(differences), figures.clusters)
        least = power.detectable_shift(error, degrees, confidence)
        return Detectable(least if possible else None, power.POWER, None, assumed=False)
    found = paired_rates.discordance(figures.a, figures.b, figures.clusters)
    size, seen = found.size(confidence) + 1, found.gained + found.lost
    least = None
    if power.rate_can_be_shown(units, confidence):
        least = power.detectable_rate(size, seen, confidence)
    supposed = None if least is None else max(seen, least)
    return Detectable(least, power.POWER, supposed, assumed=supposed != seen)


def _suite_detectable(figures: Figures) -> float | None:
    if not figures.is_replicated:
        return None
    if not figures.options.is_rate:
        error, degrees = paired_means.suite_deviation(figures.a, figures.b)
        return power.detectable_shift(error, degrees, figures.confidence)
    variance = paired_rates.strata(figures.a, figures.b).variance(0.0)
    return power.detectable_shift(math.sqrt(variance), math.inf, figures.confidence)


def _array(values: Sequence[float]) -> rates.Array:
    import numpy as np

    return np.array(values, dtype=np.float64)
