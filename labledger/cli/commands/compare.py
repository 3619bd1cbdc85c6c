"""`labledger compare`: compares variants or runs, and checks gates.

The library computes the statistics, texts and gates. This module parses options and prints the
texts as a table, as Markdown or as JSON; the library writes the JUnit report for CI systems. A
missed gate is exit code 1, and a comparison without any pair is exit code 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from labledger.cli import arguments
from labledger.cli.console import out, out_json, out_sentence, say, table
from labledger.errors import Exit, InvalidInput, Problem

if TYPE_CHECKING:
    from labledger.results import Comparison, ComparisonText, RankingText

FORMATS = ("table", "json", "markdown")


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="SIDES",
            help="RUN: its baseline against every treatment. RUN B: its baseline against its "
            "variant B. RUN A B: two of its variants. Or two "
            "sides, each RUN or RUN:VARIANT. RUN means its current grading; RUN.g1, RUN.g2, … name "
            "its gradings, and RUN1+RUN2 several runs taken as one.",
            show_default=False,
            autocompletion=arguments.complete_run_id,
        ),
    ],
    metric: arguments.Metric = "pass_rate",
    lower_is_better: arguments.LowerIsBetter = None,
    estimand: Annotated[
        str,
        typer.Option(
            help="tasks: all tasks like these, with the compared ones as a sample; suite: exactly "
            "these tasks, with their replications as the sample."
        ),
    ] = "tasks",
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="The field of a task's row that groups dependent tasks, such as task.repo; by "
            "default the experiment's dataset.cluster.",
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            help="The confidence level of decisions, and of all intervals of differences jointly."
        ),
    ] = 0.95,
    errors: Annotated[
        str,
        typer.Option(
            help="as-failures: crashed agents without a verdict did not pass. strict: crashed or "
            "timed-out agents never passed. left-out: only graded trials count. all-as-failures: "
            "all trials that ran and did not pass are failures."
        ),
    ] = "as-failures",
    pass_at: Annotated[
        str, typer.Option(metavar="K,…", help="The k of pass@k and pass^k, such as 1,5.")
    ] = "",
    fail_if_worse: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Exit 1 if B is shown to be worse than A by more than X, for every value in the "
            "interval.",
        ),
    ] = None,
    require_not_worse: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Exit 1 unless B is shown to be at most X worse than A, for every value in the "
            "interval.",
        ),
    ] = None,
    all_pairs: Annotated[
        bool,
        typer.Option(
            "--all-pairs",
            help="Compare every pair: all variants of RUN, the variants named in RUN A B C …, or "
            "the sides RUN:VARIANT …. Rank them in groups within which no two differ demonstrably.",
        ),
    ] = False,
    equivalent_within: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Say whether the sides are shown to be equivalent: every value in the interval is "
            "less than X from 0.",
        ),
    ] = None,
    require_equivalent: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Exit 1 unless the sides are shown to be equivalent within X."
        ),
    ] = None,
    format: Annotated[str, typer.Option(help="table, json or markdown.")] = "table",  # noqa: A002
    junit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a JUnit report with a test for each gate and each task; missed gates fail.",
        ),
    ] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Compare variants or runs on the same tasks.

    Prints intervals that account for tasks, replications and clusters. Also prints which trials
    were left out and why, and the smallest difference that this number of tasks could have shown.
    Differences are B minus A.
    """
    from labledger import CompareOptions, open_ledger
    from labledger.results import ErrorCounting, Estimand

    if format not in FORMATS:
        _refuse("--format", f"found {format!r}; expected one of {', '.join(FORMATS)}")
    options = CompareOptions(
        metric=metric,
        lower_is_better=lower_is_better,
        confidence=confidence,
        estimand=Estimand.named(estimand),
        cluster=cluster,
        errors=ErrorCounting.named(errors),
        pass_at=_numbers(pass_at),
        fail_if_worse=fail_if_worse,
        require_not_worse=require_not_worse,
        all_pairs=all_pairs,
        equivalent_within=equivalent_within,
        require_equivalent=require_equivalent,
    )
    if junit is not None and all_pairs:
        _refuse("--junit", "is for a baseline and its treatments, not for --all-pairs")
    if junit is not None and str(junit) == "-":
        _refuse("--junit", "standard output gets the comparison; name a file")
    with open_ledger(lab_dir=lab_dir) as ledger:
        comparison = ledger.compare(*sides, options=options)
    _print(comparison, format)
    if junit is not None:
        from labledger.results import write_junit

        write_junit(comparison, junit)
        say(f"wrote {junit}")
    missed = [gate for gate in comparison.gates if not gate.passed]
    for gate in missed if format == "json" else ():  # The other formats include the gates.
        say(f"gate missed: {gate.option} {gate.limit:g}: {gate.text}")
    if comparison.undecided:
        say(comparison.undecided)
    if missed:
        raise typer.Exit(int(Exit.GATE_MISSED))
    if comparison.undecided:
        raise typer.Exit(int(Exit.INCOMPLETE))


