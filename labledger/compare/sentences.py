"""All wording of comparisons: figures, titles, decisions, gates and facts.

The sentences inside `comparison_v1`, the terminal, Markdown and the report's page take their text
from here, so that they cannot disagree. Every sentence names both sides and what it is about: tasks
like these, or this suite. Nothing is decided here: see `compare.decision`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labledger.compare.comparison_document import (
    Compared,
    Comparison,
    Detectable,
    Effect,
    Sensitivity,
    Significance,
)
from labledger.compare.options import Estimand
from labledger.compare.run_differences import grader_name
from labledger.compare.statistics.samples import Estimate
from labledger.text import figures
from labledger.text.figures import DASH, count, percent
from labledger.text.phrases import counted

VERDICTS: Mapping[str, str] = {
    "better": "Better",
    "worse": "Worse",
    "higher": "Higher",
    "lower": "Lower",
    "not_shown": "No difference shown",
    "nothing_paired": "Nothing to compare",
}
"""What a decision is called in a table, by its verdict."""

_EFFECTS = {
    "odds_ratio": "odds ratio of the pairs that differ",
    "d_z": "standardized difference (d_z)",
}

_NAMED = 10
"""How many of the tasks that moved are named."""


# -- figures


def rate(estimate: Estimate | None) -> str:
    """Return the value of an estimate of a share, in per cent."""
    return DASH if estimate is None else percent(estimate.value)


def rate_bounds(estimate: Estimate | None, *, signed: bool = False) -> str:
    """Return the interval of an estimate of a share, in per cent or points."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return DASH
    return figures.percent_range(estimate.low, estimate.high, signed=signed)


def value(estimate: Estimate | None, document: Comparison) -> str:
    """Return one side's rate or mean."""
    if estimate is None or document.is_rate:
        return rate(estimate)
    return figures.significant(estimate.value)


def bounds(estimate: Estimate | None, document: Comparison, *, signed: bool = False) -> str:
    """Return an interval; `signed` for that of a difference of rates."""
    if document.is_rate or estimate is None or estimate.low is None or estimate.high is None:
        return rate_bounds(estimate, signed=signed)
    return f"{figures.significant(estimate.low)} to {figures.significant(estimate.high)}"


def amount(difference: float, document: Comparison) -> str:
    """Return a difference without its sign, in points or in the metric's unit."""
    size = abs(difference)
    return figures.points(size) if document.is_rate else figures.significant(size)


def signed_amount(estimate: Estimate | None, document: Comparison) -> str:
    """Return a difference with its sign."""
    if estimate is None:
        return DASH
    return f"{'-' if estimate.value < 0 else '+'}{amount(estimate.value, document)}"


def decisive_p(test: Significance | None) -> str:
    """Return the p value that decides: corrected, where there are several comparisons."""
    return DASH if test is None else figures.p_value(test.p_decisive)


def level(document: Comparison) -> str:
    return figures.confidence_level(document.confidence)


def _interval(difference: Estimate, document: Comparison) -> str:
    """Return a difference's interval in a sentence.

    `comparison_v1` holds these sentences and has never written a plus sign here.
    """
    text = bounds(difference, document)
    return f"no {level(document)}" if text == DASH else f"{level(document)} {text}"


def _correction(document: Comparison) -> str:
    """Return that intervals and p values are corrected for several comparisons, if they are."""
    return f", corrected for {document.family} comparisons" if document.family > 1 else ""


def _evidence(difference: Estimate, test: Significance, document: Comparison) -> str:
    p = figures.p_equation("p", test.p_decisive)
    return f"({_interval(difference, document)}, {p}{_correction(document)})."


# -- the whole of a comparison


Row = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class ComparisonText:
    """One comparison in words, for a terminal or Markdown."""

    title: str
    a: str
    """The name of side A, which heads a column; so `b`."""
    b: str
    rows: tuple[Row, ...]
    """What is compared, A's figure, B's figure, and the difference."""
    facts: tuple[Fact, ...]
    decision: str


def comparison_texts(comparison: Comparison) -> list[ComparisonText]:
    """Return every comparison of a document in words, as `labledger compare` prints them.

    Args:
        comparison: What `Ledger.compare` returned.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     for text in labledger.comparison_texts(ledger.compare("my-run")):
        ...         print(text.title, text.decision)
    """
    return [
        ComparisonText(
            title=title(compared, comparison),
            a=compared.labels[0],
            b=compared.labels[1],
            rows=tuple(_rows(compared, comparison)),
            facts=tuple(facts(compared, comparison)),
            decision=compared.decision.text,
        )
        for compared in comparison.comparisons
    ]


