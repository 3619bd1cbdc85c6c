"""What a comparison supports, in a plain sentence, and whether its gates are passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labledger.analysis.comparison import Compared, Decision, GateResult, Significance
from labledger.analysis.question import CompareOptions
from labledger.analysis.rates import Estimate


def decide(compared: Compared, options: CompareOptions) -> Decision:
    """A difference is shown where the (corrected) p value and the interval both say so.

    The two are made differently and can disagree at the edge; the stricter one decides.
    """
    difference, test = compared.difference, compared.test
    if difference is None or test is None:
        return Decision("nothing_paired", "Nothing could be compared: no trials could be paired.")
    significant = test.p_decisive < 1 - options.confidence
    if significant and _leaves_out_zero(difference):
        return _shown(compared, difference, test, options)
    return _not_shown(compared, difference, test, options)


def judge_gates(comparisons: Sequence[Compared], options: CompareOptions) -> Iterator[GateResult]:
    """Each gate for each comparison, by the bounds of the interval; nothing paired is no pass."""
    for option, limit in options.gates.items():
        for compared in comparisons:
            passed, text = _judged(option, limit, compared, options)
            yield GateResult(option, limit, str(compared.b.side), passed, text)


# -- sentences


def amount(value: float, options: CompareOptions) -> str:
    """A difference without its sign: percentage points, or in the metric's unit."""
    return f"{100 * abs(value):.1f} points" if options.is_rate else f"{abs(value):.6g}"


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
    return one if test.p_holm is None else f"{one}, {_p('p by Holm', test.p_holm)}"


def _p(name: str, value: float) -> str:
    return f"{name} < 0.001" if value < 0.001 else f"{name} = {value:.3f}"


def _shown(
    compared: Compared, difference: Estimate, test: Significance, options: CompareOptions
) -> Decision:
    a, b = compared.labels
    higher = difference.value > 0
    direction = "higher" if higher else "lower"
    how = f"({interval(difference, options)}, {p_value(test)})."
    if compared.same_trials:
        what = "the pass rate" if options.is_rate else options.metric
        size = amount(difference.value, options)
        return Decision(
            direction, f"Of the same trials, {what} is {direction} in {b} than in {a}: {size} {how}"
        )
    if not options.has_direction:
        size = amount(difference.value, options)
        return Decision(
            direction, f"{options.metric} is {direction} in {b} than in {a}: {size} {how}"
        )
    word = "better" if higher is not bool(options.lower_is_better) else "worse"
    size = f"{amount(difference.value, options)} {direction}"
    return Decision(word, f"{b} is {word} than {a}: {size} {how}")


def _not_shown(
    compared: Compared, difference: Estimate, test: Significance, options: CompareOptions
) -> Decision:
    a, b = compared.labels
    seen = "the same in both"
    if difference.value:
        direction = "higher" if difference.value > 0 else "lower"
        seen = f"{amount(difference.value, options)} {direction} in {b}"
    how = f"({interval(difference, options)}, {p_value(test)})."
    of = " of the same trials" if compared.same_trials else ""
    parts = [f"No difference was shown between {a} and {b}{of}: {seen} {how}"]
    if _leaves_out_zero(difference):
        parts.append("The interval leaves out 0 but the test is not sure enough; both must agree.")
    elif test.p_decisive < 1 - options.confidence:
        parts.append("The test is sure enough but the interval holds 0; both must agree.")
    parts.append(_could_have_been_seen(compared, options))
    return Decision("not_shown", " ".join(parts))


def _could_have_been_seen(compared: Compared, options: CompareOptions) -> str:
    tasks = "1 task" if compared.tasks == 1 else f"{compared.tasks:,} tasks"
    found = compared.detectable
    if found is None or found.difference is None:
        return f"With {tasks}, no difference could have been shown reliably."
    least = amount(found.difference, options)
    return (
        f"With {tasks}, a difference smaller than about {least} would have been missed more than "
        f"{1 - found.power:.0%} of the time."
    )


# -- gates


def _judged(
    option: str, limit: float, compared: Compared, options: CompareOptions
) -> tuple[bool, str]:
    _, b = compared.labels
    found = compared.difference
    if found is None:
        return False, f"{b} was not compared: no trials could be paired"
    bounds = _gain_bounds(found, options)
    size = amount(limit, options)
    if option == "--fail-if-worse":
        shown = bounds is not None and bounds[1] < -limit
        return not shown, f"{b} is {'' if shown else 'not '}shown to be worse by more than {size}"
    safe = bounds is not None and bounds[0] > -limit
    return safe, f"{b} is {'' if safe else 'not '}shown to be no worse than by {size}"


def _gain_bounds(found: Estimate, options: CompareOptions) -> tuple[float, float] | None:
    """The interval of what B gains over A, whichever direction is better."""
    if found.low is None or found.high is None:
        return None
    return (-found.high, -found.low) if options.lower_is_better else (found.low, found.high)


def _leaves_out_zero(found: Estimate) -> bool:
    return found.low is not None and found.high is not None and not found.low <= 0 <= found.high
