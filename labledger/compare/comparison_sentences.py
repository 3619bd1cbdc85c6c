"""The figures and sentences of comparisons: estimates, decisions, gates and headlines.

The sentences inside `comparison_v1`, the terminal, Markdown and the report's page take their words
from here and from `comparison_text`, so that they cannot disagree. Every sentence names both sides
and what it is about: tasks like these, or this suite. `compare.decision` decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labledger.compare import planned_look_sentences
from labledger.compare.compare_options import ErrorCounting, Estimand, Gate, Validity
from labledger.compare.comparison_document import (
    Compared,
    Comparison,
    Conclusion,
    Detectable,
    Nearness,
    Significance,
)
from labledger.compare.look_sentences import by_verdict, correction, family, looks
from labledger.compare.statistics.samples import Estimate
from labledger.text import (
    DASH,
    confidence_level,
    count,
    counted,
    p_equation,
    p_value,
    percent,
    percent_range,
    points,
    significant,
)

VERDICTS: Mapping[Conclusion, str] = {
    Conclusion.BETTER: "Better",
    Conclusion.WORSE: "Worse",
    Conclusion.HIGHER: "Higher",
    Conclusion.LOWER: "Lower",
    Conclusion.NOT_SHOWN: "No difference shown",
    Conclusion.NOTHING_PAIRED: "Nothing to compare",
}
"""What a decision is called in a table, by its verdict."""


_COUNTED: Mapping[str, str] = {
    ErrorCounting.AS_FAILURES: "A verdict counts, however the agent ended. Without one, an agent "
    "that failed or that broke its grader did not pass; other trials are left out.",
    ErrorCounting.STRICT: "An agent that failed or timed out did not pass, whatever its verdict, "
    "nor did one that broke its grader; other trials without a verdict are left out.",
    ErrorCounting.LEFT_OUT: "Only trials with the verdict pass, fail or missing count.",
    ErrorCounting.ALL_AS_FAILURES: "Whatever ran and did not pass counts as failed.",
}
"""Which trials count in a pass rate, by how errors are counted."""


def _counted(documents: Sequence[Comparison]) -> str:
    errors = documents[0].errors if documents else ErrorCounting.AS_FAILURES
    return _COUNTED[errors]


# -- figures


def rate(estimate: Estimate | None) -> str:
    """Return the value of an estimate of a share, in per cent."""
    return DASH if estimate is None else percent(estimate.value)


def rate_bounds(estimate: Estimate | None, *, signed: bool = False) -> str:
    """Return the interval of an estimate of a share, in per cent or points."""
    if estimate is None or estimate.bounds is None:
        return DASH
    return percent_range(*estimate.bounds, signed=signed)


def value(estimate: Estimate | None, document: Comparison) -> str:
    """Return one side's rate or mean."""
    if estimate is None or document.is_rate:
        return rate(estimate)
    return significant(estimate.value)


def bounds(estimate: Estimate | None, document: Comparison, *, signed: bool = False) -> str:
    """Return an interval; `signed` for that of a difference of rates."""
    if document.is_rate or estimate is None or estimate.bounds is None:
        return rate_bounds(estimate, signed=signed)
    return " to ".join(map(significant, estimate.bounds))


def amount(difference: float, document: Comparison) -> str:
    """Return a difference without its sign, in points or in the metric's unit."""
    size = abs(difference)
    return points(size) if document.is_rate else significant(size)


def signed_amount(estimate: Estimate | None, document: Comparison) -> str:
    """Return a difference with its sign."""
    if estimate is None:
        return DASH
    return f"{'-' if estimate.value < 0 else '+'}{amount(estimate.value, document)}"


def decisive_p(test: Significance | None, document: Comparison) -> str:
    """Return the p value that decides: corrected, where there are several comparisons."""
    return DASH if test is None else p_value(test.p_decisive, document.level)


def level(document: Comparison) -> str:
    """Return the name of a comparison's intervals, such as ``95 % CI``."""
    return confidence_level(document.confidence)


def _interval(compared: Compared, difference: Estimate, document: Comparison) -> str:
    """Return a difference's interval in a sentence, or why there is none.

    `comparison_v1` holds these sentences and has never written a plus sign here.
    """
    text = bounds(difference, document)
    if text != DASH:
        return f"{level(document)} {text}"
    return f"no {level(document)}, because {_without_bounds(compared, document)}"