def _rows(compared: Compared, document: Comparison) -> Iterator[Row]:
    a, b, difference = compared.a.mean, compared.b.mean, compared.difference
    name = "pass rate" if document.is_rate else document.metric
    yield name, value(a, document), value(b, document), signed_amount(difference, document)
    heading = level(document)
    # The sides have intervals of their own; that of the difference is for all comparisons together.
    heading += f" (difference: of {document.family} comparisons)" if document.family > 1 else ""
    interval = bounds(difference, document, signed=True)
    yield heading, bounds(a, document), bounds(b, document), interval
    yield from _pass_at_rows(compared)


def _pass_at_rows(compared: Compared) -> Iterator[Row]:
    """Yield pass@k and pass^k for each k of a side; the other side may have no such k."""
    by_k_a = {pass_at.k: pass_at for pass_at in compared.a.pass_at}
    by_k_b = {pass_at.k: pass_at for pass_at in compared.b.pass_at}
    for k in sorted(by_k_a | by_k_b):
        a, b = by_k_a.get(k), by_k_b.get(k)
        tasks = {pass_at.tasks for pass_at in (a, b) if pass_at is not None}
        few = "" if tasks == {compared.tasks} else f" ({counted(min(tasks), 'task')})"
        yield _pass_at_row(f"pass@{k}{few}", a.any if a else None, b.any if b else None)
        yield _pass_at_row(f"pass^{k}{few}", a.all if a else None, b.all if b else None)


def _pass_at_row(name: str, a: Estimate | None, b: Estimate | None) -> Row:
    first, second = (f"{rate(estimate)} ({rate_bounds(estimate)})" for estimate in (a, b))
    moved = DASH if a is None or b is None else figures.signed_points(b.value - a.value)
    return name, first, second, moved


# -- titles


def estimand(document: Comparison) -> str:
    """Return what a comparison is about: ``tasks like these`` or ``this suite``."""
    return Estimand(document.estimand).words


def title(compared: Compared, document: Comparison) -> str:
    """Return such as ``B against A in RUN, on tasks like these: 12 tasks``."""
    a, b = compared.labels
    run = f" in {compared.a.run_id}" if compared.a.run_id == compared.b.run_id else ""
    sample = [counted(compared.tasks, "task")]
    if compared.clusters is not None:
        sample.append(counted(compared.clusters, "cluster"))
    if compared.replications > 1:
        sample.append(f"{count(compared.a.trials)} and {count(compared.b.trials)} trials")
    return f"{b} against {a}{run}, on {estimand(document)}: {', '.join(sample)}"


def method(documents: Sequence[Comparison]) -> str:
    """Return what some comparisons, corrected together, are about and how they are made."""
    text = "In each task both sides weigh the same, and so do all tasks. "
    if {document.estimand for document in documents} == {Estimand.SUITE.value}:
        text += "They are about this suite: the sample is the replications of its tasks. "
    else:
        samples = sorted({f"clusters ({d.cluster})" if d.cluster else "tasks" for d in documents})
        text += f"They are about tasks like these: the sample is the {' or '.join(samples)}. "
    family = family_size(documents)
    together = f", for all {family} comparisons together," if family > 1 else ""
    return (
        f"{text}A difference is called shown where its interval{together} does not contain 0; "
        "its p value is then small enough, too. An agent that failed counts as not passed; trials "
        "that failed for another reason are left out."
    )


def family_size(documents: Sequence[Comparison]) -> int:
    """Return for how many comparisons intervals and p values are corrected together."""
    return max((document.family for document in documents), default=1)


def p_heading(documents: Sequence[Comparison]) -> str:
    """Return the heading of a column of decisive p values."""
    family = family_size(documents)
    return f"p of {family} comparisons" if family > 1 else "p"


# -- decisions


def shown(
    compared: Compared,
    difference: Estimate,
    test: Significance,
    document: Comparison,
    verdict: str,
) -> str:
    """Return that a difference is shown; `verdict` is `better`, `worse`, `higher` or `lower`."""
    a, b = compared.labels
    direction = "higher" if difference.value > 0 else "lower"
    where = f"on {estimand(document)}"
    figure = amount(difference.value, document)
    evidence = _evidence(difference, test, document)
    if verdict in ("better", "worse"):
        return f"{b} is {verdict} than {a} {where}: {figure} {direction} {evidence}"
    subject = document.metric
    if compared.same_trials:
        subject = f"Of the same trials, {'the pass rate' if document.is_rate else subject}"
    return f"{subject} is {direction} in {b} than in {a} {where}: {figure} {evidence}"


