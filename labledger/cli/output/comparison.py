"""Print a comparison: as a table on a terminal, as Markdown, or as a JUnit report for CI systems.

The texts come from `labledger.api.comparison_texts`; this module only lays them out. The JUnit
report has a test suite for each comparison, and a test case for each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from labledger import LabLedgerError, comparison_texts, ranking_text
from labledger.cli.output.console import out, out_sentence, table
from labledger.text import significant

if TYPE_CHECKING:
    from labledger import Compared, Comparison, ComparisonText, RankingText, TaskRow


_MAX_HEADING_WIDTH = 24
"""With longer names as column headings, the table would not fit 80 columns."""


def print_comparison(comparison: Comparison) -> None:
    """Print each comparison as a table, with its facts and its decision, then the gates.

    Print all pairs as two tables: the ranking of the sides, and their differences.
    """
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


_GATES = "gates"


def write_junit(comparison: Comparison, path: Path) -> None:
    """Write the report. Raises `LabLedgerError`.

    It fails where the command exits with another code than 0: a missed gate is a failure, and what
    cannot be decided an error. A task says what both sides made of it, and never fails; one that
    could not be compared is skipped.
    """
    root = ET.Element("testsuites", name="labledger compare")
    for compared in comparison.comparisons:
        suite = ET.SubElement(
            root, "testsuite", name=f"{compared.b.side} against {compared.a.side}"
        )
        for row in compared.by_task:
            _test_case(suite, compared, row)
        _add_totals(suite)
    if comparison.gates or comparison.undecided:
        suite = ET.SubElement(root, "testsuite", name=_GATES)
        for gate in comparison.gates:
            name = f"{gate.option} {gate.limit:g} {gate.b}"
            case = ET.SubElement(suite, "testcase", classname=_GATES, name=name)
            if not gate.passed:
                ET.SubElement(case, "failure", message=gate.text)
        if comparison.undecided:
            case = ET.SubElement(suite, "testcase", classname=_GATES, name="can be decided")
            ET.SubElement(case, "error", message=comparison.undecided)
        _add_totals(suite)
    _add_totals(root)
    ET.indent(root)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
    except OSError as error:
        raise LabLedgerError(f"could not write {path}: {error.strerror}") from error


def _test_case(suite: ET.Element, compared: Compared, row: TaskRow) -> None:
    case = ET.SubElement(suite, "testcase", classname=str(compared.b.side), name=row.task_id)
    reasons = "; ".join(row.left_out)
    if row.a is None or row.b is None:
        ET.SubElement(case, "skipped", message=reasons)
        return
    a, b = compared.labels
    text = f"{a} {significant(row.a)}, {b} {significant(row.b)}, of the trials that count"
    left_out = f"; left out: {reasons}" if reasons else ""
    ET.SubElement(case, "system-out").text = f"{text}{left_out}"


def _add_totals(element: ET.Element) -> None:
    cases = list(element.iter("testcase"))
    totals = {"tests": len(cases)}
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        totals[attribute] = sum(case.find(tag) is not None for case in cases)
    element.attrib.update({key: str(value) for key, value in totals.items()})