def _without_bounds(compared: Compared, document: Comparison) -> str:
    if compared.detectable is not None and not compared.detectable.possible:
        units = "tasks" if compared.clusters is None else "clusters"
        return f"there are too few {units}"
    if document.estimand == Estimand.SUITE:
        return "no trial differs from another of its task"
    if compared.detectable is not None:
        return "the differences are too skewed for so few of them"
    return "every task differs by the same"


def _evidence(
    compared: Compared, difference: Estimate, test: Significance, document: Comparison
) -> str:
    p = p_equation("p", test.p_decisive, document.level)
    return f"({_interval(compared, difference, document)}, {p}{correction(compared, document)})."


# -- what some comparisons have in common


def estimand(document: Comparison) -> str:
    """Return what a comparison is about: ``tasks like these`` or ``this suite``."""
    return Estimand(document.estimand).words


def method(documents: Sequence[Comparison]) -> str:
    """Return what some comparisons, corrected together, are about and how they are made."""
    text = "In each task both sides weigh the same, and so do all tasks. "
    if {document.estimand for document in documents} == {Estimand.SUITE.value}:
        text += "They are about this suite: the sample is the replications of its tasks. "
    else:
        samples = sorted({f"clusters ({d.cluster})" if d.cluster else "tasks" for d in documents})
        text += f"They are about tasks like these: the sample is the {' or '.join(samples)}. "
    size = family_size(documents)
    together = f", for all {size} comparisons together," if size > 1 else ""
    return (
        f"{text}A difference is called shown where its interval{together} does not contain 0; "
        f"its p value is then small enough, too. {_counted(documents)}"
    )


def family_size(documents: Sequence[Comparison]) -> int:
    """Return for how many comparisons intervals and p values are corrected together."""
    return max((document.family for document in documents), default=1)


def p_heading(documents: Sequence[Comparison]) -> str:
    """Return the heading of a column of decisive p values."""
    size = family_size(documents)
    return f"p of {size} comparisons" if size > 1 else "p"


# -- decisions


def decision(compared: Compared, document: Comparison, verdict: Conclusion) -> str:
    """Return what a comparison shows; `verdict` is what was decided."""
    difference, test = compared.difference, compared.test
    if difference is None:
        return _nothing_paired(compared)
    if compared.chosen_by_verdict:
        return _chosen_results(compared, document)
    if compared.validity == Validity.NONE:
        return _with_looks(_unfinished(compared, difference, document), compared)
    if test is None:
        return _with_looks(_not_replicated(compared, difference, document), compared)
    if verdict.is_difference:
        text = _shown(compared, difference, test, document, verdict)
    else:
        text = _not_shown(compared, difference, test, document)
    others = _by_errors(compared, verdict)
    sentences = (
        text,
        planned_look_sentences.decision_sentence(compared),
        f"It depends on how errors are counted: {others}." if others else "",
    )
    return _with_looks(" ".join(filter(None, sentences)), compared)


def _with_looks(text: str, compared: Compared) -> str:
    return " ".join((text, *looks(compared)))


def _shown(
    compared: Compared,
    difference: Estimate,
    test: Significance,
    document: Comparison,
    verdict: Conclusion,
) -> str:
    """Return that a difference is shown; `verdict` is `better`, `worse`, `higher` or `lower`."""
    a, b = compared.labels
    direction = "higher" if difference.value > 0 else "lower"
    where = f"on {estimand(document)}"
    figure = amount(difference.value, document)
    evidence = _evidence(compared, difference, test, document)
    if verdict in (Conclusion.BETTER, Conclusion.WORSE):
        return f"{b} is {verdict} than {a} {where}: {figure} {direction} {evidence}"
    subject = document.metric
    if compared.same_trials:
        subject = f"Of the same trials, {'the pass rate' if document.is_rate else subject}"
    return f"{subject} is {direction} in {b} than in {a} {where}: {figure} {evidence}"


def _not_shown(
    compared: Compared, difference: Estimate, test: Significance, document: Comparison
) -> str:
    """Return that no difference is shown, and which one could have been."""
    a, b = compared.labels
    trials = " of the same trials" if compared.same_trials else ""
    observed = _observed(compared, difference, document)
    evidence = _evidence(compared, difference, test, document)
    return (
        f"No difference was shown between {a} and {b}{trials} on {estimand(document)}: "
        f"{observed} {evidence} {_could_have_been_shown(compared, document)}"
    )


