"""Compute the estimates of one comparison from its tasks' trials.

This module chooses functions of `compare.statistics` by metric and estimand, and puts their results
into the types of the comparison document.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from labledger.compare.compare_options import CompareOptions, Estimand, Validity
from labledger.compare.comparison_document import (
    Counts,
    Detectable,
    Effect,
    LeftOutCount,
    SideReport,
    Significance,
    TaskRow,
)
from labledger.compare.pairs import Paired
from labledger.compare.sides import Side
from labledger.compare.statistics import (
    paired_means,
    paired_rates,
    planned_power,
    rates,
    samples,
    sign_flip_test,
    skewness,
    variance_components,
)
from labledger.compare.statistics.group_sequential import Boundary
from labledger.compare.statistics.rates import PassAt
from labledger.compare.statistics.samples import Estimate, Groups, Inference

if TYPE_CHECKING:
    from labledger.compare.statistics.samples import Array


@dataclass(frozen=True, slots=True)
class Sample:
    """The values that a comparison is computed from."""

    a: Groups
    """The values of A's trials, one sequence a task."""
    b: Groups
    """The values of B's trials, for the same tasks."""
    clusters: Sequence[str] | None
    """The cluster of each task if clusters are the sample; None if tasks are."""
    options: CompareOptions
    family: int
    """The number of comparisons that are corrected together, times the price of the look."""
    validity: Validity = Validity.FIXED_SAMPLE
    """The looks for which intervals and tests must hold."""
    largest_cluster: int = 1
    """The largest number of scheduled tasks in one cluster, for `Validity.ANYTIME`."""
    boundary: Boundary | None = None
    """The boundary of the planned look, for `Validity.GROUP_SEQUENTIAL`."""

    @property
    def confidence(self) -> float:
        """The confidence of this comparison's interval, by Bonferroni's correction.

        With it, the intervals of the whole family hold together, at all planned looks, with the
        confidence of the options.
        """
        level = (1 - self.options.confidence) / max(1, self.family)
        return 1 - (level if self.boundary is None else self.boundary.level(level))

    @property
    def side_confidence(self) -> float:
        """The confidence of a single side's interval, which then holds at all planned looks."""
        confidence = self.options.confidence
        return confidence if self.boundary is None else 1 - self.boundary.level(1 - confidence)

    @property
    def is_for_few_looks(self) -> bool:
        """Whether the usual intervals and tests are used, at one look or at planned ones."""
        return self.validity in (Validity.FIXED_SAMPLE, Validity.GROUP_SEQUENTIAL)

    @property
    def is_suite(self) -> bool:
        return self.options.estimand is Estimand.SUITE

    @property
    def is_replicated(self) -> bool:
        """Whether some task has more than one trial on a side."""
        return any(len(group) > 1 for groups in (self.a, self.b) for group in groups)

    @property
    def effective_clusters(self) -> float | None:
        """The number of equal clusters that would be as informative; None without clusters."""
        if self.clusters is None or not self.clusters:
            return None
        return samples.effective_units(list(Counter(self.clusters).values()))

    @property
    def differences(self) -> list[float]:
        """The difference of each task's means, B minus A."""
        return samples.task_differences(self.a, self.b)


def inference(sample: Sample) -> Inference | None:
    """Return the difference with its interval and test.

    Returns None if no trials are paired, for a fixed suite without replications, which has no
    sample, and for unfinished runs for which no method holds. An interval contains 0 if and only if
    the corrected p value shows no difference.
    """
    tested = _tested(sample)
    if tested is None or tested.estimate.bounds is None:
        return tested
    value, (low, high) = tested.estimate.value, tested.estimate.bounds
    low, high = sign_flip_test.bounds_agreeing_with_p(
        value, low, high, is_shown=_is_shown(tested, sample)
    )
    return replace(tested, estimate=Estimate(value, low, high))


