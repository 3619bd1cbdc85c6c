"""Count the figures of each output, with labledger's own statistics and decisions.

`SIMULATIONS` has a function for each output. A further output, such as a planned extension, needs
an entry there, cells in `designs.grid`, and words in `page`. Figures are named
`coverage…` (nominal .95), `type_1` (.05), `gate…` (.025), `power…` and `share…` (none).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.statistics_table import populations
from bench.statistics_table.designs import Cell
from bench.statistics_table.growth import (
    more_tasks,
    more_trials,
    plan,
    plan_effect,
    planned_tasks,
    planned_trials,
    suite_plan,
)
from bench.statistics_table.populations import Array, Chance, Trials
from bench.statistics_table.tallies import Tally
from labledger.cli.pass_rate_gates import PassRateGate as LeastRate
from labledger.cli.pass_rate_gates import missed_gates
from labledger.compare import decision, estimates
from labledger.compare.compare_options import CompareOptions, Estimand, Gate
from labledger.compare.comparison_document import Compared, Comparison, Conclusion, SideReport
from labledger.compare.estimates import Sample
from labledger.compare.statistics import rates, skewness
from labledger.compare.statistics.samples import Estimate
from labledger.records.pass_rate import PassCounts

LIMITS = (0.05, 0.2)
"""Limits of pass-rate gates, other than 0."""
_GATES = (Gate.FAIL_IF_WORSE, Gate.REQUIRE_NOT_WORSE, Gate.REQUIRE_EQUIVALENT)


@dataclass(frozen=True, slots=True)
class Decided:
    """The estimates, conclusions and gates of one family of comparisons."""

    differences: Sequence[Estimate | None]
    conclusions: Sequence[Conclusion]
    passed: Mapping[Gate, bool]
    """Whether all comparisons pass a gate."""
    errs_by_passing: Mapping[Gate, bool]
    """Whether any comparison passes a gate."""


def decide(samples: Sequence[Sample], limit: float) -> Decided:
    """Return the decisions of `compare` for a family, with gates at a limit; one gate takes 0."""
    options = samples[0].options
    document = Comparison(
        metric=options.metric,
        lower_is_better=False if options.is_rate else options.lower_is_better,
        confidence=options.confidence,
        errors=options.errors.value,
        seed=0,
        comparisons=(),
        gates=(),
        estimand=options.estimand.value,
        cluster=None,
        family=len(samples),
    )
    compared = [_compared(sample) for sample in samples]
    passed, passed_by_any = {}, {}
    for gate in _GATES if limit else _GATES[:1]:
        results = decision.decide_gates(compared, samples, document, {gate: limit})
        have_passed = [result.passed for result in results]
        passed[gate], passed_by_any[gate] = all(have_passed), any(have_passed)
    conclusions = [decision.conclusion(comparison, document) for comparison in compared]
    differences = [comparison.difference for comparison in compared]
    return Decided(differences, conclusions, passed, passed_by_any)


def _compared(sample: Sample) -> Compared:
    difference, test = estimates.tested(sample)
    sides = (SideReport("run", name, None) for name in "ab")
    return Compared(
        a=next(sides),
        b=next(sides),
        tasks=len(sample.a),
        pairs=len(sample.a),
        replications=1,
        counts=None,
        difference=difference,
        test=test,
        effect=None,
        detectable=None,
        left_out=(),
        by_task=(),
        validity=sample.validity.value,
    )


def count_scenario(
    tally: Tally, samples: Sequence[Sample], truth: float, limit: float, kind: str, name: str
) -> None:
    """Count the decisions for a family where B is worse by `-truth`, in the metric's direction.

    `kind` is `null` (no difference), `limit` (as large as the gates' limit) or `effect`.
    """
    decided = decide(samples, 0.0 if kind == "null" else limit)
    if all(item is not None and item.bounds is not None for item in decided.differences):
        tally.add(
            f"coverage_{name}",
            all(_holds(item, truth) for item in decided.differences if item is not None),
        )
    if kind == "null":
        tally.add("type_1", any(item.is_difference for item in decided.conclusions))
        tally.add("gate_fail_0", not decided.passed[Gate.FAIL_IF_WORSE])
    elif kind == "limit":
        tally.add(f"gate_fail_{name}", not decided.passed[Gate.FAIL_IF_WORSE])
        for gate in _GATES[1:]:
            short = gate.value.removeprefix("require_")
            tally.add(f"gate_{short}_{name}", decided.errs_by_passing[gate])
    else:
        tally.add("power", all(item is Conclusion.WORSE for item in decided.conclusions))


def _holds(estimate: Estimate, truth: float) -> bool:
    return (
        estimate.bounds is not None
        and estimate.bounds[0] - 1e-9 <= truth <= estimate.bounds[1] + 1e-9
    )


# -- pass rates


RATE = CompareOptions()
SUITE = CompareOptions(estimand=Estimand.SUITE)
Population = Callable[[Chance, Cell], tuple[Array, Array]]
"""Draw the rates of two sides' tasks, with one mean."""


def _of_tasks(chance: Chance, cell: Cell) -> tuple[Array, Array]:
    return populations.task_rates(chance, cell.rate, cell.tasks)


def scenarios(cell: Cell, limits: Sequence[float] = LIMITS) -> Iterator[tuple[str, str, float]]:
    """Yield the kind, the name and the difference of each scenario."""
    yield "null", "0", 0.0
    yield from (("limit", f"{100 * limit:g}", limit) for limit in limits)
    yield "effect", "d", populations.effect_of(cell.tasks)


def compare_rates(
    cell: Cell,
    draw: Population,
    options: CompareOptions = RATE,
    clusters: Sequence[str] | None = None,
    family: int = 1,
) -> Tally:
    """Count the decisions of a baseline with each of some treatments."""
    tally, chance = Tally(), cell.chance()
    for _ in range(cell.draws):
        for kind, name, difference in scenarios(cell):
            samples = []
            all_rates = [draw(chance, cell) for _ in range(family)]
            moved = [populations.sides(a, b, cell.rate, difference) for a, b in all_rates]
            a = _trials(chance, cell, moved[0][0])
            for _, rates_b in moved:
                b = _trials(chance, cell, rates_b)
                if options is SUITE and not _is_replicated(a, b):
                    b[0] = b[0] * 2
                samples.append(Sample(a, b, clusters, options, family))
            count_scenario(tally, samples, -difference, difference, kind, name)
    return tally


def _trials(chance: Chance, cell: Cell, of_side: Array) -> Trials:
    return populations.trials(chance, of_side, cell.replications, is_even=cell.is_even)


def _is_replicated(a: Trials, b: Trials) -> bool:
    return any(len(group) > 1 for side in (a, b) for group in side)


def pair(cell: Cell) -> Tally:
    """Count a pair's decisions for tasks like these."""
    return compare_rates(cell, _of_tasks)


def family(cell: Cell) -> Tally:
    """Count the decisions for a baseline and several treatments."""
    count = int(cell.output.removeprefix("family"))
    tally, chance = Tally(), cell.chance()
    for _ in range(cell.draws):
        for kind, name, difference in scenarios(cell, LIMITS[:1]):
            a, first = populations.task_rates(chance, cell.rate, cell.tasks)
            others = [_redrawn(chance, cell, a) for _ in range(count - 1)]
            moved = [populations.sides(a, b, cell.rate, difference) for b in (first, *others)]
            trials_a = _trials(chance, cell, moved[0][0])
            all_b = [_trials(chance, cell, b) for _, b in moved]
            samples = [Sample(trials_a, b, None, RATE, count) for b in all_b]
            count_scenario(tally, samples, -difference, difference, kind, name)
    return tally


def _redrawn(chance: Chance, cell: Cell, a: Array) -> Array:
    """Return the rates of a further treatment: half of the tasks have the baseline's."""
    import numpy as np

    _, own_rates = populations.task_rates(chance, cell.rate, cell.tasks)
    return np.where(chance.random(cell.tasks) < 0.5, a, own_rates)


def suite(cell: Cell) -> Tally:
    """Count a pair's decisions for exactly these tasks."""
    a, b = populations.suite_rates(cell.chance("suite"), cell.rate, cell.tasks)
    return compare_rates(cell, lambda *_: (a, b), SUITE)


def clusters(cell: Cell) -> Tally:
    """Count a pair's decisions where clusters of tasks are the sample."""
    names = populations.cluster_names(cell.tasks)

    def draw(chance: Chance, cell: Cell) -> tuple[Array, Array]:
        alike = cell.output == "clusters-alike"
        return populations.cluster_rates(chance, cell.rate, names, alike=alike)

    return compare_rates(cell, draw, RATE, names.astype(str).tolist())


# -- single variants


def rate(cell: Cell) -> Tally:
    """Count how often the intervals of one variant hold its rate, and `--fail-under`."""
    names = populations.cluster_names(cell.tasks) if cell.output == "rate-clusters" else None
    named = None if names is None else names.astype(str).tolist()
    fixed, _ = populations.suite_rates(cell.chance("suite"), cell.rate, cell.tasks)
    tally, chance = Tally(), cell.chance()
    for _ in range(cell.draws):
        if names is None:
            drawn, _ = populations.task_rates(chance, cell.rate, cell.tasks)
        else:
            drawn, _ = populations.cluster_rates(chance, cell.rate, names, alike=True)
        groups = _trials(chance, cell, drawn)
        tally.add_interval("coverage_compare", rates.rate(groups, 0.95, named), cell.rate)
        tally.add_interval("coverage_outcomes", rates.pooled_rate(groups, 0.95, named), cell.rate)
        counts = PassCounts(
            passed=round(sum(map(sum, groups))),
            not_passed=round(sum(len(group) - sum(group) for group in groups)),
        )
        for name, limit in (("at_limit", cell.rate), ("10_above", max(0.0, cell.rate - 0.1))):
            missed = missed_gates([LeastRate(None, limit)], {"b": counts})
            tally.add(f"share_under_{name}", bool(missed))
        if names is None and cell.replications > 1:
            groups = _trials(chance, cell, fixed)
            if any(len(group) > 1 for group in groups):
                tally.add_interval("coverage_suite", rates.suite_rate(groups, 0.95), cell.rate)
    return tally


# -- pass@k


def pass_at(cell: Cell) -> Tally:
    """Count how often intervals of pass@k and pass^k hold, of a variant and of differences."""
    k = int(cell.output.rpartition("@")[2])
    is_suite = cell.output.startswith("suite")
    tally, chance = Tally(), cell.chance()
    fixed = populations.suite_rates(cell.chance("suite"), cell.rate, cell.tasks)
    effects = (("0", 0.0), ("d", populations.effect_of(cell.tasks)))
    population = populations.quantiles(cell.rate)
    whole = {
        name: _pass_at_of(populations.sides(population, population, cell.rate, difference), k)
        for name, difference in effects
    }
    for _ in range(cell.draws):
        for name, difference in effects:
            drawn = fixed if is_suite else populations.task_rates(chance, cell.rate, cell.tasks)
            moved = populations.sides(*drawn, cell.rate, difference)
            a, b = (_trials(chance, cell, side) for side in moved)
            used = [min(len(x), len(y)) >= k for x, y in zip(a, b, strict=True)]
            if not any(used):
                continue
            truth = _pass_at_of([side[used] for side in moved], k) if is_suite else whole[name]
            intervals = rates.pass_at_difference(a, b, k, 0.95, is_suite=is_suite)
            pairs = zip((intervals.any, intervals.all), truth, ("any", "all"), strict=True)
            for estimate, (true_a, true_b), kind in pairs:
                tally.add_interval(f"coverage_{kind}_{name}", estimate, true_b - true_a)
                if estimate is not None and estimate.bounds is not None and name == "d":
                    tally.add(f"power_{kind}", estimate.bounds[1] < 0)
            if not is_suite and name == "0":
                single = rates.pass_at(a, k, 0.95)
                for estimate, (true_a, _), kind in zip(
                    (single.any, single.all), truth, ("any", "all"), strict=True
                ):
                    tally.add_interval(f"coverage_{kind}_single", estimate, true_a)
    return tally


def _pass_at_of(rates_of_sides: Sequence[Array], k: int) -> list[tuple[float, float]]:
    """Return the true pass@k of both sides, and their pass^k."""
    any_passes = [float((1 - (1 - side) ** k).mean()) for side in rates_of_sides]
    all_pass = [float((side**k).mean()) for side in rates_of_sides]
    return [(any_passes[0], any_passes[1]), (all_pass[0], all_pass[1])]


# -- metrics


METRIC = CompareOptions(metric="tokens", lower_is_better=True)


def metric(cell: Cell) -> Tally:
    """Count the decisions of a pair about a metric, and the intervals of one side's mean.

    Figures of skewed differences of few tasks are counted apart, because nothing mends them.
    """
    is_suite = cell.output.startswith("suite")
    options = replace(METRIC, estimand=Estimand.SUITE) if is_suite else METRIC
    deviation = populations.metric_deviation(cell.population, cell.replications, is_suite=is_suite)
    step = 2.8 * deviation / cell.tasks**0.5
    fixed = populations.metric_levels(cell.chance("suite"), cell.population, cell.tasks)
    tally, chance = Tally(), cell.chance()
    cases = (("null", "0", 0.0), ("limit", "L", step / 2), ("effect", "d", step))
    for _ in range(cell.draws):
        for kind, name, difference in cases:
            levels = fixed
            if not is_suite:
                levels = populations.metric_levels(chance, cell.population, cell.tasks)
            a, b = (
                populations.metric_trials(
                    chance,
                    cell.population,
                    side,
                    cell.replications,
                    is_even=cell.is_even,
                    shift=shift,
                )
                for side, shift in zip(levels, (0.0, difference), strict=True)
            )
            truth = difference
            if is_suite:
                if not _is_replicated(a, b):
                    continue
                truth += float((levels[1] - levels[0]).mean())
            _count_metric(
                tally,
                Sample(a, b, None, options, 1),
                truth,
                difference,
                (kind, name, cell.population),
            )
    return tally


def _count_metric(
    tally: Tally, sample: Sample, truth: float, limit: float, scenario: tuple[str, str, str]
) -> None:
    kind, name, population = scenario
    if sample.is_suite:
        # Subtract the suite's own difference, so that the null hypothesis is true.
        offset = truth - limit
        sample = replace(sample, b=[[value - offset for value in group] for group in sample.b])
        truth = limit
    counted = Tally()
    count_scenario(counted, [sample], truth, limit, kind, name)
    is_excused = population == "one-sided" and len(sample.a) < skewness.MENDED_UNITS
    for figure, (hits, _) in counted.counts.items():
        excused = is_excused and not figure.startswith("power")
        tally.add(f"share_few_{figure}" if excused else figure, bool(hits))


SIMULATIONS: Mapping[str, Callable[[Cell], Tally]] = {
    "rate": rate,
    "rate-clusters": rate,
    "pair": pair,
    "suite": suite,
    "family3": family,
    "family8": family,
    "clusters": clusters,
    "clusters-alike": clusters,
    **{f"pass@{k}": pass_at for k in (2, 3, 5, 10)},
    **{f"suite-pass@{k}": pass_at for k in (2, 5)},
    "metric": metric,
    "suite-metric": metric,
    "more-tasks": more_tasks,
    "more-trials": more_trials,
    "planned-tasks": planned_tasks,
    "planned-trials": planned_trials,
    "plan": plan,
    "plan-effect": plan_effect,
    "suite-plan": suite_plan,
}