def _by_errors(compared: Compared, verdict: Conclusion) -> str:
    """Return what else would be shown with errors counted in other ways; empty if nothing."""
    a, b = compared.labels
    options: dict[Conclusion, list[str]] = {}
    for other in compared.sensitivity:
        if other.verdict is not None and other.verdict is not verdict:
            options.setdefault(other.verdict, []).append(f"--errors {other.errors}")
    words = {
        Conclusion.NOT_SHOWN: "no difference would be shown",
        Conclusion.NOTHING_PAIRED: "nothing could be compared",
    }
    return "; ".join(
        f"with {' or '.join(names)}, {words.get(other, f'{b} would be {other} than {a}')}"
        for other, names in options.items()
    )


def _chosen_results(compared: Compared, document: Comparison) -> str:
    """Return a sentence: results that were chosen by their verdicts decide nothing."""
    a, b = compared.labels
    return (
        f"Whether {a} and {b} differ on {estimand(document)} is not decided: "
        f"{by_verdict(compared)}. There is no interval and no test for results that were chosen. "
        "A run of an experiment without such slots can decide."
    )


def _unfinished(compared: Compared, difference: Estimate, document: Comparison) -> str:
    """Return the conclusion of unfinished runs for which no interval holds: nothing is decided."""
    a, b = compared.labels
    about = "a metric" if document.estimand == Estimand.TASKS else "this suite"
    if departure := planned_look_sentences.departure(compared):
        return (
            f"Whether {a} and {b} differ on {estimand(document)} is not decided, because "
            f"{departure}: it is {_observed(compared, difference, document)}. For {about} there is "
            "no interval that holds at looks that were not planned."
        )
    return (
        f"Whether {a} and {b} differ on {estimand(document)} is not decided before the runs are "
        f"finished: so far it is {_observed(compared, difference, document)}. For {about} there is "
        "no interval that holds however often an unfinished run is looked at."
    )


def _nothing_paired(compared: Compared) -> str:
    """Return that nothing could be compared, and what to do if the sides have no common task."""
    reasons = {left.reason for left in compared.left_out}
    text = "Nothing could be compared: no trials could be paired."
    if "task_not_finished" in reasons:
        return (
            f"{text} A task counts once all its replications are committed on both sides, and none "
            "is that far yet."
        )
    if compared.a.run_id == compared.b.run_id or reasons != {"not_scheduled"}:
        return text
    together = f"{compared.a.run_id}+{compared.b.run_id}"
    return (
        f"{text} {compared.a.run_id} and {compared.b.run_id} have no task in common; if they are "
        f"parts of one experiment, `labledger compare {together}` takes them as one run."
    )


def _not_replicated(compared: Compared, difference: Estimate, document: Comparison) -> str:
    """Return that a fixed suite without replications cannot show a difference."""
    a, b = compared.labels
    return (
        f"Whether {a} and {b} differ on this suite cannot be said: "
        f"{_observed(compared, difference, document)}, but each task was tried once on each side, "
        "and only replications of the same tasks tell a difference from luck. Run more "
        "replications, or ask about tasks like these (--estimand tasks)."
    )


def headline(compared: Compared, document: Comparison) -> str:
    """Return a decision as a clause, for a list of several."""
    a, b = compared.labels
    where = f"on {estimand(document)}"
    difference, verdict = compared.difference, compared.decision.verdict
    if difference is None:
        return f"{b} could not be compared with {a}"
    if undecided := _undecided(compared, difference, document):
        return f"whether {b} and {a} differ {where} {undecided}"
    together = f" for all {document.family} comparisons" if document.family > 1 else ""
    if together and compared.family_of is not None:
        together = f" for {family(compared, document)}"
    looks = planned_look_sentences.interval_clause(compared)
    interval = f"{level(document)}{together}{looks} {bounds(difference, document, signed=True)}"
    of = "" if document.is_rate else f" {document.metric}"
    size = f"{signed_amount(difference, document)}{of}, {interval}"
    equivalent = compared.equivalence
    if equivalent is not None and equivalent.verdict is Nearness.EQUIVALENT:
        size += f"; equivalent within {amount(equivalent.limit, document)}"
    if departure := planned_look_sentences.departure(compared):
        size += f"; {departure}"
    if others := _by_errors(compared, verdict):
        size += f"; {others}"
    if verdict is Conclusion.NOT_SHOWN:
        return f"no difference was shown between {a} and {b} {where} ({size})"
    if compared.same_trials and document.is_rate:
        return f"of the same trials, the pass rate is {verdict} in {b} than in {a} {where} ({size})"
    if verdict in (Conclusion.HIGHER, Conclusion.LOWER):
        return f"{document.metric} is {verdict} in {b} than in {a} {where} ({size})"
    return f"{b} is {verdict} than {a} {where} ({size})"


