"""A run's report in each of its forms."""

from __future__ import annotations

import json

from labledger import optional_libraries
from labledger.errors import InvalidInput, Problem
from labledger.ledger.reader import LedgerReader
from labledger.report import markdown
from labledger.report.facts import collect
from labledger.report.options import ReportOptions
from labledger.report.page import page

FORMS = ("html", "markdown", "json")


def render(reader: LedgerReader, run_id: str, form: str, options: ReportOptions) -> bytes:
    """The report of a run, in UTF-8. Raises `ExtraMissing`, `InvalidInput` or `RunNotFound`."""
    if form not in FORMS:
        problem = Problem("form", f"found {form!r}; expected one of {', '.join(FORMS)}")
        raise InvalidInput("the report", [problem])
    if form == "html":
        optional_libraries.require_page()  # Before the work, not after it.
    listed = {"html": page.MOST_TRIALS, "markdown": 0, "json": None}[form]
    if form == "html":  # The page lets go of the report once it has taken what it shows.
        return page.render(reader, collect(reader, run_id, options, listed), options)
    report = collect(reader, run_id, options, listed)
    if form == "markdown":
        return markdown.render(report).encode()
    return (json.dumps(report, indent=2) + "\n").encode()
