"""Runs that are extended after a look, and experiments that are planned from a pilot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.statistics_table import populations
from bench.statistics_table.designs import Cell
from bench.statistics_table.populations import Trials
from bench.statistics_table.tallies import Tally
from labledger.compare import estimates
from labledger.compare.compare_options import CompareOptions, Estimand, Validity
from labledger.compare.estimates import Sample
from labledger.compare.statistics import planned_power, variance_components
from labledger.compare.statistics.samples import Estimate
from labledger.compare.statistics.variance_components import Components

_OPTIONS = CompareOptions()
_SUITE = CompareOptions(estimand=Estimand.SUITE)
_DETECT = 0.2
_MOST_TASKS, _MOST_REPLICATIONS = 3000, 300
"""Larger plans are not drawn. Pilots with too few tasks give no plan at all."""


def more_tasks(cell: Cell) -> Tally:
    """Count a run that has half of its tasks, is looked at, and is extended by the rest."""
    half = max(2, cell.tasks // 2)
    return _extended(cell, lambda side: side[:half])


def more_trials(cell: Cell) -> Tally:
    """Count a run that has one replication, is looked at, and is extended by the rest."""
    return _extended(cell, lambda side: [group[:1] for group in side])


def _extended(cell: Cell, first_part: Callable[[Trials], Trials]) -> Tally:
    """Count differences that are shown at either look, and whether both intervals hold.

    The first look is at a finished run. `share_without` is the power of the same trials in a run
    that was never extended.
    """
    tally, chance = Tally(), cell.chance()
    for _ in range(cell.draws):
        for name, difference in (("0", 0.0), ("d", populations.effect_of(cell.tasks))):
            drawn = populations.task_rates(chance, cell.rate, cell.tasks)
            moved = populations.sides(*drawn, cell.rate, difference)
            a, b = (
                populations.trials(chance, side, cell.replications, is_even=True) for side in moved
            )
            at_once = Sample(a, b, None, _OPTIONS, 1)
            looks = [
                Sample(first_part(a), first_part(b), None, _OPTIONS, 1),
                replace(at_once, validity=Validity.ANYTIME),
            ]
            inferences = [estimates.inference(sample) for sample in looks]
            shown = any(inference is not None and inference.p < 0.05 for inference in inferences)
            holds = all(
                inference is None or _holds(inference.estimate, -difference)
                for inference in inferences
            )
            tally.add(f"coverage_{name}", holds)
            if name == "0":
                tally.add("type_1", shown)
            else:
                tally.add("power", shown)
                whole = estimates.inference(at_once)
                tally.add("share_without", whole is not None and whole.p < 0.05)
    return tally


def _holds(estimate: Estimate, truth: float) -> bool:
    return (
        estimate.bounds is None or estimate.bounds[0] - 1e-9 <= truth <= estimate.bounds[1] + 1e-9
    )


# -- plans


def plan(cell: Cell) -> Tally:
    """Count how often tasks that are planned from a pilot without an effect show one."""
    return _planned(cell, 0.0)


def plan_effect(cell: Cell) -> Tally:
    """Count the same for a pilot that has the effect itself."""
    return _planned(cell, _DETECT)


def _planned(cell: Cell, pilots: float) -> Tally:
    tally, chance = Tally(), cell.chance()

    def trials(tasks: int, difference: float) -> tuple[Trials, Trials]:
        rates_a, rates_b = populations.task_rates(chance, cell.rate, tasks)
        rates_b = populations.moved(rates_b, cell.rate, difference, up=cell.rate < 0.5)
        a, b = (
            populations.trials(chance, side, cell.replications, is_even=True)
            for side in (rates_a, rates_b)
        )
        return a, b

    for _ in range(cell.draws):
        known = _components(*trials(cell.tasks, pilots))
        assumed = planned_power.planned_variation(known, is_rate=True)
        tasks = planned_power.tasks_needed(assumed, cell.replications, _DETECT, 0.95)
        is_planned = tasks is not None and tasks <= _MOST_TASKS
        tally.add("share_planned", is_planned)
        if tasks is None or tasks > _MOST_TASKS:
            continue
        inference = estimates.inference(Sample(*trials(tasks, _DETECT), None, _OPTIONS, 1))
        tally.add("planned_power", inference is not None and inference.p < 0.05)
    return tally


def suite_plan(cell: Cell) -> Tally:
    """Count how often replications that are planned for a suite show a difference."""
    a, b = populations.suite_rates(cell.chance("suite"), cell.rate, cell.tasks)
    detect = populations.effect_of(cell.tasks) / 2
    moved = a, populations.moved(b, cell.rate, detect, up=cell.rate < 0.5)
    tally, chance = Tally(), cell.chance()
    for _ in range(cell.draws):
        pilot = [populations.trials(chance, s, cell.replications, is_even=True) for s in (a, b)]
        known = _components(*pilot)
        variation = planned_power.planned_variation(known, is_rate=True, is_suite=True)
        number = planned_power.replications_needed(variation, cell.tasks, detect, 0.95)
        is_planned = number is not None and number <= _MOST_REPLICATIONS
        tally.add("share_planned", is_planned)
        if number is None or number > _MOST_REPLICATIONS:
            continue
        sides = [populations.trials(chance, side, number, is_even=True) for side in moved]
        inference = estimates.inference(Sample(sides[0], sides[1], None, _SUITE, 1))
        tally.add("planned_power", inference is not None and inference.p < 0.05)
    return tally


def _components(a: Trials, b: Trials) -> Components:
    names = [str(number) for number in range(len(a))]
    known = variance_components.of_pairs([variance_components.PairedTasks(names, a, b)])
    assert known is not None
    return known
