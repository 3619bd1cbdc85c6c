"""Print a comparison as a table on a terminal, or as Markdown.

The texts come from `labledger.api.comparison_texts`; this module only lays them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labledger.api import comparison_texts
from labledger.cli.output.console import out, out_sentence, table

if TYPE_CHECKING:
    from labledger.api import Comparison, ComparisonText

_WIDEST_HEADING = 24
"""With longer names as column headings, the table would not fit 80 columns."""


def print_comparison(comparison: Comparison) -> None:
    """Print each comparison as a table, with its facts and its decision, then the gates."""
    for number, texts in enumerate(comparison_texts(comparison)):
        if number:
            out()
        out_sentence(texts.title)
        columns = ("", *_headings(texts), "difference")
        table(columns, texts.rows, right=columns[1:])
        for fact in texts.facts:
            out_sentence(f"{fact.name}: {fact.text}")
        out_sentence(texts.decision)
    for gate in comparison.gates:
        out_sentence(f"gate {'passed' if gate.passed else 'missed'}: {gate.option}: {gate.text}")


def _headings(texts: ComparisonText) -> tuple[str, str]:
    """Return the names of both sides, or A and B if they are long; then the names are printed."""
    if max(len(texts.a), len(texts.b)) <= _WIDEST_HEADING:
        return texts.a, texts.b
    out(f"A: {texts.a}")
    out(f"B: {texts.b}")
    return "A", "B"


def print_markdown(comparison: Comparison) -> None:
    """Print the same as Markdown."""
    for number, texts in enumerate(comparison_texts(comparison)):
        if number:
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


def _markdown_row(values: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, values)) + " |"


def _escaped(text: str) -> str:
    """Return text in which nothing is Markdown."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return text
