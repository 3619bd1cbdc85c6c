"""A comparison as a person reads it: a table on a terminal, or Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from labledger.cli.output.console import cell, out, out_sentence, percent, table
from labledger.compare.comparison_document import EFFECTS, SAME_TRIALS, effect_value, left_out
from labledger.compare.decision import amount, corrected_for, p_value, supposed
from labledger.compare.run_differences import grader_name

if TYPE_CHECKING:
    from labledger.api import CompareOptions
    from labledger.compare.comparison_document import Compared, Comparison, Sensitivity
    from labledger.compare.statistics.samples import Estimate

_NAMED = 10
"""How many tasks are named."""

_WIDEST_HEADING = 24
"""With longer names above the columns, the table would not fit 80 columns."""

Row = tuple[str, str, str, str]


def print_comparison(found: Comparison, options: CompareOptions) -> None:
    """Each comparison as a table, what else is to be known, and what it supports."""
    for number, compared in enumerate(found.comparisons):
        if number:
            out()
        out_sentence(_title(compared, options))
        columns = ("", *_headings(compared), "difference")
        table(columns, _figures(compared, found, options), right=columns[1:])
        for name, text in _facts(compared, found, options):
            out_sentence(f"{name}: {text}")
        out_sentence(compared.decision.text)
    for gate in found.gates:
        out_sentence(f"gate {'passed' if gate.passed else 'missed'}: {gate.option}: {gate.text}")


def _headings(compared: Compared) -> tuple[str, str]:
    """The names of both sides, or A and B beside them where the names are long."""
    a, b = compared.labels
    if max(len(a), len(b)) <= _WIDEST_HEADING:
        return a, b
    out(f"A: {a}")
    out(f"B: {b}")
    return "A", "B"


def print_markdown(found: Comparison, options: CompareOptions) -> None:
    """The same as Markdown."""
    for number, compared in enumerate(found.comparisons):
        if number:
            out()
        out(f"### {_escaped(_title(compared, options))}")
        out()
        out(f"**{_escaped(compared.decision.text)}**")
        out()
        out(_markdown_row(("", *compared.labels, "difference")))
        out("| --- | ---: | ---: | ---: |")
        for row in _figures(compared, found, options):
            out(_markdown_row(row))
        out()
        for name, text in _facts(compared, found, options):
            out(f"- {name}: {_escaped(text)}")
    if found.gates:
        out()
    for gate in found.gates:
        word = "passed" if gate.passed else "missed"
        out(f"- gate {word}: `{gate.option}`: {_escaped(gate.text)}")


def _title(compared: Compared, options: CompareOptions) -> str:
    a, b = compared.labels
    of = f" in {compared.a.run_id}" if compared.a.run_id == compared.b.run_id else ""
    sample = [_count(compared.tasks, "task")]
    if compared.clusters is not None:
        sample.append(_count(compared.clusters, "cluster"))
    if compared.replications > 1:
        sample.append(f"{compared.a.trials:,} and {compared.b.trials:,} trials")
    return f"{b} against {a}{of}, on {options.estimand.words}: {', '.join(sample)}"


def _figures(compared: Compared, found: Comparison, options: CompareOptions) -> Iterator[Row]:
    name = "pass rate" if options.is_rate else options.metric
    a, b = compared.a.mean, compared.b.mean
    moved = _signed(compared.difference, options)
    yield name, _number(a, options), _number(b, options), moved
    level = f"{100 * options.confidence:.6g} % CI"
    # Those of the sides are their own; that of the difference is for all comparisons together.
    level += f" (difference: of {found.family} comparisons)" if found.family > 1 else ""
    bounds = _bounds(compared.difference, options, points=True)
    yield level, _bounds(a, options), _bounds(b, options), bounds
    yield from _pass_at(compared, options)


def _pass_at(compared: Compared, options: CompareOptions) -> Iterator[Row]:
    for a, b in zip(compared.a.pass_at, compared.b.pass_at, strict=True):
        few = "" if a.tasks == compared.tasks else f" ({_count(a.tasks, 'task')})"
        for sign, one, other in (("@", a.any, b.any), ("^", a.all, b.all)):
            first, second = (f"{_number(e, options)} ({_bounds(e, options)})" for e in (one, other))
            moved = None if one is None or other is None else other.value - one.value
            points = "–" if moved is None else f"{100 * moved:+.1f} points"
            yield (f"pass{sign}{a.k}{few}", first, second, points)


def _facts(
    compared: Compared, found: Comparison, options: CompareOptions
) -> Iterator[tuple[str, str]]:
    a, b = compared.labels
    yield from _gradings(compared)
    if compared.counts is not None:
        c = compared.counts
        passed = f"{c.both} by both, {c.only_a} only by {a}, {c.only_b} only by {b}"
        yield "tasks passed", f"{passed}, {c.neither} by neither"
    if compared.test is not None:
        yield compared.test.name, f"{p_value(compared.test)}{corrected_for(found.family)}"
    if compared.effect is not None:
        yield EFFECTS[compared.effect.name], effect_value(compared.effect)
    if compared.detectable is not None and compared.detectable.difference is not None:
        power = f"with {compared.detectable.power:.0%} power"
        least = amount(compared.detectable.difference, options)
        condition = supposed(compared, options)
        yield "smallest difference that could be shown", f"{least}, {power}{condition}"
    if compared.left_out:
        told = (left_out(left.pairs, left.side, left.reason, a, b) for left in compared.left_out)
        yield "left out", ", ".join(told)
    for other in compared.sensitivity:
        if _differs(other, compared):
            yield f"with --errors {other.errors}", _otherwise(other, compared, options)
    yield from _tasks(compared, found)
    for warning in compared.warnings:
        yield "warning", warning


def _gradings(compared: Compared) -> Iterator[tuple[str, str]]:
    """Who judged, where there is more than one grading to tell apart."""
    if compared.same_trials:
        yield "trials", SAME_TRIALS
    told = {compared.a.run_id: compared.a.grading, compared.b.run_id: compared.b.grading}
    for name, grading in told.items():
        if grading is not None and grading.generations > 1:
            which = f"generation {grading.generation} of {grading.generations}"
            yield f"scores of {name}", f"{which}, by {grader_name(grading.grader_digest)}"


def _differs(other: Sensitivity, compared: Compared) -> bool:
    return other.pairs != compared.pairs or other.difference != compared.difference


def _otherwise(other: Sensitivity, compared: Compared, options: CompareOptions) -> str:
    if other.difference is None:
        return "nothing could be paired"
    bounds = _bounds(other.difference, options, points=True)
    text = (
        f"{_signed(other.difference, options)} ({bounds}), {_count(other.pairs, 'pair')} of trials"
    )
    if compared.difference and compared.difference.value * other.difference.value < 0:
        text += "; this turns the direction"
    return text


def _tasks(compared: Compared, found: Comparison) -> Iterator[tuple[str, str]]:
    """Which tasks moved, the largest moves first."""
    moved = [
        (row.b - row.a, row.task_id)
        for row in compared.by_task
        if row.a is not None and row.b is not None and row.a != row.b
    ]
    higher, lower = ("better", "worse") if found.lower_is_better is False else ("higher", "lower")
    if found.lower_is_better:
        higher, lower = "worse", "better"
    if compared.same_trials:
        higher, lower = "higher", "lower"
    for word, sign in ((lower, -1), (higher, 1)):
        names = [task for change, task in sorted(moved, key=_largest) if change * sign > 0]
        if names:
            rest = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            yield f"{word} on {_count(len(names), 'task')}", ", ".join(names[:_NAMED]) + rest


def _largest(item: tuple[float, str]) -> tuple[float, str]:
    return -abs(item[0]), item[1]


# -- numbers


def _number(found: Estimate | None, options: CompareOptions) -> str:
    if found is None:
        return "–"
    return percent(found.value) if options.is_rate else cell(found.value)


def _signed(found: Estimate | None, options: CompareOptions) -> str:
    if found is None:
        return "–"
    sign = "-" if found.value < 0 else "+"
    return f"{sign}{amount(found.value, options)}"


def _bounds(found: Estimate | None, options: CompareOptions, *, points: bool = False) -> str:
    if found is None or found.low is None or found.high is None:
        return "–"
    if not options.is_rate:
        return f"{found.low:.6g} to {found.high:.6g}"
    sign = "+" if points else ""
    return " to ".join(f"{100 * bound:{sign}.1f}" for bound in (found.low, found.high))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


# -- Markdown


def _markdown_row(values: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, values)) + " |"


def _escaped(text: str) -> str:
    """Text in which nothing is Markdown."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return text