def not_shown(
    compared: Compared, difference: Estimate, test: Significance, document: Comparison
) -> str:
    """Return that no difference is shown, and which one could have been."""
    a, b = compared.labels
    trials = " of the same trials" if compared.same_trials else ""
    return (
        f"No difference was shown between {a} and {b}{trials} on {estimand(document)}: "
        f"{_observed(compared, difference, document)} {_evidence(difference, test, document)} "
        f"{_could_have_been_shown(compared, document)}"
    )


def not_replicated(compared: Compared, difference: Estimate, document: Comparison) -> str:
    """Return that a fixed suite without replications cannot show a difference."""
    a, b = compared.labels
    return (
        f"Whether {a} and {b} differ on this suite cannot be said: "
        f"{_observed(compared, difference, document)}, but each task was tried once on each side, "
        "and only replications of the same tasks tell a difference from luck. Run more "
        "replications, or ask about tasks like these (--estimand tasks)."
    )


def headline(compared: Compared, document: Comparison) -> str:
    """Return a decision about a pass rate as a clause, for a list of several."""
    a, b = compared.labels
    where = f"on {estimand(document)}"
    difference, verdict = compared.difference, compared.decision.verdict
    if difference is None:
        return f"{b} could not be compared with {a}"
    if compared.test is None:
        return f"whether {b} and {a} differ {where} cannot be said without replications"
    together = f" for all {document.family} comparisons" if document.family > 1 else ""
    interval = f"{level(document)}{together} {bounds(difference, document, signed=True)}"
    size = f"{signed_amount(difference, document)}, {interval}"
    if verdict == "not_shown":
        return f"no difference was shown between {a} and {b} {where} ({size})"
    if compared.same_trials:
        return f"of the same trials, the pass rate is {verdict} in {b} than in {a} {where} ({size})"
    return f"{b} is {verdict} than {a} {where} ({size})"


def _observed(compared: Compared, difference: Estimate, document: Comparison) -> str:
    _, b = compared.labels
    if not difference.value:
        return "the same in both"
    direction = "higher" if difference.value > 0 else "lower"
    return f"{amount(difference.value, document)} {direction} in {b}"


def _could_have_been_shown(compared: Compared, document: Comparison) -> str:
    sample, detectable = _sample(compared, document), compared.detectable
    if detectable is None or detectable.difference is None:
        return f"With {sample}, no difference could have been shown reliably."
    least = amount(detectable.difference, document)
    return (
        f"With {sample}, a difference smaller than about {least} would have been missed more than "
        f"{1 - detectable.power:.0%} of the time{_assumption(detectable, document)}."
    )


def _sample(compared: Compared, document: Comparison) -> str:
    tasks = counted(compared.tasks, "task")
    if document.estimand == Estimand.SUITE:
        return f"{count(compared.a.trials + compared.b.trials)} trials of {tasks}"
    if compared.clusters is not None:
        return f"{tasks} in {counted(compared.clusters, 'cluster')}"
    return tasks


def _assumption(detectable: Detectable, document: Comparison) -> str:
    """Return the condition under which a difference is detectable."""
    if detectable.discordant is None:
        suite = document.estimand == Estimand.SUITE
        return f", if {'replications scatter' if suite else 'tasks differ'} as here"
    observed = "" if detectable.assumed else " as here"
    return f", if {percent(detectable.discordant)} of pairs differ{observed}"


# -- gates


def no_gate_test(compared: Compared) -> str:
    """Return why a gate has nothing to decide by."""
    a, b = compared.labels
    if compared.difference is None:
        return f"{b} was not compared with {a}: no trials could be paired"
    return f"{b} could not be compared with {a} on this suite: it has no replications"


def gate(
    option: str,
    limit: float,
    compared: Compared,
    difference: Estimate,
    document: Comparison,
    is_shown: bool,
) -> str:
    """Return what a gate tested, and whether that is shown."""
    a, b = compared.labels
    word = "" if is_shown else "not "
    size = amount(limit, document)
    where = f"on {estimand(document)} ({_interval(difference, document)}{_correction(document)})"
    if option == "--fail-if-worse":
        return f"{b} is {word}shown to be worse than {a} by more than {size} {where}"
    return f"{b} is {word}shown to be at most {size} worse than {a} {where}"


# -- facts