def shows_beyond(sample: Sample, limit: float) -> bool:
    """Return whether the test shows that a metric's difference is not `limit`.

    Gates use this function if nothing varies, because there is no interval then.
    """
    shifted = [[value - limit for value in group] for group in sample.b]
    tested = _tested(replace(sample, b=shifted))
    return tested is not None and _is_shown(tested, sample)


def _is_shown(tested: Inference, sample: Sample) -> bool:
    """Return whether the p value, corrected for the family, is below 1 minus the confidence."""
    return corrected_p(tested.p, sample.family) < 1 - sample.options.confidence


def corrected_p(p: float, family: int) -> float:
    """Apply Bonferroni's correction for `family` comparisons to a p value."""
    return min(1.0, p * family) if family > 1 else p


def _tested(sample: Sample) -> Inference | None:
    """Return the result of `inference`, with the p value for all planned looks."""
    tested, boundary = _inference(sample), sample.boundary
    if tested is None or boundary is None:
        return tested
    name = f"{tested.test}, look {boundary.number} of {len(boundary.fractions)}"
    return replace(tested, p=boundary.p(tested.p), test=name)


def _inference(sample: Sample) -> Inference | None:
    """Return the result of `inference` before its bounds are made to agree with its p value."""
    if not sample.a or (sample.is_suite and not sample.is_replicated):
        return None
    if sample.validity is Validity.NONE:
        return None
    a, b, confidence = sample.a, sample.b, sample.confidence
    if sample.validity is Validity.ANYTIME:
        return paired_means.at_every_look(
            sample.differences, confidence, sample.clusters, sample.largest_cluster
        )
    if sample.is_suite:
        of_suite = paired_rates.of_suite if sample.options.is_rate else paired_means.of_suite
        return of_suite(a, b, confidence)
    of_tasks = paired_rates.of_tasks if sample.options.is_rate else paired_means.of_tasks
    return of_tasks(a, b, confidence, sample.clusters)


def difference(sample: Sample) -> Estimate | None:
    """Return the difference alone; without bounds where `inference` returns None."""
    tested = inference(sample)
    if tested is not None:
        return tested.estimate
    return Estimate(samples.mean(sample.differences), None, None) if sample.a else None


def tested(sample: Sample) -> tuple[Estimate | None, Significance | None]:
    """Return the difference, and its test if there is one."""
    result, family = inference(sample), sample.family
    if result is None:
        return difference(sample), None
    adjusted = corrected_p(result.p, family) if family > 1 else None
    return result.estimate, Significance(result.test, result.p, adjusted)


def side_report(side: Side, groups: Groups, sample: Sample) -> SideReport:
    """Return one side's mean over the compared tasks, with an interval of its own.

    Each task has the same weight.
    """
    return SideReport(
        side.run_id,
        side.variant_id,
        _mean(groups, sample) if groups else None,
        _pass_at(groups, sample) if groups and sample.options.is_rate else (),
        trials=sum(map(len, groups)),
    )


def _pass_at(groups: Groups, sample: Sample) -> tuple[PassAt, ...]:
    most = max(map(len, groups))
    all_k = sample.options.pass_at or ((most,) if most > 1 else ())
    confidence, clusters = sample.side_confidence, sample.clusters
    estimates = [rates.pass_at(groups, k, confidence, clusters) for k in all_k]
    if sample.is_suite:
        estimates = [estimate.without_bounds() for estimate in estimates]
    return tuple(estimates)


def pass_at_differences(a: SideReport, b: SideReport, sample: Sample) -> tuple[PassAt, ...]:
    """Return the differences of pass@k and pass^k for every k that both sides report.

    There are no bounds for a fixed suite without replications, and for runs that can grow.
    """
    shared = {p.k for p in a.pass_at if p.tasks} & {p.k for p in b.pass_at if p.tasks}
    estimates = [
        rates.pass_at_difference(
            sample.a, sample.b, k, sample.confidence, sample.clusters, is_suite=sample.is_suite
        )
        for k in sorted(shared)
    ]
    is_untested = sample.is_suite and not sample.is_replicated
    if is_untested or not sample.is_for_few_looks:
        estimates = [estimate.without_bounds() for estimate in estimates]
    return tuple(estimate for estimate in estimates if estimate.tasks)