def _print(comparison: Comparison, form: str) -> None:
    if form == "json":
        out_json(comparison.as_json())
    elif form == "markdown":
        print_markdown(comparison)
    else:
        print_comparison(comparison)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in a text such as ``1,5``, in order and without repetitions."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isdecimal() for word in words):
        _refuse("--pass-at", f"found {text!r}; expected whole numbers such as 1,5")
    return tuple(sorted({int(word) for word in words}))


def _refuse(option: str, message: str, hint: str | None = None) -> NoReturn:
    problem = Problem(option, message, hint=hint)
    raise InvalidInput("the options of the comparison", [problem])


_MAX_HEADING_WIDTH = 24
"""With longer names as column headings, the table would not fit 80 columns."""


def print_comparison(comparison: Comparison) -> None:
    """Print each comparison as a table, with its facts and its decision, then the gates.

    Print all pairs as two tables: the ranking of the sides, and their differences.
    """
    from labledger.results import comparison_texts, ranking_text

    ranking = ranking_text(comparison)
    if ranking is not None:
        out_sentence(ranking.title)
        table(ranking.headings, ranking.rows, right=ranking.headings[1:-1])
        out()
        table(ranking.pair_headings, ranking.pair_rows, right=ranking.pair_headings[2:-1])
        for sentence in (ranking.summary, *ranking.facts):
            out_sentence(sentence)
        return
    for number, texts in enumerate(comparison_texts(comparison)):
        if number:
            out()
        for sentence in () if number else texts.head:
            out_sentence(sentence)
        out_sentence(texts.title)
        columns = ("", *_headings(texts), "difference")
        table(columns, texts.rows, right=columns[1:])
        for fact in texts.facts:
            out_sentence(f"{fact.name}: {fact.text}")
        out_sentence(texts.decision)
    for gate in comparison.gates:
        out_sentence(f"gate {'passed' if gate.passed else 'missed'}: {gate.option}: {gate.text}")


def _headings(texts: ComparisonText) -> tuple[str, str]:
    """Return the names of both sides; if they are too long, print them and return A and B."""
    if max(len(texts.a), len(texts.b)) <= _MAX_HEADING_WIDTH:
        return texts.a, texts.b
    out(f"A: {texts.a}")
    out(f"B: {texts.b}")
    return "A", "B"


def print_markdown(comparison: Comparison) -> None:
    """Print each comparison as Markdown, then the gates; or the ranking of all pairs."""
    from labledger.results import comparison_texts, ranking_text

    ranking = ranking_text(comparison)
    if ranking is not None:
        _print_ranking_markdown(ranking)
        return
    for number, texts in enumerate(comparison_texts(comparison)):
        if number:
            out()
        for sentence in () if number else texts.head:
            out(f"> {_escaped(sentence)}")
            out()
        out(f"### {_escaped(texts.title)}")
        out()
        out(f"**{_escaped(texts.decision)}**")
        out()
        out(_markdown_row(("", texts.a, texts.b, "difference")))
        out("| --- | ---: | ---: | ---: |")
        for row in texts.rows:
            out(_markdown_row(row))
        out()
        for fact in texts.facts:
            out(f"- {fact.name}: {_escaped(fact.text)}")
    if comparison.gates:
        out()
    for gate in comparison.gates:
        word = "passed" if gate.passed else "missed"
        out(f"- gate {word}: `{gate.option}`: {_escaped(gate.text)}")


def _print_ranking_markdown(ranking: RankingText) -> None:
    out(f"### {_escaped(ranking.title)}")
    out()
    out(f"**{_escaped(ranking.summary)}**")
    for headings, rows, texts in (
        (ranking.headings, ranking.rows, 1),
        (ranking.pair_headings, ranking.pair_rows, 2),
    ):
        out()
        out(_markdown_row(headings))
        marks = ["---:"] * (len(headings) - texts - 1)
        out(f"| {' | '.join(['---'] * texts + marks + ['---'])} |")
        for row in rows:
            out(_markdown_row(row))
    out()
    for sentence in ranking.facts:
        out(f"- {_escaped(sentence)}")


def _markdown_row(values: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, values)) + " |"


def _escaped(text: str) -> str:
    """Return text whose Markdown characters are escaped."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return text
