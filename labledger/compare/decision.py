"""What a comparison supports, in a plain sentence, and whether its gates are passed.

Every sentence names both sides and what it is about: tasks like these, or this suite. Decisions and
gates go by the same intervals, which hold together for all comparisons of the family.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labledger.compare.comparison_document import Compared, Decision, GateResult, Significance
from labledger.compare.options import CompareOptions, Estimand
from labledger.compare.statistics.samples import Estimate


def decide(compared: Compared, options: CompareOptions, family: int = 1) -> Decision:
    """A difference is shown where its (corrected) p value is below 1 less the confidence.

    That is where its interval leaves out 0: both come from one statistic.
    """
    difference, test = compared.difference, compared.test
    if difference is None:
        return Decision("nothing_paired", "Nothing could be compared: no trials could be paired.")
    if test is None:
        return _not_replicated(compared, difference, options)
    if test.p_decisive < 1 - options.confidence:
        return _shown(compared, difference, test, options, family)
    return _not_shown(compared, difference, test, options, family)


def judge_gates(
    comparisons: Sequence[Compared], options: CompareOptions, family: int = 1
) -> Iterator[GateResult]:
    """Each gate for each comparison, by the bounds of the interval; nothing paired is no pass.

    The intervals are those of the whole family, so that a gate is missed by chance as seldom with
    twenty treatments as with one.
    """
    for option, limit in options.gates.items():
        for compared in comparisons:
            passed, text = _judged(option, limit, compared, options, family)
            yield GateResult(option, limit, str(compared.b.side), passed, text)


# -- sentences


def amount(value: float, options: CompareOptions) -> str:
    """A difference without its sign: percentage points, or in the metric's unit; 0 is exactly 0."""
    if not options.is_rate:
        return f"{abs(value):.6g}"
    points = abs(100 * value)
    return f"{points:.1f} points" if points >= 0.05 or not points else f"{points:.2g} points"


def interval(found: Estimate, options: CompareOptions) -> str:
    """Such as ``95 % CI -1.5 to 31.3``."""
    level = f"{100 * options.confidence:.6g} % CI"
    if found.low is None or found.high is None:
        return f"no {level}"
    low, high = (
        f"{100 * bound:.1f}" if options.is_rate else f"{bound:.6g}"
        for bound in (found.low, found.high)
    )
    return f"{level} {low} to {high}"


def p_value(test: Significance) -> str:
    """Such as ``p = 0.031``, with the corrected value where there is one."""
    one = _p("p", test.p)
    if test.p_adjusted is None:
        return one
    return f"{one}, {_p('corrected p', test.p_adjusted)}"


def corrected_for(family: int) -> str:
    """That intervals and p values are those of several comparisons, where they are."""
    return f", corrected for {family} comparisons" if family > 1 else ""


def _p(name: str, value: float) -> str:
    return f"{name} < 0.001" if value < 0.001 else f"{name} = {value:.3f}"


def _figures(difference: Estimate, test: Significance, options: CompareOptions, family: int) -> str:
    p = _p("p", test.p_decisive)
    return f"({interval(difference, options)}, {p}{corrected_for(family)})."


def _shown(
    compared: Compared,
    difference: Estimate,
    test: Significance,
    options: CompareOptions,
    family: int,
) -> Decision:
    a, b = compared.labels
    higher = difference.value > 0
    direction = "higher" if higher else "lower"
    how = _figures(difference, test, options, family)
    size = amount(difference.value, options)
    where = f"on {options.estimand.words}"
    if compared.same_trials:
        what = "the pass rate" if options.is_rate else options.metric
        text = f"Of the same trials, {what} is {direction} in {b} than in {a} {where}: {size} {how}"
        return Decision(direction, text)
    if not options.has_direction:
        text = f"{options.metric} is {direction} in {b} than in {a} {where}: {size} {how}"
        return Decision(direction, text)
    word = "better" if higher is not bool(options.lower_is_better) else "worse"
    return Decision(word, f"{b} is {word} than {a} {where}: {size} {direction} {how}")