def _mean(groups: Groups, sample: Sample) -> Estimate:
    confidence, clusters = sample.side_confidence, sample.clusters
    if sample.validity is Validity.ANYTIME:
        # A rate from 0 to 1, as a number from -1 to 1.
        spread = [2 * mean - 1 for mean in samples.task_means(groups)]
        return paired_means.at_every_look(
            spread, confidence, clusters, sample.largest_cluster
        ).estimate.shifted(0.5, 0.5)
    if not sample.options.is_rate:
        if sample.is_suite:
            return paired_means.mean_of_suite(groups, confidence)
        return paired_means.mean_of_tasks(groups, confidence, clusters)
    if not sample.is_suite:
        return rates.rate(groups, confidence, clusters)
    if sample.is_replicated:
        return rates.suite_rate(groups, confidence)
    return Estimate(samples.mean(samples.task_means(groups)), None, None)


def counts(sample: Sample) -> Counts | None:
    """Count the tasks that each side passed; None for metrics and with replications."""
    if not sample.options.is_rate or sample.is_replicated:
        return None
    passed = [(a[0] > 0, b[0] > 0) for a, b in zip(sample.a, sample.b, strict=True)]
    return Counts(
        both=passed.count((True, True)),
        only_a=passed.count((True, False)),
        only_b=passed.count((False, True)),
        neither=passed.count((False, False)),
    )


def effect(sample: Sample) -> Effect:
    """Return the odds ratio of the pairs that differ, or a metric's standardized difference.

    The odds ratio is McNemar's conditional estimate (Agresti 2013, Categorical Data Analysis,
    chapter 11). A task's pairs combine each trial of A with each trial of B, and each task has the
    same weight. The ratio is None if all pairs that differ go the same way.
    """
    if not sample.options.is_rate:
        return Effect("d_z", paired_means.standardized(sample.differences))
    means = samples.task_means(sample.a), samples.task_means(sample.b)
    pairs = list(zip(*means, strict=True))
    gained = math.fsum(b * (1 - a) for a, b in pairs)
    lost = math.fsum(a * (1 - b) for a, b in pairs)
    return Effect("odds_ratio", gained / lost if gained and lost else None)


def detectable(sample: Sample) -> Detectable | None:
    """Return the smallest difference that could have been shown at this comparison's confidence.

    If tasks are the sample, the assumed share of pairs that differ is the observed one, or the
    difference itself if that is larger. For a fixed suite, replications are assumed to vary as
    observed, or as much as the difference requires. Returns None if nothing varies, and for runs
    that can grow.
    """
    if not sample.is_for_few_looks:
        return None
    if sample.is_suite:
        return _suite_detectable(sample)
    confidence = sample.confidence
    if not sample.options.is_rate:
        units = len(set(sample.clusters) if sample.clusters is not None else sample.a)
        if not sign_flip_test.can_reject(units, confidence):
            return _detectable(None, possible=False)
        error, _, degrees = samples.units_deviation(_array(sample.differences), sample.clusters)
        skewed = sign_flip_test.skewness_of(
            sign_flip_test.sampled_units(sample.differences, sample.clusters)
        )
        least = planned_power.detectable_shift(error, degrees, confidence)
        if least is None:
            return None
        level = skewness.uncorrected_level(skewed.larger, 1 - confidence)
        if not sign_flip_test.can_reject_at(level, units):
            return _detectable(None)
        return _detectable(least + error * skewness.more_errors(skewed.larger, confidence, degrees))
    trials = [list(map(len, groups)) for groups in (sample.a, sample.b)]
    if not paired_rates.can_show(trials[0], trials[1], confidence, sample.clusters):
        return _detectable(None, possible=False)
    if sample.clusters is not None:
        return _detectable(_clusters_detectable(sample, sample.clusters))
    if not planned_power.rate_can_be_shown(len(sample.a), confidence):
        return _detectable(None)
    pairs = paired_rates.discordance(sample.a, sample.b)
    observed = pairs.gained + pairs.lost
    rate_a, rate_b = (samples.mean(samples.task_means(side)) for side in (sample.a, sample.b))
    size = pairs.size(confidence) + 1
    unmoved = planned_power.with_more_pairs(
        max(0.0, observed - variance_components.explained_by(rate_a, rate_b)),
        size,
        is_replicated=sample.is_replicated,
    )
    spread = variance_components.spread_of(sample.a, sample.b)
    rate = variance_components.rate_with_spread(rate_a, spread)
    least = planned_power.detectable_rate(size, unmoved, confidence, rate)
    discordant = None if least is None else planned_power.discordant_at(least, unmoved, rate)
    return Detectable(least, planned_power.POWER, discordant, assumed=discordant != observed)