class Fact(NamedTuple):
    """A named fact about a comparison, beside its figures and its decision."""

    name: str
    text: str
    in_report: bool = True
    """Whether the report states it too; the other facts are for the command's own output."""

    @property
    def sentence(self) -> str:
        return f"{self.name[0].upper()}{self.name[1:]}: {self.text}."


def facts(compared: Compared, document: Comparison) -> Iterator[Fact]:
    """Yield what else there is to know about a comparison, in the order of every form."""
    a, b = compared.labels
    yield from _gradings(compared)
    if compared.counts is not None:
        c = compared.counts
        by_side = f"{count(c.both)} by both, {count(c.only_a)} only by {a}, {count(c.only_b)} only"
        yield Fact("tasks passed", f"{by_side} by {b}, {count(c.neither)} by neither")
    if compared.test is not None:
        p = f"{_p_values(compared.test)}{_correction(document)}"
        yield Fact(compared.test.name, p, in_report=False)
    if compared.effect is not None:
        name = _EFFECTS[compared.effect.name]
        yield Fact(name, _effect_value(compared.effect), in_report=False)
    detectable = compared.detectable
    if detectable is not None and detectable.difference is not None:
        least = amount(detectable.difference, document)
        condition = f"with {detectable.power:.0%} power{_assumption(detectable, document)}"
        yield Fact("smallest difference that could be shown", f"{least}, {condition}")
    if compared.left_out:
        groups = (_left_out(g.pairs, g.side, g.reason, a, b) for g in compared.left_out)
        yield Fact("left out", ", ".join(groups))
    for other in compared.sensitivity:
        if other.pairs != compared.pairs or other.difference != compared.difference:
            yield Fact(f"with --errors {other.errors}", _otherwise(other, compared, document))
    yield from _moved_tasks(compared, document)
    for warning in compared.warnings:
        yield Fact("warning", warning)


def _gradings(compared: Compared) -> Iterator[Fact]:
    """Yield which gradings the scores are from, where there are several."""
    if compared.same_trials:
        yield Fact("trials", "the same on both sides; only how they were graded differs")
    gradings = {compared.a.run_id: compared.a.grading, compared.b.run_id: compared.b.grading}
    for name, grading in gradings.items():
        if grading is not None and grading.generations > 1:
            number = f"generation {grading.generation} of {grading.generations}"
            text = f"{number}, by {grader_name(grading.grader_digest)}"
            yield Fact(f"scores of {name}", text, in_report=False)


def _p_values(test: Significance) -> str:
    """Return such as ``p = 0.031``, with the corrected value where there is one."""
    p = figures.p_equation("p", test.p)
    if test.p_adjusted is None:
        return p
    return f"{p}, {figures.p_equation('corrected p', test.p_adjusted)}"


def _effect_value(effect: Effect) -> str:
    if effect.value is not None:
        return f"{effect.value:.4g}"
    return "none, for no pair goes the other way" if effect.name == "odds_ratio" else "none"


def _left_out(pairs: int, side: str, reason: str, a: str, b: str) -> str:
    """Return such as ``2 trials of treat (infra_error)``."""
    owner = {"a": f"of {a}", "b": f"of {b}", "both": "of each"}[side]
    return f"{counted(pairs, 'trial')} {owner} ({reason})"


def _otherwise(other: Sensitivity, compared: Compared, document: Comparison) -> str:
    if other.difference is None:
        return "nothing could be paired"
    difference = signed_amount(other.difference, document)
    interval = bounds(other.difference, document, signed=True)
    text = f"{difference} ({interval}), {counted(other.pairs, 'pair')} of trials"
    if compared.difference and compared.difference.value * other.difference.value < 0:
        text += "; this turns the direction"
    return text


def _moved_tasks(compared: Compared, document: Comparison) -> Iterator[Fact]:
    """Yield the tasks that differ, the largest differences first."""
    moved = [
        (row.b - row.a, row.task_id)
        for row in compared.by_task
        if row.a is not None and row.b is not None and row.a != row.b
    ]
    moved.sort(key=lambda item: (-abs(item[0]), item[1]))
    lower, higher = "lower", "higher"
    if document.lower_is_better is not None and not compared.same_trials:
        lower, higher = ("better", "worse") if document.lower_is_better else ("worse", "better")
    for word, sign in ((lower, -1), (higher, 1)):
        names = [task_id for change, task_id in moved if change * sign > 0]
        if names:
            more = f" and {count(len(names) - _NAMED)} more" if len(names) > _NAMED else ""
            text = ", ".join(names[:_NAMED]) + more
            yield Fact(f"{word} on {counted(len(names), 'task')}", text, in_report=False)