def _undecided(compared: Compared, difference: Estimate, document: Comparison) -> str | None:
    """Return the rest of a headline that starts with `whether`; None if there is a decision."""
    if compared.chosen_by_verdict:
        return "is not decided"
    if compared.validity == Validity.NONE:
        if departure := planned_look_sentences.departure(compared):
            return f"is not decided, because {departure}"
        return f"is not decided yet (so far {signed_amount(difference, document)})"
    return "cannot be said without replications" if compared.test is None else None


def _observed(compared: Compared, difference: Estimate, document: Comparison) -> str:
    _, b = compared.labels
    if not difference.value:
        return "the same in both"
    direction = "higher" if difference.value > 0 else "lower"
    return f"{amount(difference.value, document)} {direction} in {b}"


def _could_have_been_shown(compared: Compared, document: Comparison) -> str:
    if compared.validity == Validity.ANYTIME:
        return "This holds at every look, while runs grow and after slots are cancelled."
    sample, detectable = _sample(compared, document), compared.detectable
    if detectable is None:
        return "Nothing varied, so what these data could have shown is not known."
    if not detectable.possible:
        return f"No difference can be found with these {sample}: they are too few."
    if detectable.difference is None:
        return f"Differences can be found with these {sample}; how large they must be is not known."
    least = amount(detectable.difference, document)
    return f"Only differences of about {least} or more would usually be found with these {sample}."


def _sample(compared: Compared, document: Comparison) -> str:
    tasks = counted(compared.tasks, "task")
    if document.estimand == Estimand.SUITE:
        return f"{count(compared.a.trials + compared.b.trials)} trials of {tasks}"
    if compared.clusters is not None:
        return f"{tasks} in {counted(compared.clusters, 'cluster')}"
    return tasks


def assumption(detectable: Detectable, document: Comparison) -> str:
    """Return the condition under which a difference is detectable."""
    if detectable.discordant is None:
        suite = document.estimand == Estimand.SUITE
        return f", if {'replications vary' if suite else 'tasks differ'} as observed"
    observed = "" if detectable.assumed else " as observed"
    return f", if {percent(detectable.discordant)} of pairs differ{observed}"


# -- gates


def no_gate_test(compared: Compared) -> str:
    """Return why a gate has nothing to decide by."""
    a, b = compared.labels
    if compared.difference is None:
        return f"{b} was not compared with {a}: no trials could be paired"
    if compared.chosen_by_verdict:
        return f"{b} is not compared with {a}, because {by_verdict(compared)}"
    if compared.validity == Validity.NONE:
        if departure := planned_look_sentences.departure(compared):
            return f"{b} is not compared with {a}, because {departure}"
        return f"{b} is not compared with {a} before the runs are finished"
    return f"{b} could not be compared with {a} on this suite: it has no replications"


def gate(
    kind: Gate,
    limit: float,
    compared: Compared,
    difference: Estimate,
    document: Comparison,
    is_shown: bool,
) -> str:
    """Return what a gate tested, and whether that is shown."""
    a, b = compared.labels
    word = "" if is_shown else "not "
    size, where = amount(limit, document), _where(compared, difference, document)
    if kind is Gate.FAIL_IF_WORSE:
        return f"{b} is {word}shown to be worse than {a} by more than {size} {where}"
    return f"{b} is {word}shown to be at most {size} worse than {a} {where}"


def gate_by_errors(passed: bool, others: Sequence[tuple[str, bool | None]]) -> str:
    """Return a clause if the gate would be decided otherwise with errors counted in other ways."""
    names = [f"--errors {errors}" for errors, other in others if other is (not passed)]
    if not names:
        return ""
    return f"; with {' or '.join(names)} the gate would be {'missed' if passed else 'passed'}"


def _where(compared: Compared, difference: Estimate, document: Comparison) -> str:
    """Return on which tasks something was tested, with the interval of the difference."""
    interval = _interval(compared, difference, document)
    return f"on {estimand(document)} ({interval}{correction(compared, document)})"


# -- equivalence


def equivalence(
    compared: Compared, difference: Estimate, document: Comparison, limit: float, verdict: Nearness
) -> str:
    """Return whether both sides are equivalent within a limit; for `verdict` see `Equivalence`."""
    a, b = compared.labels
    size, where = amount(limit, document), _where(compared, difference, document)
    if verdict is Nearness.EQUIVALENT:
        return f"{b} is shown to be equivalent to {a} within {size} {where}"
    if verdict is Nearness.DIFFERENT:
        return f"{b} is shown to differ from {a} by {size} or more {where}"
    return f"{b} is not shown to be equivalent to {a} within {size} {where}"