def _detectable(least: float | None, *, possible: bool = True) -> Detectable:
    return Detectable(least, planned_power.POWER, None, assumed=False, possible=possible)


def _clusters_detectable(sample: Sample, clusters: Sequence[str]) -> float | None:
    """Return the smallest difference of pass rates that clusters would usually show.

    Clusters are assumed to differ as observed. If they do not differ at all, each cluster counts as
    one pair. Returns None if no difference is large enough.
    """
    error, _, degrees = samples.units_deviation(_array(sample.differences), clusters)
    if not error:
        count = float(len(set(clusters)))
        return planned_power.detectable_rate(count, 0.0, sample.confidence)
    least = planned_power.detectable_shift(error, degrees, sample.confidence)
    return None if least is None or least > 1 else least


def _suite_detectable(sample: Sample) -> Detectable | None:
    if not sample.is_replicated:
        return _detectable(None, possible=False)
    if not sample.options.is_rate:
        error, degrees = paired_means.suite_deviation(sample.a, sample.b)
        least = planned_power.detectable_shift(error, degrees, sample.confidence)
        return None if least is None else _detectable(least)
    least = planned_power.suite_detectable(sample.a, sample.b, sample.confidence)
    if least is not None:
        return _detectable(least)
    none = [[0.0] * len(group) for group in sample.a]
    every = [[1.0] * len(group) for group in sample.b]
    largest = paired_rates.of_suite(none, every, sample.confidence)
    return _detectable(None, possible=largest.p < 1 - sample.confidence)


def _array(values: Sequence[float]) -> Array:
    import numpy as np

    return np.array(values, dtype=np.float64)


def left_out_counts(paired: Paired) -> tuple[LeftOutCount, ...]:
    """Return the reasons why slots are left out, the most frequent first."""
    tally = Counter((left.side, left.reason) for left in paired.left_out)
    ranked = sorted(tally.items(), key=lambda item: (-item[1], item[0]))
    return tuple(LeftOutCount(side, reason, count) for (side, reason), count in ranked)


def task_rows(paired: Paired) -> list[TaskRow]:
    """Return a row for each task of either side, by task id."""
    reasons: dict[str, dict[str, None]] = {}
    for left in paired.left_out:
        reasons.setdefault(left.task_id, {})[f"{left.side}: {left.reason}"] = None
    means = samples.task_means(paired.a), samples.task_means(paired.b)
    rows = [
        TaskRow(task_id, pairs, a, b, tuple(reasons.pop(task_id, ())))
        for task_id, pairs, a, b in zip(paired.task_ids, paired.sizes, *means, strict=True)
    ]
    rows += (TaskRow(name, 0, None, None, tuple(texts)) for name, texts in reasons.items())
    return sorted(rows, key=attrgetter("task_id"))
