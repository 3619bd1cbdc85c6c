"""A comparison as a JUnit report, for CI systems: a test suite for each comparison, a test case for
each task.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from labledger.api import LabLedgerError
from labledger.text.figures import significant

if TYPE_CHECKING:
    from labledger.api import Compared, Comparison, TaskRow

_SKIP_REASONS = (
    "not_scheduled",
    "not_committed",
    "task_changed",
    "cancelled",
    "skipped_pruned",
    "no_value",
)
"""Reasons for a missing pair that are not errors of a trial."""

_GATES = "gates"


def write_junit(comparison: Comparison, path: Path) -> None:
    """Write the report. Raises `LabLedgerError`.

    A task on which B is worse is a failure. A task without a pair is an error if trials were lost
    to errors of the lab (or of the agent, where those are left out), and skipped otherwise. Each
    gate is a test case too.
    """
    root = ET.Element("testsuites", name="labledger compare")
    for compared in comparison.comparisons:
        suite = ET.SubElement(
            root, "testsuite", name=f"{compared.b.side} against {compared.a.side}"
        )
        for row in compared.by_task:
            _test_case(suite, compared, row, bool(comparison.lower_is_better))
        _add_totals(suite)
    if comparison.gates:
        suite = ET.SubElement(root, "testsuite", name=_GATES)
        for gate in comparison.gates:
            name = f"{gate.option} {gate.limit:g} {gate.b}"
            case = ET.SubElement(suite, "testcase", classname=_GATES, name=name)
            if not gate.passed:
                ET.SubElement(case, "failure", message=gate.text)
        _add_totals(suite)
    _add_totals(root)
    ET.indent(root)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
    except OSError as error:
        raise LabLedgerError(f"could not write {path}: {error.strerror}") from error


def _test_case(suite: ET.Element, compared: Compared, row: TaskRow, lower_is_better: bool) -> None:
    case = ET.SubElement(suite, "testcase", classname=str(compared.b.side), name=row.task_id)
    reasons = "; ".join(row.left_out)
    if row.a is None or row.b is None:
        is_skipped = all(_is_skip_reason(reason) for reason in row.left_out)
        ET.SubElement(case, "skipped" if is_skipped else "error", message=reasons)
    elif row.a != row.b and (row.b > row.a) is lower_is_better:
        a, b = compared.labels
        message = f"{a} {significant(row.a)}, {b} {significant(row.b)}, of the trials that count"
        ET.SubElement(case, "failure", message=message)
    if row.pairs and reasons:
        ET.SubElement(case, "system-out").text = f"left out: {reasons}"


def _is_skip_reason(left_out: str) -> bool:
    """Return whether a text such as ``b: no_value`` gives no error of a trial as its reason."""
    _, _, reasons = left_out.partition(": ")
    return any(reason in _SKIP_REASONS for reason in reasons.split(", "))


def _add_totals(element: ET.Element) -> None:
    cases = list(element.iter("testcase"))
    totals = {"tests": len(cases)}
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        totals[attribute] = sum(case.find(tag) is not None for case in cases)
    element.attrib.update({key: str(value) for key, value in totals.items()})