def _seen(compared: Compared, difference: Estimate, options: CompareOptions) -> str:
    _, b = compared.labels
    if not difference.value:
        return "the same in both"
    direction = "higher" if difference.value > 0 else "lower"
    return f"{amount(difference.value, options)} {direction} in {b}"


def _not_shown(
    compared: Compared,
    difference: Estimate,
    test: Significance,
    options: CompareOptions,
    family: int,
) -> Decision:
    a, b = compared.labels
    of = " of the same trials" if compared.same_trials else ""
    seen = _seen(compared, difference, options)
    how = _figures(difference, test, options, family)
    text = (
        f"No difference was shown between {a} and {b}{of} on {options.estimand.words}: {seen} {how}"
    )
    return Decision("not_shown", f"{text} {_could_have_been_seen(compared, options)}")


def _not_replicated(compared: Compared, difference: Estimate, options: CompareOptions) -> Decision:
    a, b = compared.labels
    text = (
        f"Whether {a} and {b} differ on this suite cannot be said: "
        f"{_seen(compared, difference, options)}, but each task was tried once on each side, and "
        "only replications of the same tasks tell a difference from luck. Run more replications, "
        "or ask about tasks like these (--estimand tasks)."
    )
    return Decision("not_shown", text)


def _could_have_been_seen(compared: Compared, options: CompareOptions) -> str:
    size = _sample(compared, options)
    found = compared.detectable
    if found is None or found.difference is None:
        return f"With {size}, no difference could have been shown reliably."
    least = amount(found.difference, options)
    return (
        f"With {size}, a difference smaller than about {least} would have been missed more than "
        f"{1 - found.power:.0%} of the time{supposed(compared, options)}."
    )


def _sample(compared: Compared, options: CompareOptions) -> str:
    if options.estimand is Estimand.SUITE:
        trials = compared.a.trials + compared.b.trials
        return f"{trials:,} trials of {_count(compared.tasks, 'task')}"
    if compared.clusters is not None:
        return f"{_count(compared.tasks, 'task')} in {_count(compared.clusters, 'cluster')}"
    return _count(compared.tasks, "task")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def supposed(compared: Compared, options: CompareOptions) -> str:
    """The condition of the smallest difference that could be shown."""
    found = compared.detectable
    if found is None:
        return ""
    if found.discordant is None:
        spread = "replications scatter" if options.estimand is Estimand.SUITE else "tasks differ"
        return f", if {spread} as here"
    seen = "" if found.assumed else " as here"
    return f", if {100 * found.discordant:.1f}% of pairs differ{seen}"


# -- gates


def _judged(
    option: str, limit: float, compared: Compared, options: CompareOptions, family: int
) -> tuple[bool, str]:
    a, b = compared.labels
    found = compared.difference
    if found is None:
        return False, f"{b} was not compared with {a}: no trials could be paired"
    if compared.test is None:
        return False, f"{b} could not be compared with {a} on this suite: it has no replications"
    bounds = _gain_bounds(found, options)
    size = amount(limit, options)
    where = f"on {options.estimand.words} ({interval(found, options)}{corrected_for(family)})"
    if option == "--fail-if-worse":
        shown = bounds is not None and bounds[1] < -limit
        word = "" if shown else "not "
        return not shown, f"{b} is {word}shown to be worse than {a} by more than {size} {where}"
    safe = bounds is not None and bounds[0] > -limit
    word = "" if safe else "not "
    return safe, f"{b} is {word}shown to be at most {size} worse than {a} {where}"


def _gain_bounds(found: Estimate, options: CompareOptions) -> tuple[float, float] | None:
    """The interval of what B gains over A, whichever direction is better."""
    if found.low is None or found.high is None:
        return None
    return (-found.high, -found.low) if options.lower_is_better else (found.low, found.high)
