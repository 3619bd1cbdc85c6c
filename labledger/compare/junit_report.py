"""A comparison as a JUnit report for CI systems: a suite for each pair, a case for each task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from xml.etree import ElementTree as ET

from labledger.compare.comparison_document import Compared, Comparison, TaskRow
from labledger.files.output_files import make_folder_for, open_output
from labledger.text.figures import significant

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_GATES = "gates"


def write_junit(comparison: Comparison, out: str | Path | BinaryIO) -> None:
    """Write a comparison as a JUnit report to a file or a binary stream.

    The report fails if `labledger compare` exits with a code other than 0. A missed gate is a
    failure, and a gate that cannot be decided is an error. A task's test case has the results of
    both sides and never fails; it is skipped if the task could not be compared. A suite's output
    has the decision and all warnings.

    Args:
        comparison: The comparison, with its gates.
        out: A file, which is written completely or not at all, or a binary stream.

    Raises:
        LabLedgerError: The file cannot be written.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     labledger.results.write_junit(ledger.compare("demo"), "comparison.xml")
    """
    root = ET.Element("testsuites", name="labledger compare")
    for compared in comparison.comparisons:
        suite = ET.SubElement(
            root, "testsuite", name=f"{compared.b.side} against {compared.a.side}"
        )
        for row in compared.by_task:
            _test_case(suite, compared, row)
        sentences = (compared.decision.text, *compared.warnings)
        ET.SubElement(suite, "system-out").text = "\n".join(filter(None, sentences))
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
    make_folder_for(out)
    with open_output(out) as handle:
        handle.write(ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def _test_case(suite: Element, compared: Compared, row: TaskRow) -> None:
    case = ET.SubElement(suite, "testcase", classname=str(compared.b.side), name=row.task_id)
    reasons = "; ".join(row.left_out)
    if row.a is None or row.b is None:
        ET.SubElement(case, "skipped", message=reasons)
        return
    a, b = compared.labels
    text = f"{a} {significant(row.a)}, {b} {significant(row.b)}, over the trials that count"
    left_out = f"; left out: {reasons}" if reasons else ""
    ET.SubElement(case, "system-out").text = f"{text}{left_out}"


def _add_totals(element: Element) -> None:
    cases = list(element.iter("testcase"))
    totals = {"tests": len(cases)}
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        totals[attribute] = sum(case.find(tag) is not None for case in cases)
    element.attrib.update({key: str(value) for key, value in totals.items()})
